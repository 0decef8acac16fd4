"""`alpo compact`: have servers return free space of their data files to the file system, while they serve."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Annotated

import typer

from alpo.core.settings import size_text as size
from alpo.errors import AlpoError

from ..exits import Failed, Unreached, refuse
from ..options import Target, with_target
from ..output import Step, counted, say, slow_progress
from ..running import complete_ids, run

if TYPE_CHECKING:
    from alpo.client.operator.files import FileSpace
    from alpo.client.servers import Servers


async def _compact(target: Target, server: int | None, wait: bool, step: Step) -> None:
    """Have a server, None: every member, one after the other, return its space; ``wait``: until all is returned."""
    from alpo.client.operator.status import members_of
    from alpo.client.servers import Servers, given_tls

    with closing(Servers(target.servers, tls=given_tls(None))) as servers:
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
    _tell(target, *seen)


def _tell(target: Target, before: FileSpace, now: FileSpace) -> None:
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
