"""The status of every member, as it says itself.

Law: a member that does not answer has a row too, which says so.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, TypedDict, cast

import anyio

from alpo.client.connection import Connection, Lost
from alpo.client.servers import Servers
from alpo.dialling import Way, one_resolved
from alpo.wire.requests import Status, StatusAnswer


class PeerStatus(TypedDict):
    """Another server, as a member sees it; ``why`` says why it cannot be reached (None: it can)."""

    id: int
    reachable: bool
    why: str | None
    round_trip_ms: float | None


class AppendsStatus(TypedDict):
    """A leader's answer to whether appends work; ``why``: a sentence for each voter on which none can count now."""

    work: bool
    why: list[str]
    may_fail: int


class _Known(TypedDict):
    """The keys that every member's row has."""

    id: int | None
    address: str
    state: str | None
    status: str | None
    term: int | None
    leader: int | None
    last_id: int | None
    guaranteed_id: int | None
    fully_replicated_id: int | None
    first_lsn: int | None
    last_lsn: int | None
    reachable: bool


class MemberStatus(_Known, total=False):
    """A member's own account of itself; None for what is not known of a member that does not answer.

    The keys from ``version`` on are there if the member answers, as far as its version has them; ``problem`` says why
    it does not. docs/operations.md tells what each key means.
    """

    problem: str
    version: str
    cluster: str | None
    members: list[dict[str, Any]]
    incarnation: str
    timers_ms: list[float]
    peers: list[PeerStatus]
    waiting: list[str]
    problems: list[str]
    cleaned_id: int
    cleanable_id: int
    cleaning_waits: list[str]
    time_ms: int
    clock_ahead_ms: float
    clock_error_ms: float
    clients: int
    slowed: list[str]
    up_s: int
    payloads_per_s: int | None
    append_p50_ms: float | None
    append_p99_ms: float | None
    certificate_ends_s: float | None
    appends: AppendsStatus | None
    failures_tolerable: int | None
    wal_bytes: int
    commits: int
    commit_ms: float
    fsync_samples: int
    fsync_p50_ms: float | None
    fsync_p99_ms: float | None
    fsync_max_ms: float | None
    disk_bytes: int
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    disk_full_days: float | None
    growth_bytes_per_day: float | None
    file_free_bytes: int
    giving_back: bool
    scrubbed_id: int
    scrub_passes: int
    damaged: list[int]
    mended: int
    mended_ms: int | None
    compare_passes: int
    diverged: list[dict[str, Any]]
    room: str
    free_bytes: int
    low_water_bytes: int
    space: list[str]
    damage: list[str]
    divergence: list[str]


#: The keys that an unreachable member's row has too, with None for what is not known.
STATUS_KEYS = tuple(_Known.__annotations__)
STATUS_S = 2.0


async def status(servers: Servers, timeout_s: float) -> list[MemberStatus]:
    """Every member's own account of itself, ordered by id. Raises `Closed`.

    Members are those that any reachable server lists; if none is reachable, there is a row (id None) for each address
    that the user gave. A member that does not answer has ``reachable`` False, and None for what is not known.
    ``clock_ahead_ms``: by how much a member's clock is before ours, give or take ``clock_error_ms``. Servers that
    answer at an address given and are no members (they were removed or replaced, or wait to be added) come last.
    """
    servers.require_open()
    give_up_s = anyio.current_time() + timeout_s
    members = await members_of(servers, timeout_s / 2)  # the rest is for their own answers
    listed = {address for _, address in members}
    others: list[tuple[int | None, str]] = [(None, address) for address in servers.configured if address not in listed]
    rows: list[dict[str, Any]] = [dict.fromkeys(STATUS_KEYS) for _ in members + others]
    async with anyio.create_task_group() as tasks:
        for (id, address), row in zip(members + others, rows, strict=True):
            row.update(id=id, address=address, reachable=False)
            tasks.start_soon(_status_of, servers, address, row, give_up_s)
    found, known = rows[: len(members)], {(row["id"], row.get("incarnation")) for row in rows[: len(members)]}
    outside = [row for row in rows[len(members) :] if row["reachable"]]
    found += [row for row in outside if (row["id"], row.get("incarnation")) not in known]
    return cast(list[MemberStatus], found)


async def members_of(servers: Servers, timeout_s: float) -> list[tuple[int | None, str]]:
    """(id, address) of every member, as one reachable server lists them; if none is reachable, (None, address) of
    those given. ``timeout_s``: for a name to be resolved; after that `STATUS_S` at most."""
    with anyio.move_on_after(timeout_s) as whole:
        await one_resolved(servers.candidates)
        whole.deadline = min(whole.deadline, anyio.current_time() + STATUS_S)
        with suppress(Lost):
            servers.give_back(await servers.any(None))
    return [*sorted(servers.members.items())] or [(None, address) for address in servers.candidates]


async def _status_of(servers: Servers, address: str, row: dict[str, Any], give_up_s: float) -> None:
    """Fill one server's row, by this time of the loop's clock; each step but the name's has `STATUS_S` at most."""
    connection: Connection | None = None
    row["problem"] = f"{address} does not answer"
    left_s = give_up_s - anyio.current_time()
    if left_s <= 0:
        return
    try:
        way = Way(address, name_s=left_s, tcp_s=min(left_s, STATUS_S), answer_s=min(left_s, STATUS_S))
        connection = await servers.lend(lambda: servers.dial(address, left_s, way))
        with anyio.move_on_after(min(give_up_s - anyio.current_time(), STATUS_S)):
            told = await account(connection)
            row.update(told or {"problem": f"{address} gives no account of itself"})
            if told:
                del row["problem"]
    except Lost as lost:
        row["problem"] = str(lost)
    finally:
        if connection is not None:
            servers.drop(connection)


async def account(connection: Connection) -> dict[str, Any]:
    """The account that a server gives of itself, with how far its clock is ahead of ours; {} if it gives none. Raises
    `Lost`."""
    asked_s, asked_ms = anyio.current_time(), time.time() * 1000
    answer = await connection.ask(Status)
    if not isinstance(answer, StatusAnswer):
        return {}
    told = {**answer.fields, "reachable": True}
    error_ms = (anyio.current_time() - asked_s) * 500
    if type(told.get("time_ms")) is int:
        told["clock_ahead_ms"] = round(told["time_ms"] - asked_ms - error_ms, 1)
        told["clock_error_ms"] = round(error_ms, 1)
    return told
