"""Accounts that servers give of themselves: the status of every member, and the events of all servers.

Laws:

* A member that does not answer has a row of status too, which says so. A server whose events are missing, or not
  complete, is named, never silently left out.
* Every server keeps its own events by its own clock. The clocks are compared when the servers are asked; the times of a
  server whose clock is surely off are shifted to the median clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast

import anyio

from alpo.client.arguments import need_datetime
from alpo.client.connection import Connection, Lost
from alpo.client.servers import Servers
from alpo.dialling import Way, one_resolved
from alpo.wire.requests import EventList, ListEvents, RequestRefused, Status, StatusAnswer

from .asking import Asking

#: The most events that one page has.
PAGE = 1_000
#: Pages asked of one server at most: more events than a server keeps.
PAGES_MAX = 20
#: Clocks that differ by less are taken to be equal.
SHIFT_MS_MIN = 50
_TIME_MS_MAX = 253_402_300_799_999  # the year 9999


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


class LogStatus(TypedDict, total=False):
    """A log as it stands on a server: the keys up to ``why`` are always there, the others if it runs there. ``behind``:
    ids of the members that lack entries, as the log's leader knows; None from all others."""

    number: int
    name: str
    state: str
    why: str | None
    leader: int | None
    term: int
    first_lsn: int
    last_lsn: int
    bytes: int | None
    behind: list[int] | None


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
    logs: list[LogStatus]
    live_bytes: int
    divergence: list[str]


#: The keys that an unreachable member's row has too, with None for what is not known.
STATUS_KEYS = tuple(_Known.__annotations__)
STATUS_S = 2.0


class ServerEvent(NamedTuple):
    """An event of server ``server``, the ``number``-th that it kept.

    ``time_ms``: since 1970, UTC, by the server's clock less ``shifted_ms``. ``fields``: what the event is about, by
    name.
    """

    time_ms: int
    server: int
    number: int
    name: str
    fields: dict[str, Any]
    shifted_ms: int = 0


class Silent(NamedTuple):
    """A server whose events are missing, or incomplete; ``id`` is None where it is not known, ``why`` is for people."""

    id: int | None
    address: str
    why: str


class Events(NamedTuple):
    """Events in time order, and the servers whose events are missing or incomplete."""

    events: list[ServerEvent]
    silent: list[Silent]


@dataclass
class Account:
    """The events that one server returned. ``ahead_ms``: by how much its clock is before ours, give or take
    ``error_ms``; ``problem``: the reason why its events are not complete, or ""."""

    id: int = 0
    ahead_ms: float = 0.0
    error_ms: float = 0.0
    rows: list[tuple[int, int, str, str]] = field(default_factory=list)
    problem: str = "no answer"


class StatusCalls(Asking):
    """The calls of a `Log` that ask every server about itself."""

    async def status(self, timeout_s: float | None = None) -> list[MemberStatus]:
        """Every member's own account of itself, ordered by id.

        A member that does not answer within 2 s has a row too: ``reachable`` is False, what is not known is None. If
        no server answers, the rows are those of the addresses given (``id`` None). Servers at those addresses that
        answer and are no members come last.
        """
        servers, seconds = self._servers, self._seconds(timeout_s)
        give_up_s = anyio.current_time() + seconds
        members = await members_of(servers, seconds / 2)  # the rest is for their own answers
        listed = {address for _, address in members}
        asked = [*members, *((None, address) for address in servers.configured if address not in listed)]
        rows: list[dict[str, Any]] = [dict.fromkeys(STATUS_KEYS) for _ in asked]
        async with anyio.create_task_group() as tasks:
            for (id, address), row in zip(asked, rows, strict=True):
                row.update(id=id, address=address, reachable=False)
                tasks.start_soon(_status_of, servers, address, row, give_up_s)
        found, known = rows[: len(members)], {(row["id"], row.get("incarnation")) for row in rows[: len(members)]}
        outside = [row for row in rows[len(members) :] if row["reachable"]]
        found += [row for row in outside if (row["id"], row.get("incarnation")) not in known]
        return cast(list[MemberStatus], found)

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        """Events of all servers, elections above all, in time order: all that they keep, or from ``since`` on.

        Servers that do not answer are listed in ``silent``.
        """
        servers, seconds = self._servers, self._seconds(timeout_s)
        if since is not None:
            need_datetime(since=since)
        since_ms = 0 if since is None else int(since.timestamp() * 1000)
        give_up_s = anyio.current_time() + seconds
        members = await members_of(servers, seconds / 2)
        accounts = [Account() for _ in members]
        async with anyio.create_task_group() as tasks:
            for (_, address), account in zip(members, accounts, strict=True):
                tasks.start_soon(_events_of, servers, address, account, since_ms, give_up_s - anyio.current_time())
        silent = [
            Silent(id, address, account.problem)
            for (id, address), account in zip(members, accounts, strict=True) if account.problem
        ]
        return Events([event for event in merged(accounts) if event.time_ms >= since_ms], silent)


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


