"""The servers that a client knows of, and finding the one it needs.

Laws:

* Every address ever told by a hello is a candidate, besides those configured; the configured ones stay.
* The cluster is pinned by the first server that names one: a server of another cluster is never used again.
* A server counts as the leader only if it said so of itself, in a hello of this moment.
* All tries are bounded in time, and in number by a pause that grows while nobody leads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import anyio

from alpo.errors import AlpoError, Unavailable
from alpo.wire.requests import ServerHello

from .connection import Connection, Lost, split_address

DIAL_S = 1.0
#: How long the others wait for the likeliest server to answer first.
HEAD_START_S = 0.03
#: The pause between rounds of asking who leads: short while an election may be under way, longer after.
PAUSE_FIRST_S, PAUSE_ELECTION_S, PAUSE_MAX_S = 0.01, 0.04, 0.25
ELECTION_S = 3.0
IDLE_MAX = 4
CANDIDATES_MAX = 64


def parse_servers(servers: str | Sequence[str]) -> list[str]:
    """Addresses of "HOST:PORT,HOST:PORT" or a list. Raises ValueError."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise ValueError("no servers are given: HOST:PORT,HOST:PORT,…")
    for address in addresses:
        split_address(address)
    return addresses


class Servers:
    """What is known of a cluster's servers, and the connections to them."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._configured = list(addresses)
        #: id -> address, as the last hello told.
        self.members: dict[int, str] = {}
        #: Where the leader is thought to be.
        self.hint: str | None = self._configured[0]
        #: Why the last server that was tried would not do.
        self.reason: AlpoError | None = None
        self._cluster = b""
        self._idle: list[Connection] = []
        self._open: dict[int, Connection] = {}

    @property
    def candidates(self) -> list[str]:
        """All addresses known, the likeliest leader first."""
        hint = [self.hint] if self.hint is not None else []
        return list(dict.fromkeys([*hint, *self._configured, *self.members.values()]))[:CANDIDATES_MAX]

    async def dial(self, address: str, timeout_s: float = DIAL_S) -> Connection:
        """Connect to one server and learn what its hello tells. Raises `Lost`."""
        try:
            connection = await Connection.open(address, self._cluster, timeout_s)
        except Lost as lost:
            self.reason = lost.reason
            raise
        self._learn(connection.hello)
        self._open[id(connection)] = connection
        return connection

    def _learn(self, hello: ServerHello) -> None:
        if hello.cluster and not self._cluster:
            self._cluster = hello.cluster
        if hello.members:
            self.members = {member: address for member, address in hello.members if _valid(address)}

    def drop(self, connection: Connection) -> None:
        """Close a connection for good."""
        self._open.pop(id(connection), None)
        connection.close()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection on which nothing is under way for the next who needs one."""
        if connection.closed or len(self._idle) >= IDLE_MAX:
            self.drop(connection)
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close every connection."""
        self._idle.clear()
        for connection in list(self._open.values()):
            self.drop(connection)

    async def leader(self, fresh: bool = True) -> Connection:
        """A connection to the leader; tries until there is one. ``fresh``: not one used before."""
        idle = None if fresh else self._take_idle(lambda c: c.leads)
        if idle is not None:
            return idle
        began_s = anyio.current_time()
        pause_s = PAUSE_FIRST_S
        while True:
            found = await self.find_leader()
            if found is not None:
                return found
            await anyio.sleep(pause_s * random.uniform(0.75, 1.25))
            outage = anyio.current_time() - began_s > ELECTION_S
            pause_s = min(pause_s * 2, PAUSE_MAX_S if outage else PAUSE_ELECTION_S)

    async def find_leader(self) -> Connection | None:
        """Ask every server once, the likeliest with a head start; a connection to the one that leads, or None."""
        round_ = _Round(self)
        try:
            await round_.run()
        except BaseException:
            if round_.found is not None:
                self.drop(round_.found)
            raise
        if round_.found is not None:
            self.hint = round_.found.address
        return round_.found

    async def any(self, server: int | None, avoid: str | None = None) -> Connection:
        """A connection to server ``server``, or to whichever answers first, ``avoid`` last. Raises `Lost`."""
        idle = self._take_idle(lambda c: c.hello.id == server if server is not None else c.address != avoid)
        if idle is not None:
            return idle
        if server is None:
            candidates = sorted(self.candidates, key=lambda address: address == avoid)
            return await self._first_of(candidates, None)
        if server in self.members:
            connection = await self.dial(self.members[server])
            if connection.hello.id == server:
                return connection
            self.drop(connection)
        return await self._first_of(self.candidates, server)

    async def _first_of(self, candidates: list[str], server: int | None) -> Connection:
        for address in candidates:
            try:
                connection = await self.dial(address)
            except Lost:
                continue
            if server is None or connection.hello.id == server:
                return connection
            self.drop(connection)
            target = self.members.get(server)
            if target is not None and target not in candidates:
                return await self.dial(target)
        if server is None:
            raise Lost(self.reason or Unavailable("no server answers"))
        if self.members and server not in self.members:
            raise Lost(Unavailable(f"the cluster has no server {server}"))
        raise Lost(self.reason or Unavailable(f"server {server} does not answer"))

    def _take_idle(self, fits: Callable[[Connection], bool]) -> Connection | None:
        for at, connection in enumerate(self._idle):
            if fits(connection):
                return self._idle.pop(at)
        return None


class _Round:
    """One round of asking every server who leads."""

    def __init__(self, servers: Servers) -> None:
        self.found: Connection | None = None
        self._servers = servers
        self._asked: list[str] = []
        self._hurry = anyio.Event()

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            for address in self._servers.candidates:
                self._ask(address, wait=address != self._servers.hint)
            if self._servers.hint is None:
                self._hurry.set()

    def _ask(self, address: str, wait: bool) -> None:
        self._asked.append(address)
        self._tasks.start_soon(self._probe, address, wait)

    async def _probe(self, address: str, wait: bool) -> None:
        if wait:
            with anyio.move_on_after(HEAD_START_S):
                await self._hurry.wait()
        try:
            connection = await self._servers.dial(address)
        except Lost:
            self._hurry.set()
            return
        if connection.leads and self.found is None:
            self.found = connection
            self._tasks.cancel_scope.cancel()
            return
        self._servers.drop(connection)
        leader = self._servers.members.get(connection.hello.leader)
        if leader is None:
            self._servers.reason = Unavailable(f"{address} knows no leader")
        elif leader not in self._asked:
            self._ask(leader, wait=False)
        self._hurry.set()


def _valid(address: str) -> bool:
    try:
        split_address(address)
    except ValueError:
        return False
    return True
