"""The servers of a cluster, asked again and again, each by itself.

Laws:

* A server has `ASK_S` to answer; one that takes longer delays no other, and is asked anew in the next round. The way to
  it may take `REACH_S`: a round is shown without it meanwhile.
* A connection stays as long as it answers: a round costs a server one message each way.
* The members are those that the leader lists, or whoever knows of the highest term; of the other addresses that the
  user gave, those that answer are shown too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from alpo.addresses import AddressError, parse_address
from alpo.client.connection import Connection, Lost
from alpo.client.operator.status import Account, account, merged, newest
from alpo.client.servers import CANDIDATES_MAX, Servers, given_tls
from alpo.dialling import Way
from alpo.standing import sound

from .sight import Mark, Seen, Sight

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

ASK_S = 1.0
#: Seconds for each step of the way to a server.
REACH_S = 10.0
#: Marks kept, one a round.
MARKS_MAX = 300
#: Newest events asked of each server.
EVENTS = 100


@dataclass
class _Server:
    """One address. ``since_s``: when it last answered, or was first asked; ``told``: its last answer, ``known``: as far
    as that is sound; ``well``: it answered when last asked."""

    address: str
    since_s: float
    told: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    well: bool = False
    problem: str = ""
    way: Way | None = None
    id: int | None = None
    connection: Connection | None = None
    events: Account | None = None


class Watch:
    """Knowledge of a cluster's servers, renewed by every round. Made by `watching`."""

    def __init__(self, addresses: Sequence[str], servers: Servers, tasks: TaskGroup) -> None:
        #: True while each server is asked for its events too.
        self.want_events = False
        self._given = list(addresses)
        self._servers = servers
        self._tasks = tasks
        self._known: dict[str, _Server] = {}
        self._members: dict[str, int] = {}
        self._asking: set[str] = set()
        self._answered = anyio.Event()
        self._marks: deque[Mark] = deque(maxlen=MARKS_MAX)

    async def round(self, within_s: float) -> None:
        """Ask every server that is not still being asked; returns once all have answered, or after ``within_s``."""
        self._ask_all()
        with anyio.move_on_after(within_s):
            while self._asking:
                self._answered = anyio.Event()
                await self._answered.wait()
        for server in self._known.values():
            if server.way is not None:
                server.well, server.problem = False, server.way.late()
        self._mark()

    def _ask_all(self) -> None:
        for address in list(dict.fromkeys([*self._members, *self._given]))[:CANDIDATES_MAX]:
            server = self._known.setdefault(address, _Server(address, anyio.current_time()))
            if address not in self._asking:
                self._asking.add(address)
                self._tasks.start_soon(self._ask, server)

    async def _ask(self, server: _Server) -> None:
        told: dict[str, Any] = {}
        whole, problem = False, "no answer within a second"
        try:
            await self._reach(server)
            with anyio.move_on_after(ASK_S):
                told = await self._account(server)
                problem = "" if told else "it gives no account of itself"
                if not self.want_events or server.connection is None:
                    server.events = None
                else:
                    server.events = await newest(server.connection, EVENTS)
                whole = True
        except Lost as lost:
            problem = str(lost)
        if not whole:
            self._drop(server)
        if told:
            server.told, server.known, server.since_s = told, sound(told), anyio.current_time()
            server.id = server.known.get("id", server.id)
        server.well, server.problem = bool(told), "" if told else problem
        self._asking.discard(server.address)
        self._learn()
        self._answered.set()

    async def _reach(self, server: _Server) -> None:
        """Connect to the server, if there is no connection. Raises `Lost`."""
        if server.connection is not None:
            return
        server.way = Way(server.address, name_s=REACH_S, tcp_s=REACH_S, answer_s=REACH_S)
        try:
            server.connection = await self._servers.dial(server.address, way=server.way)
        finally:
            server.way = None

    async def _account(self, server: _Server) -> dict[str, Any]:
        """Ask on the connection that is there; if that has ended, once more on a new one. Raises `Lost`."""
        if server.connection is not None:
            try:
                return await account(server.connection)
            except Lost:
                self._drop(server)
        await self._reach(server)
        assert server.connection is not None
        return await account(server.connection)

    def _drop(self, server: _Server) -> None:
        if server.connection is not None:
            self._servers.drop(server.connection)
            server.connection = None

    def _learn(self) -> None:
        """Take over the member list, and ask members that were not known."""
        told = [server.known for server in self._known.values() if server.well and server.known.get("members")]
        if not told:
            return
        best = max(told, key=lambda fields: (fields.get("term", 0), fields.get("state") == "leader"))
        members = {each["address"]: each["id"] for each in best["members"]
                   if each.get("role") != "GONE" and _valid(each.get("address", ""))}
        if members != self._members:
            new = members.keys() - self._known.keys()
            self._members = members
            for address in self._known.keys() - members.keys() - set(self._given) - self._asking:
                self._drop(self._known.pop(address))
            if new:
                self._ask_all()

    def _mark(self) -> None:
        """Note how far the log goes, once for each new answer."""
        well = [server for server in self._known.values() if server.well and "last_lsn" in server.known]
        if not well:
            return
        farthest = max(well, key=lambda server: (server.known["last_lsn"], server.since_s))
        if not self._marks or farthest.since_s > self._marks[-1].at_s:
            guaranteed_id = max(server.known.get("guaranteed_id", 0) for server in well)
            self._marks.append(Mark(farthest.since_s, farthest.known["last_lsn"], guaranteed_id))

    def sight(self) -> Sight:
        """The cluster as it is known now."""
        now_s = anyio.current_time()
        shown = self._shown()
        seen = [(self._seen(server, now_s), server.events) for server in shown]
        seen.sort(key=lambda each: (not each[0].member, each[0].id is None, each[0].id or 0))
        accounts = [told for _, told in seen if told is not None]
        events = merged(accounts) if accounts else None
        silent = [(one.name, why) for one, told in seen if (why := one.problem or (told.problem if told else ""))]
        servers = tuple(one for one, _ in seen)
        return Sight(datetime.now(UTC), now_s, servers, tuple(self._marks), events, silent if accounts else ())

    def _shown(self) -> list[_Server]:
        """Members, and others that answer at an address given; while no member is known, every address given."""
        shown = [server for address in self._members if (server := self._known.get(address)) is not None]
        known = {_disk(server) for server in shown}
        for address in self._given:
            server = self._known.get(address)
            if server is None or address in self._members:
                continue
            if not self._members or (server.well and _disk(server) not in known):
                shown.append(server)
        return shown

    def _seen(self, server: _Server, now_s: float) -> Seen:
        silent_s = None if server.well else now_s - server.since_s
        member = not self._members or server.address in self._members
        id = self._members.get(server.address, server.id)
        return Seen(id, server.address, server.told, silent_s, server.problem, member)


def _disk(server: _Server) -> tuple[int | None, str | None]:
    """The id and the incarnation of the server at an address: one server may be at several."""
    return server.id, server.known.get("incarnation")


def _valid(address: str) -> bool:
    try:
        parse_address(address)
    except AddressError:
        return False
    return True


@asynccontextmanager
async def watching(addresses: Sequence[str]) -> AsyncIterator[Watch]:
    """Begin to watch the cluster of these servers. Raises TlsError."""
    servers = Servers(addresses, tls=given_tls(None))
    try:
        async with anyio.create_task_group() as tasks:
            yield Watch(addresses, servers, tasks)
            tasks.cancel_scope.cancel()
    finally:
        servers.close()