async def newest(connection: Connection, count: int) -> Account:
    """The newest events of one server, at most `PAGE`. Raises `Lost`."""
    account = Account()
    account.problem = await _read_events(connection, account, 0, count, 1)
    return account


def merged(accounts: Iterable[Account]) -> list[ServerEvent]:
    """The events of all servers in time order, by the median clock."""
    telling = [account for account in accounts if account.rows]
    shifts = _shifts(telling)
    events = (_event(account.id, row, shifts.get(account.id, 0)) for account in telling for row in account.rows)
    return sorted(events, key=lambda event: event[:3])


async def _events_of(servers: Servers, address: str, account: Account, since_ms: int, timeout_s: float) -> None:
    """Fill one server's account."""
    connection: Connection | None = None
    account.problem = f"{address} does not answer"
    with anyio.move_on_after(timeout_s):
        try:
            connection = await servers.lend(lambda: servers.dial(address, timeout_s))
            account.problem = await _read_events(connection, account, since_ms, PAGE, PAGES_MAX)
        except Lost as lost:
            account.problem = str(lost)
        finally:
            if connection is not None:
                servers.drop(connection)


async def _read_events(
    connection: Connection, account: Account, since_ms: int, count: int, pages: int
) -> str:
    """Read one server's events page by page, newest first; returns "" once all are there, else what is the matter."""
    before = 0
    for page in range(pages):
        asked_s, asked_ms = anyio.current_time(), time.time() * 1000
        answer = await connection.ask(partial(ListEvents, before=before, count=count))
        if not isinstance(answer, EventList):
            return answer.detail if isinstance(answer, RequestRefused) and answer.detail else "it keeps no events"
        if page == 0:
            account.id = answer.id
            account.error_ms = (anyio.current_time() - asked_s) * 500
            account.ahead_ms = answer.time_ms - asked_ms - account.error_ms
        rows = [row for row in answer.rows if not before or row[0] < before]
        account.rows[:0] = rows
        if not rows or rows[0][1] < since_ms or rows[0][0] <= 1:
            return ""
        before = rows[0][0]
    return ""


def _shifts(accounts: list[Account]) -> dict[int, int]:
    """Server id -> ms by which its times are to be shifted back, for the servers whose clock is surely off."""
    if not accounts:
        return {}
    from statistics import median  # takes long to import, and most commands ask for no events

    middle_ms = median(account.ahead_ms for account in accounts)
    doubt_ms = max(account.error_ms for account in accounts)
    return {
        account.id: round(account.ahead_ms - middle_ms) for account in accounts
        if abs(account.ahead_ms - middle_ms) > max(SHIFT_MS_MIN, account.error_ms + doubt_ms)
    }


def _event(server: int, row: tuple[int, int, str, str], shift_ms: int) -> ServerEvent:
    number, time_ms, name, text = row
    try:
        fields = json.loads(text)
    except ValueError:  # a damaged row must not hide the others
        fields = {}
    told = fields if isinstance(fields, dict) else {}
    return ServerEvent(min(max(time_ms - shift_ms, 0), _TIME_MS_MAX), server, number, name, told, shift_ms)
