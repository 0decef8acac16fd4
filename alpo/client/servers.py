"""The servers that a client knows of, and finding the one it needs.

Laws:

* Every address ever told by a hello is a candidate, besides those configured; the configured ones stay.
* The cluster is pinned by the first server that names one: a server of another cluster is never used again.
* A server counts as the leader only if it said so of itself, in a hello of this moment.
* All tries are bounded in time, and in number by a pause that grows while nobody leads, and as servers take longer to
  answer: clients without a leader must not keep servers, or what is on the way to them, too busy to elect one.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import anyio

from alpo.addresses import SERVER_DEFAULT, parse_address, parse_servers
from alpo.errors import AlpoError, Closed, Unavailable
from alpo.secure import Trust
from alpo.tls import Tls, tls_given
from alpo.wire.requests import ServerHello, Status, StatusAnswer

from .arguments import need_servers
from .connection import Connection, Lost
from .reasons import Reasons
from .tasks import FORKED_WHY, watch_forks

DIAL_S = 1.0
#: Seconds that the likeliest server has to answer before the others are asked.
HEAD_START_S = 0.03
#: The pause between rounds of asking who leads: short while an election may be under way, longer after.
PAUSE_FIRST_S, PAUSE_ELECTION_S, PAUSE_MAX_S = 0.01, 0.04, 0.25
ELECTION_S = 3.0
#: A pause is at least so many times as long as the quickest server took to answer; for this reason at most so long.
BUSY_TIMES, PAUSE_BUSY_MAX_S = 4, 2.0
IDLE_MAX = 4
CANDIDATES_MAX = 64
_CLOSED = "this Log is closed"

#: The type of `Connection.open`: (address, cluster, seconds) -> a connection. Raises `Lost`.
Open: TypeAlias = Callable[[str, bytes, float], Awaitable[Connection]]


def given_servers(servers: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses to begin with; None: those of ALPO_SERVERS, else 127.0.0.1:7100. Raises TypeError, ValueError."""
    if servers is None:
        servers = os.environ.get("ALPO_SERVERS", "").strip() or SERVER_DEFAULT
    need_servers(servers)
    return parse_servers(servers)


def given_tls(tls: Tls | None) -> Tls | None:
    """Certificates to show and trust; None: those of the environment, if it names any. Raises TypeError, ValueError."""
    if tls is not None and not isinstance(tls, Tls):
        raise TypeError(f"tls is an alpo.Tls, not {type(tls).__name__}")
    return tls or tls_given(os.environ)


class NoSuchServer(Lost):
    """The error for a server that is no member, as all servers that answer say: trying again is of no use."""

    def __init__(self, id: int) -> None:
        super().__init__(Unavailable(f"the cluster has no server {id}"))


