"""Room on the disks: `alpo trim` deletes the oldest payloads, on all servers and for good; `alpo compact` has servers
return free space of their data files to the file system, while they serve.
"""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Annotated

import typer

import alpo
from alpo.core.entries import INT_MAX
from alpo.core.settings import size_text as size
from alpo.errors import AlpoError

from ..exits import Failed, Unreached, refuse
from ..options import Target, with_target
from ..output import Step, counted, escape, print_json, say, slow_progress
from ..running import ask, complete_ids, run

if TYPE_CHECKING:
    from alpo.client.operator.files import FileSpace
    from alpo.client.servers import Servers


async def look(log: alpo.Log, before: int, force: bool) -> tuple[range, list[str]]:
    """Simulate a trim: the LSNs that it would delete, and the cursors that it would drop. Raises what the trim
    would raise."""
    try:
        async with aclosing(log.read_batches(before, before)) as pages:
            async for _ in pages:
                break
    except alpo.OutOfRange as error:
        if before > error.last_lsn + 1:
            raise
        return range(error.first_lsn, error.first_lsn), []  # trimmed already
    first_lsn = before
    async with aclosing(log.read_batches()) as pages:
        async for page in pages:
            first_lsn = page[0].lsn
            break
    needed = sorted((cursor.lsn, cursor.name) for cursor in await log.cursors() if cursor.lsn < before)
    if needed and not force:
        lsn, name = needed[0]
        raise Failed(f"the cursor {escape(name)} needs LSN {lsn} and what follows")
    return range(first_lsn, max(before, first_lsn)), [name for _, name in needed]


@with_target
def trim(
    target: Target,
    before: Annotated[int, typer.Option("--before", metavar="LSN", min=1, max=INT_MAX,
                                        help="The first LSN to be kept.")],
    force: Annotated[bool, typer.Option("--force",
                                        help="Also what a cursor's reader needs: such cursors are dropped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be given up.")] = False,
) -> None:
    """Give up all payloads below an LSN, on all servers and for good.

    They cannot be read any more once this is done; the servers free their space soon after. To do it again does no
    harm. What the reader of a cursor needs is not trimmed (alpo cursor list), unless forced.

    Examples:
        alpo trim --before 1000000 --dry-run
        alpo trim --before 1000000
        alpo trim --before "$(alpo read --since 30d --limit 1 --json | jq .lsn)"
    """
    if dry_run:
        return _tell(target, *ask(target, lambda log: look(log, before, force)))
    first_lsn = ask(target, lambda log: log.trim(before, force=force))
    target.tell({"first_lsn": first_lsn}, f"the log now begins at LSN {first_lsn}")


def _tell(target: Target, lsns: range, cursors: list[str]) -> None:
    """Print what `look` has found."""
    if target.json:
        print_json({"first_lsn": lsns.stop, "payloads": len(lsns), "cursors": cursors, "dry_run": True})
        return
    if lsns:
        span = f"LSN {lsns[0]}" if len(lsns) == 1 else f"LSN {lsns[0]} to {lsns[-1]}, {counted(len(lsns), 'payload')}"
        say(f"would give up {span}; the log would begin at LSN {lsns.stop}")
    else:
        say(f"would give up nothing; the log begins at LSN {lsns.stop}")
    for name in cursors:
        say(f"would drop the cursor {escape(name)}")
    say("nothing was changed")


async def _compact(target: Target, server: int | None, wait: bool, step: Step) -> None:
    """Have a server, None: every member, one after the other, return its space; ``wait``: until all is returned."""
    from alpo.client.operator.status import members_of
    from alpo.client.servers import Servers, given_log, given_tls

    with closing(Servers(target.servers, tls=given_tls(None), log=given_log(None))) as servers:
        if server is not None:
            await _one(servers, server, target, wait, step)
            return
        members = [id for id, _ in await members_of(servers, target.timeout_s) if id is not None]
        if not members:
            raise Unreached(target.servers, [str(servers.reason)] if servers.reason is not None else [])
        failed = 0
        for id in members:
            try:
                await _one(servers, id, target, wait, step)
            except AlpoError as error:
                failed += 1
                say(f"server {id}: {error}")
        if failed:
            raise Failed(f"{failed} of {counted(len(members), 'server')} gave nothing, or not all, back")


async def _one(servers: Servers, id: int, target: Target, wait: bool, step: Step) -> None:
    from alpo.client.operator.files import watch

    seen: list[FileSpace] = []
    async with aclosing(watch(servers, id, target.timeout_s)) as looks:  # type: ignore[type-var]
        async for now in looks:
            seen = [*seen[:1], now]
            step(f"server {id}", seen[0].free_bytes - now.free_bytes, seen[0].free_bytes)
            if len(seen) > 1 and not wait:
                break
    _tell_freed(target, *seen)


def _tell_freed(target: Target, before: FileSpace, now: FileSpace) -> None:
    target.tell(
        {"server": now.server, "disk_bytes_before": before.disk_bytes, "disk_bytes": now.disk_bytes,
         "free_bytes": now.free_bytes, "done": not now.giving_back},
        f"server {now.server}: gives {size(now.free_bytes)} of {size(now.disk_bytes)} back"
        if now.giving_back and now.free_bytes else
        f"server {now.server}: {size(before.disk_bytes)} before, {size(now.disk_bytes)} now",
    )


@with_target
def compact(
    target: Target,
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, autocompletion=complete_ids,
                                               help="This server's file.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every member's file, one after the other.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", show_default=False,
                                       help="Wait until all is given back.")] = True,
) -> None:
    """Give the free space in servers' data files back to the file system, while they serve.

    What trims and retention have freed is used again by what comes, and stays with the file until more than half of it
    is free. This gives all of it back now, in small steps beside the appends.

    Examples:
        alpo compact --server 2
        alpo compact --all --json
        alpo compact --all --no-wait
    """
    refuse(every == (server is not None), "whose file? --server ID or --all")
    with slow_progress() as step:
        run(_compact, target, server, wait, step)
