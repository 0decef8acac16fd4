"""`alpo trim`: give up the oldest payloads, on all servers and for good."""

from __future__ import annotations

from typing import Annotated

import typer

import alpo
from alpo.core.entries import INT_MAX

from ..options import Target, with_target
from ..output import print_json, say
from ..running import run


async def give_up(target: Target, before: int, force: bool) -> int:
    """The first LSN that is served from now on. Raises what the library raises."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        return await log.trim(before, force=force)


@with_target
def trim(
    target: Target,
    before: Annotated[int, typer.Option("--before", metavar="LSN", min=1, max=INT_MAX, show_default=False,
                                        help="The first LSN to be kept.")],
    force: Annotated[bool, typer.Option("--force", show_default=False,
                                        help="Also what a cursor's reader needs: such cursors are dropped.")] = False,
) -> None:
    """Give up all payloads below an LSN, on all servers and for good.

    They cannot be read any more once this is done; the servers free their space soon after. To do it again does no
    harm. What the reader of a cursor needs is not trimmed (alpo cursor list), unless forced.

    Examples:

        alpo trim --before 1000000

        alpo trim --before "$(alpo read --since 30d --limit 1 --json | jq .lsn)"
    """
    first_lsn = run(give_up, target, before, force)
    if target.json:
        print_json({"first_lsn": first_lsn})
    else:
        say(f"the log now begins at LSN {first_lsn}")