class Servers:
    """The known servers of a cluster, and the connections to them."""

    def __init__(
        self, addresses: Sequence[str], open_connection: Open = Connection.open, rng: random.Random | None = None,
        cluster: bytes = b"", tls: Tls | None = None,
    ) -> None:
        """``cluster``: the only one whose servers will do; b"": that of the first server that names one. Raises
        `alpo.errors.TlsError` if the files of ``tls`` are wrong."""
        if tls is not None:
            open_connection = functools.partial(Connection.open, trust=Trust(tls))
        self._open_connection = open_connection
        #: The source of every random pause, id and nonce of this client.
        self.rng = rng or random.SystemRandom()
        self._configured = list(addresses)
        #: id -> address, as the last hello told.
        self.members: dict[int, str] = {}
        #: The address where the leader is thought to be.
        self.hint: str | None = self._configured[0]
        self.reasons = Reasons()
        #: Reason why nothing is dialled any more; "" until closed.
        self._over = ""
        #: True in a forked child: the connections are the parent's.
        self.inherited = False
        self._cluster = cluster
        self._idle: list[Connection] = []
        self._open: dict[int, Connection] = {}
        #: Seconds that the last try took, by address.
        self._took_s: dict[str, float] = {}
        watch_forks(self)

    @property
    def cluster(self) -> bytes:
        """The id of the only cluster whose servers will do; b"" until a server has named one."""
        return self._cluster

    @property
    def reason(self) -> AlpoError | None:
        """The reason why no server would do, the most telling one first; None if nothing is the matter."""
        return self.reasons.told

    @property
    def configured(self) -> list[str]:
        """The addresses that the user gave."""
        return self._configured

    @property
    def candidates(self) -> list[str]:
        """All addresses known, the likeliest leader first."""
        hint = [self.hint] if self.hint is not None and _valid(self.hint) else []
        return list(dict.fromkeys([*hint, *self._configured, *self.members.values()]))[:CANDIDATES_MAX]

    async def dial(self, address: str, timeout_s: float = DIAL_S) -> Connection:
        """A new connection to one server; what its hello tells is noted. Raises `Lost`."""
        self._hold_open()
        began_s = anyio.current_time()
        try:
            connection = await self._open_connection(address, self._cluster, timeout_s)
        except Lost as lost:
            self.reasons.lost(address, lost.reason)
            raise
        finally:
            self._took_s[address] = anyio.current_time() - began_s
            if len(self._took_s) > CANDIDATES_MAX:
                del self._took_s[next(iter(self._took_s))]
        if self.closed:
            connection.close()
            self._hold_open()
        self._learn(connection.hello)
        self._open[id(connection)] = connection
        return connection

    @property
    def busy_pause_s(self) -> float:
        """The shortest pause before servers are asked anew, in seconds: long if all of them took long to answer."""
        return min(BUSY_TIMES * min(self._took_s.values(), default=0.0), PAUSE_BUSY_MAX_S)

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
        """Keep an idle connection for the next request."""
        if connection.closed or len(self._idle) >= IDLE_MAX:
            self.drop(connection)
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close every connection, for good."""
        self._over = self._over or _CLOSED
        self._idle.clear()
        for connection in list(self._open.values()):
            self.drop(connection)

    def forked(self) -> None:
        """Forget all connections in a forked child: they are the parent's, which goes on with them."""
        self._over, self.inherited = FORKED_WHY, True
        for connection in list(self._open.values()):
            connection.abandon()
        self._idle.clear()
        self._open.clear()

    @property
    def closed(self) -> bool:
        """True once closed, here or in the process that this one was forked from."""
        return bool(self._over)

    def require_open(self) -> None:
        """Raises `Closed` once closed."""
        if self._over:
            raise Closed(self._over)

    def require_here(self) -> None:
        """Raises `Closed` in a forked child of the process that this belongs to."""
        if self.inherited:
            raise Closed(self._over)

    def _hold_open(self) -> None:
        """Raises `Lost` once closed, where `require_open` raises `Closed`."""
        if self._over:
            raise Lost(Closed(self._over))

    async def leader(self, fresh: bool = True) -> Connection:
        """A connection to the leader; tries until there is one. Raises `Lost` once closed.

        ``fresh``: not a connection that was used before.
        """
        idle = None if fresh else self._take_idle(lambda c: c.leads)
        if idle is not None:
            return idle
        began_s = anyio.current_time()
        pause_s = PAUSE_FIRST_S
        while True:
            self._hold_open()
            found = await self.find_leader()
            if found is not None:
                return found
            await anyio.sleep(max(pause_s, self.busy_pause_s) * self.rng.uniform(0.75, 1.25))
            outage = anyio.current_time() - began_s > ELECTION_S
            pause_s = min(pause_s * 2, PAUSE_MAX_S if outage else PAUSE_ELECTION_S)

    async def find_leader(self) -> Connection | None:
        """Ask every server once, the likeliest leader with a head start; a connection to the one that leads, or None.
        """
        round_ = _Round(
            self, lambda c: c.leads, lambda c: c.hello.leader, "knows no leader", "takes server {} for the leader"
        )
        found = await round_.run(self.candidates, self.hint)
        if found is not None:
            self.hint = found.address
        else:
            self.reasons.counted(len(round_.answering & self.members.keys()), len(self.members))
        return found

    async def any(self, server: int | None, avoid: str | None = None) -> Connection:
        """A connection to server ``server``, or to the first that answers (None), at address ``avoid`` last. Raises
        `Lost`; `NoSuchServer` for a server that is no member."""
        idle = self._take_idle(lambda c: c.hello.id == server if server is not None else c.address != avoid)
        if idle is not None:
            return idle
        if server is not None:
            return await self._server(server)
        others = [address for address in self.candidates if address != avoid]
        found = await _Round(self, lambda c: True).run(others, next(iter(others), None))
        if found is None and avoid is not None:
            return await self.dial(avoid)
        if found is None:
            raise Lost(self.reason or Unavailable("no server answers"))
        return found

    async def _server(self, id: int) -> Connection:
        """A connection to this server, at the address where it was last or where others say that it is. Raises `Lost`.
        """
        there = self.members.get(id)
        addresses = dict.fromkeys([there, *self.candidates] if there is not None else self.candidates)
        round_ = _Round(self, lambda c: c.hello.id == id, lambda c: id, f"knows no server {id}")
        found = await round_.run(addresses, there)
        if found is not None:
            return found
        if self.members and there is None and not round_.referred:
            raise NoSuchServer(id)
        raise Lost(self.reason or Unavailable(f"server {id} does not answer"))

    def _take_idle(self, fits: Callable[[Connection], bool]) -> Connection | None:
        for at, connection in enumerate(self._idle):
            if fits(connection):
                return self._idle.pop(at)
        return None


