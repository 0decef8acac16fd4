"""Requests of the jobs to a cluster: its members, its slowest cursor, and to trim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import anyio

from alpo.client.log import Log, connect
from alpo.client.operator.status import MemberStatus
from alpo.errors import AlpoError

from ..origin import SourceError

T = TypeVar("T")

#: Seconds until servers are asked again of which none answered.
_PAUSE_S = 0.25


class Member(NamedTuple):
    """A member's status. ``id`` is None for an address where no server answers; 0 and "" if unknown. ``problem``: the
    reason why it does not answer."""

    id: int | None
    address: str
    reachable: bool
    votes: bool
    cluster: str
    guaranteed_id: int
    first_lsn: int
    last_lsn: int
    problem: str = ""


def members_of(servers: tuple[str, ...], timeout_s: float) -> list[Member]:
    """The status of every member. Raises `SourceError` if none answers in time, or they belong to several clusters."""
    async def ask(log: Log) -> list[MemberStatus]:
        until_s = anyio.current_time() + timeout_s
        while True:
            rows = await log.status()
            if any(row["reachable"] for row in rows) or anyio.current_time() >= until_s:
                return rows
            await anyio.sleep(_PAUSE_S)

    members = [_member(dict(row)) for row in _ask(servers, timeout_s, ask)]
    clusters = {member.cluster for member in members if member.reachable}
    if not clusters:
        why = "; ".join(dict.fromkeys(member.problem for member in members))
        raise SourceError(f"no server of {','.join(servers)} answers within {timeout_s:g} s: {why}")
    if len(clusters) > 1:
        raise SourceError(f"{','.join(servers)} are of several clusters: {', '.join(sorted(clusters))}")
    return members


def _member(row: dict[str, Any]) -> Member:
    return Member(
        row["id"], row["address"], row["reachable"], row["status"] == "VOTING", row.get("cluster") or "",
        row["guaranteed_id"] or 0, row["first_lsn"] or 0, row["last_lsn"] or 0, row.get("problem") or "",
    )


def slowest_cursor(servers: tuple[str, ...], timeout_s: float) -> tuple[str, int] | None:
    """Name and LSN of the cursor furthest behind; None without cursors. Raises `SourceError`."""
    found = _ask(servers, timeout_s, lambda log: log.cursors())
    return min(((one.name, one.lsn) for one in found), key=lambda one: one[1], default=None)


def trim(servers: tuple[str, ...], before_lsn: int, timeout_s: float) -> int:
    """Trim the log; returns the first LSN that is now served. Raises `SourceError`."""
    return _ask(servers, timeout_s, lambda log: log.trim(before_lsn))


def _ask(servers: tuple[str, ...], timeout_s: float, what: Callable[[Log], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with connect(servers, timeout_s=timeout_s) as log:
            return await what(log)

    try:
        return anyio.run(ask, backend="trio")
    except AlpoError as error:
        raise SourceError(f"the cluster at {','.join(servers)}: {error}") from error
