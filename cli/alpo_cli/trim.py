"""`alpo trim`: give up the oldest payloads, on all servers and for good (R20)."""

from __future__ import annotations

import trio

import alpo

from .options import Target
from .output import print_json, say


async def trim(target: Target, before: int, force: bool) -> int:
    """The first LSN that is served from now on. Raises what the library raises."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        return await log.trim(before, force=force)


def run(target: Target, before: int, force: bool) -> None:
    """Do it, and say where the log now begins."""
    first_lsn = trio.run(trim, target, before, force)
    if target.json:
        print_json({"first_lsn": first_lsn})
    else:
        say(f"the log now begins at LSN {first_lsn}")
