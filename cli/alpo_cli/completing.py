"""Completion in shells of what the cluster knows: servers' ids, and the names of cursors, clients and variables.

Law: the cluster is asked for `COMPLETION_S` at most, and then nothing is offered: no error reaches the shell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import typer

import alpo
from alpo.errors import TlsError

from .connecting import connected
from .exits import Failed, UsageProblem
from .options import Target, given_so_far, resolve
from .running import run

#: Longest time for which the shell waits for a completion that the cluster is asked for.
COMPLETION_S = 0.3


def _completing(
    ask: Callable[[Target, str], Awaitable[Iterable[tuple[str, str]]]]
) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """An `autocompletion` for Typer: what ``ask(target, incomplete)`` returns, (what to type, what it is) each."""
    async def asked(target: Target, incomplete: str) -> list[tuple[str, str]]:
        from anyio import fail_after

        with fail_after(COMPLETION_S):
            return list(await ask(target, incomplete))

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            return run(asked, resolve(given_so_far(ctx)), incomplete)
        except (alpo.AlpoError, Failed, TlsError, UsageProblem, OSError):  # TimeoutError too
            return []

    return complete


async def _ids(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        found = await log.status(COMPLETION_S / 2)  # what hangs is not waited for
        return [(str(row["id"]), row.get("address") or "") for row in found if row.get("id")]


async def _cursors(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        return [(cursor.name, f"LSN {cursor.lsn}") for cursor in await log.cursors()]


async def _clients(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        return [(one.client, f"last serial {one.last_serial}") for one in await log.sessions() if one.epoch]


async def _names(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    from .state_open import opened

    async with opened(target) as state:
        return [(name, "") for name in await state.names(incomplete)]


complete_ids = _completing(_ids)
complete_cursors = _completing(_cursors)
complete_clients = _completing(_clients)
complete_names = _completing(_names)
