"""Events of the servers, gathered from all that answer, in time order.

Laws:

* Every server keeps its own events by its own clock. The clocks are compared when the servers are asked; the times of a
  server whose clock is surely off are shifted to the median clock.
* A server that does not answer, or not to the end, is named, never silently left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import anyio

from alpo.client.arguments import need_datetime
from alpo.client.connection import Connection, Lost
from alpo.client.servers import Servers
from alpo.wire.requests import EventList, ListEvents, RequestRefused

from .status import members_of

PAGE = 1_000
#: Pages asked of one server at most: more events than a server keeps.
PAGES_MAX = 20
#: Clocks that differ by less are taken to be equal.
SHIFT_MS_MIN = 50
_TIME_MS_MAX = 253_402_300_799_999  # the year 9999


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
    """A server whose events are missing, or not complete; ``id`` is None where it is not known, ``why`` is for people.
    """

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


async def gather(servers: Servers, since: datetime | None, timeout_s: float) -> Events:
    """All events that the servers keep, or those from ``since`` on. Raises `Closed`."""
    servers.require_open()
    if since is not None:
        need_datetime(since=since)
    since_ms = 0 if since is None else int(since.timestamp() * 1000)
    give_up_s = anyio.current_time() + timeout_s
    members = await members_of(servers, timeout_s / 2)
    accounts = [Account() for _ in members]
    async with anyio.create_task_group() as tasks:
        for (_, address), account in zip(members, accounts, strict=True):
            tasks.start_soon(_ask, servers, address, account, since_ms, give_up_s - anyio.current_time())
    events = merged(accounts)
    silent = [
        Silent(id, address, account.problem)
        for (id, address), account in zip(members, accounts, strict=True) if account.problem
    ]
    told = [event for event in events if event.time_ms >= since_ms]
    return Events(told, silent)


async def newest(connection: Connection, count: int) -> Account:
    """The newest events of one server, at most `PAGE`. Raises `Lost`."""
    account = Account()
    account.problem = await _read(connection, account, 0, count, 1)
    return account


def merged(accounts: Iterable[Account]) -> list[ServerEvent]:
    """The events of all servers in time order, by the median clock."""
    telling = [account for account in accounts if account.rows]
    shifts = _shifts(telling)
    events = (_event(account.id, row, shifts.get(account.id, 0)) for account in telling for row in account.rows)
    return sorted(events, key=lambda event: event[:3])


async def _ask(servers: Servers, address: str, account: Account, since_ms: int, timeout_s: float) -> None:
    """Fill one server's account."""
    connection: Connection | None = None
    account.problem = f"{address} does not answer"
    with anyio.move_on_after(timeout_s):
        try:
            connection = await servers.lend(lambda: servers.dial(address, timeout_s))
            account.problem = await _read(connection, account, since_ms, PAGE, PAGES_MAX)
        except Lost as lost:
            account.problem = str(lost)
        finally:
            if connection is not None:
                servers.drop(connection)


async def _read(
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