class _Round:
    """One round of asking every server: ends with the first that will do; the others say whom else to ask.

    ``refers_to``: the id of the server that one which will not do names instead. That one's reason is then ``refers``,
    or ``otherwise`` if it names none.
    """

    def __init__(
        self, servers: Servers, will_do: Callable[[Connection], bool],
        refers_to: Callable[[Connection], int] = lambda connection: 0, otherwise: str = "will not do", refers: str = "",
    ) -> None:
        self._servers = servers
        self._will_do = will_do
        self._refers_to = refers_to
        self._otherwise = otherwise
        self._refers = refers
        self._found: Connection | None = None
        #: True once some server told where the server is that was looked for.
        self.referred = False
        #: Ids of the servers that answer and will not do.
        self.answering: set[int] = set()
        self._asked: list[str] = []
        self._hurry = anyio.Event()

    async def run(self, addresses: Iterable[str], likeliest: str | None) -> Connection | None:
        """Ask the servers at these addresses, the likeliest with a head start; a connection to one that will do, or
        None. Called once."""
        if likeliest is None:
            self._hurry.set()
        try:
            async with anyio.create_task_group() as self._tasks:
                for address in addresses:
                    self._ask(address, wait=address != likeliest)
        except BaseException:
            if self._found is not None:
                self._servers.drop(self._found)
            raise
        if self._found is not None:
            self._servers.reasons.found(self._found.address)
        return self._found

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
        if self._found is None and self._will_do(connection):
            self._found = connection
            self._tasks.cancel_scope.cancel()
            return
        self.answering.add(connection.hello.id)
        waits = "" if connection.hello.cluster else await _why_it_waits(connection)
        self._servers.drop(connection)
        if self._found is None:
            self._ask_instead(connection)
            if waits:
                self._servers.reasons.answered(connection.address, Unavailable(f"{connection.address} {waits}"))
            self._hurry.set()

    def _ask_instead(self, connection: Connection) -> None:
        id = self._refers_to(connection)
        target = self._servers.members.get(id)
        says = self._otherwise if target is None else self._refers.format(id)
        if says:
            self._servers.reasons.says(connection.address, Unavailable(f"{connection.address} {says}"))
        if target is None:
            return
        self.referred = True
        if target not in self._asked:
            self._ask(target, wait=False)


async def _why_it_waits(connection: Connection) -> str:
    """Ask a server without a cluster what it waits for; "" if it does not say in time."""
    with anyio.move_on_after(DIAL_S):
        try:
            answer = await connection.ask(Status)
        except Lost:
            return ""
        waits = answer.fields.get("waiting") if isinstance(answer, StatusAnswer) else None
        if isinstance(waits, list):
            return "; ".join(map(str, waits))
    return ""


def _valid(address: str) -> bool:
    """True if the address can be dialled."""
    try:
        parse_address(address)
    except ValueError:
        return False
    return True
