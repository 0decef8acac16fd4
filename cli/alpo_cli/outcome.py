"""`alpo outcome`: what became of an append (R21)."""

from __future__ import annotations

import trio

import alpo
from alpo.client.keeping import Outcome

from .options import Target
from .output import print_json

_WORDS = {"not_appended": "not appended", "too_old": "too old to tell"}


async def ask(target: Target, client: str, serial: int) -> Outcome:
    """Raises what the library raises."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        return await log.outcome(client, serial)


def run(target: Target, client: str, serial: int) -> None:
    """Ask, and print what is told."""
    found = trio.run(ask, target, client, serial)
    if target.json:
        print_json({"outcome": found.outcome, "lsn": found.lsn})
    else:
        print(_WORDS.get(found.outcome, f"appended at LSN {found.lsn}"))
