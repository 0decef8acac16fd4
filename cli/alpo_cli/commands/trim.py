"""`alpo trim`: delete the oldest payloads, on all servers and for good."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

import alpo
from alpo.core.entries import INT_MAX

from ..exits import Failed
from ..options import Target, with_target
from ..output import counted, escape, print_json, say
from ..running import ask


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
