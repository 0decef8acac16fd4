"""What the jobs ask of a cluster itself: who its members are, what readers still need, and to trim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import anyio

from alpo.client.log import Log, connect
from alpo.errors import AlpoError

from ..origin import SourceError

T = TypeVar("T")


class Member(NamedTuple):
    """``id`` is None for an address at which nobody says who it is; 0 and "" for what is not known."""

    id: int | None
    address: str
    reachable: bool
    votes: bool
    cluster: str
    guaranteed_id: int
    first_lsn: int
    last_lsn: int


def members_of(servers: tuple[str, ...], timeout_s: float) -> list[Member]:
    """Every member's account of itself. Raises `SourceError` if none answers, or they are of several clusters."""
    rows = _ask(servers, timeout_s, lambda log: log.status())
    members = [_member(dict(row)) for row in rows]
    clusters = {member.cluster for member in members if member.reachable}
    if not clusters:
        raise SourceError(f"no server of {','.join(servers)} answers within {timeout_s:g} s")
    if len(clusters) > 1:
        raise SourceError(f"{','.join(servers)} are of several clusters: {', '.join(sorted(clusters))}")
    return members


def _member(row: dict[str, Any]) -> Member:
    return Member(
        row["id"], row["address"], row["reachable"], row["status"] == "VOTING", row.get("cluster") or "",
        row["guaranteed_id"] or 0, row["first_lsn"] or 0, row["last_lsn"] or 0,
    )


def slowest_cursor(servers: tuple[str, ...], timeout_s: float) -> tuple[str, int] | None:
    """Name and LSN of the cursor that is furthest behind. Raises `SourceError`."""
    found = _ask(servers, timeout_s, lambda log: log.cursors())
    return min(((one.name, one.lsn) for one in found), key=lambda one: one[1], default=None)


def trim(servers: tuple[str, ...], before_lsn: int, timeout_s: float) -> int:
    """The first LSN that is served from now on. Raises `SourceError`."""
    return _ask(servers, timeout_s, lambda log: log.trim(before_lsn))


def _ask(servers: tuple[str, ...], timeout_s: float, what: Callable[[Log], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with connect(servers, timeout_s=timeout_s) as log:
            return await what(log)

    try:
        return anyio.run(ask, backend="trio")
    except AlpoError as error:
        raise SourceError(f"the cluster at {','.join(servers)}: {error}") from error
