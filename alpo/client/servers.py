"""The servers that a client knows of, and finding the one it needs.

Laws:

* Every address that a hello has ever named is a candidate, besides those configured, which always stay.
* The cluster is pinned by the first server that names one: a server of another cluster is never used again.
* A server counts as the leader only if it said so of itself, in a hello of this moment.
* All tries are bounded in time, and in number by a pause that grows while nobody leads, and as servers take longer to
  answer: clients without a leader must not keep servers, or what is on the way to them, too busy to elect one.
* Reads and requests have `CONNECTIONS_MAX` connections at a time. Beyond that each waits for its turn, and a reader
  that looks at a page gives its connection to a request that waits. Few abandoned readers keep a connection for longer
  than `LEFT_S`, and none after it was garbage-collected.
* A server that is slow to reach delays no other: the others are asked again every second, while its own try goes on.
* A server that knows no log of a name may be behind. There is none if the leader of the first log says so.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import TypeAlias

import anyio

from alpo.addresses import SERVER_DEFAULT, parse_address, parse_servers
from alpo.core.directory import FIRST_NAME, LOG_NAME_WANTED, valid_log
from alpo.core.requests import ListLogs, LogsAre
from alpo.dialling import Step, Way
from alpo.errors import AlpoError, Closed, NoSuchLog, Overloaded, Refused, Unavailable
from alpo.secure import Trust
from alpo.tls import Tls, tls_given
from alpo.wire.requests import ServerHello, Status, StatusAnswer

from .arguments import need_servers
from .connection import Connection, Lost
from .reasons import Reasons
from .retry import PAUSE_FIRST_S, PAUSE_MAX_S, Pauses
from .tasks import FORKED_WHY, watch_forks

#: Seconds until all servers are asked again, if none of them will do; a try that takes longer goes on meanwhile.
ROUND_S = 1.0
#: Longest time for a TCP connection. For TLS and the hello: at first, doubled for an address where that was too short.
TCP_S, ANSWER_FIRST_S, ANSWER_MAX_S = 10.0, 1.0, 8.0
#: Seconds that the likeliest server has to answer before the others are asked.
HEAD_START_S = 0.03
#: The longest pause between rounds of asking who leads, while an election may be under way: for so many seconds.
PAUSE_ELECTION_S, ELECTION_S = 0.04, 3.0
#: A pause is at least so many times as long as the quickest server took to answer, up to so many seconds.
BUSY_TIMES, PAUSE_BUSY_MAX_S = 4, 2.0
IDLE_MAX = 4
#: Most connections that reads and requests have at a time. Readers that look at a page and keep theirs for longer than
#: `LEFT_S`. Seconds until a task that waits for its turn looks whether a reader was garbage-collected meanwhile.
CONNECTIONS_MAX, RESTING_MAX, LEFT_S, LOOK_S = 128, 16, 1.0, 0.25
CANDIDATES_MAX = 64
CLOSED = "this Log is closed"

#: The type of `Connection.open`: (address, cluster, seconds, way, name of the log) -> a connection. Raises `Lost`.
Open: TypeAlias = Callable[[str, bytes, float, Way, str], Awaitable[Connection]]


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


def given_log(log: str | None) -> str:
    """The name of the log for hellos, "" for the first; None: that of ALPO_LOG. Raises TypeError, ValueError."""
    name = os.environ.get("ALPO_LOG", "").strip() if log is None else log
    if not isinstance(name, str):
        raise TypeError(f"log is the name of a log, not {type(name).__name__}")
    if name in ("", FIRST_NAME):
        return ""
    if not valid_log(name):
        raise ValueError(f"log {name!r}: {LOG_NAME_WANTED}")
    return name


class Final(Lost):
    """The end of a search of which another try is of no use: the cluster has no such server, or no such log."""


class Servers:
    """The known servers of a cluster, and the connections to them."""

    def __init__(
        self, addresses: Sequence[str], open_connection: Open = Connection.open, rng: random.Random | None = None,
        cluster: bytes = b"", tls: Tls | None = None, log: str = "",
    ) -> None:
        """``cluster``: the only one whose servers will do; b"": that of the first server that names one. ``log``: the
        name of the log, "": the first. Raises `alpo.errors.TlsError` if the files of ``tls`` are wrong."""
        #: The name of the log, "" for the first.
        self.log = log
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
        #: Places of reads and requests: their connections, or the turns of those that are on the way to one. By id.
        self._lent: dict[int, object] = {}
        #: Connections of readers that look at a page, and since when; the oldest first. By id.
        self._resting: dict[int, tuple[Connection, float]] = {}
        self._turns: deque[anyio.Event] = deque()
        #: Tries under way.
        self._ways: dict[int, Way] = {}
        #: Seconds for TLS and the hello of addresses where the first bound was too short; the newest few.
        self._answer_s: dict[str, float] = {}
        #: Seconds that the last try took, by address.
        self._took_s: dict[str, float] = {}
        #: Called before anything is asked: raises RuntimeError in another event loop than that of the tasks behind
        #: these connections, if there are any.
        self.need_home: Callable[[], None] = lambda: None
        watch_forks(self)

    def __str__(self) -> str:
        return ", ".join(self._configured)

    @property
    def cluster(self) -> bytes:
        """The id of the only cluster whose servers will do; b"" until a server has named one."""
        return self._cluster

    @property
    def reason(self) -> AlpoError | None:
        """The reason why no server would do, the most telling one first; None if nothing is the matter."""
        if self.reasons.told is None and self._ways:
            return Unavailable(next(iter(self._ways.values())).late())
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

    def way(self, address: str) -> Way:
        """A way to this address, with bounds that grow where they were too short."""
        return Way(address, tcp_s=TCP_S, answer_s=self._answer_s.get(address, ANSWER_FIRST_S))

    async def dial(self, address: str, timeout_s: float = math.inf, way: Way | None = None) -> Connection:
        """A new connection to one server; what its hello tells is noted. ``way``: None for one without bounds of its
        own. Raises `Lost`."""
        self.need_home()
        self._hold_open()
        way = way or Way(address)
        self._ways[id(way)] = way
        began_s = anyio.current_time()
        try:
            connection = await self._open_connection(address, self._cluster, timeout_s, way, self.log)
        except Lost as lost:
            self.reasons.lost(address, lost.reason)
            if way.step in (Step.TLS, Step.HELLO):
                self._wait_longer(address)
            raise
        finally:
            del self._ways[id(way)]
            self._took_s[address] = anyio.current_time() - began_s
            if len(self._took_s) > CANDIDATES_MAX:
                del self._took_s[next(iter(self._took_s))]
        if self.closed:
            connection.close()
            self._hold_open()
        self._learn(connection.hello)
        self._open[id(connection)] = connection
        return connection

    def _wait_longer(self, address: str) -> None:
        answer_s = min(2 * self._answer_s.pop(address, ANSWER_FIRST_S), ANSWER_MAX_S)
        self._answer_s[address] = answer_s
        if len(self._answer_s) > CANDIDATES_MAX:
            del self._answer_s[next(iter(self._answer_s))]

    @property
    def busy_pause_s(self) -> float:
        """The shortest pause before servers are asked anew, in seconds: long if all of them took long to answer."""
        return min(BUSY_TIMES * min(self._took_s.values(), default=0.0), PAUSE_BUSY_MAX_S)

    def _learn(self, hello: ServerHello) -> None:
        if hello.cluster and not self._cluster:
            self._cluster = hello.cluster
        if hello.members:
            self.members = {member: address for member, address in hello.members if _valid(address)}

    async def lend(self, find: Callable[[], Awaitable[Connection]]) -> Connection:
        """The connection that ``find()`` returns, for a reader or a request, when it is its turn. `drop` it or
        `give_back`. Raises what ``find`` raises."""
        key = await self._enter()
        try:
            connection = await find()
        except BaseException:
            self._vacate(key)
            raise
        del self._lent[key]
        self._lent[id(connection)] = connection
        return connection

    async def _enter(self) -> int:
        """Wait for a place, and take it; returns its key."""
        turn = anyio.Event()
        if len(self._lent) >= CONNECTIONS_MAX and self._resting:
            self.drop(next(iter(self._resting.values()))[0])
        self._turns.append(turn)
        self._hand_on()
        try:
            while not turn.is_set():
                with anyio.move_on_after(LOOK_S):
                    await turn.wait()
                self._hand_on()
        except BaseException:
            if turn in self._turns:
                self._turns.remove(turn)
            self._vacate(id(turn))
            self.reasons.crowded(Overloaded(f"all {CONNECTIONS_MAX} connections of this log are in use"))
            raise
        return id(turn)

    def _hand_on(self) -> None:
        """Give free places to those that wait for one, in their order."""
        while self._turns and (len(self._lent) < CONNECTIONS_MAX or self._over):
            turn = self._turns.popleft()
            self._lent[id(turn)] = turn
            turn.set()

    def _vacate(self, key: int) -> None:
        self._lent.pop(key, None)
        self._hand_on()

    @property
    def crowded(self) -> bool:
        """True if somebody waits for a connection that a reader may give back."""
        return bool(self._turns)

    def rest(self, connection: Connection) -> None:
        """Note that the reader of this connection looks at a page. Until `resume` the connection may be closed."""
        now_s = anyio.current_time()
        self._resting[id(connection)] = connection, now_s
        while len(self._resting) > RESTING_MAX:
            longest, since_s = next(iter(self._resting.values()))
            if now_s - since_s < LEFT_S:
                break
            self.drop(longest)

    def resume(self, connection: Connection) -> None:
        """Note that the reader of this connection goes on."""
        self._resting.pop(id(connection), None)

    def left(self, connection: Connection) -> None:
        """Close the connection of a reader that is no more; in any thread, also where no loop runs."""
        for known in (self._open, self._resting, self._lent):
            known.pop(id(connection), None)
        connection.leave()

    def drop(self, connection: Connection) -> None:
        """Close a connection for good."""
        self._open.pop(id(connection), None)
        self._resting.pop(id(connection), None)
        connection.close()
        self._vacate(id(connection))

    def give_back(self, connection: Connection) -> None:
        """Keep an idle connection for the next request."""
        if connection.closed or len(self._idle) >= IDLE_MAX:
            self.drop(connection)
        else:
            self._idle.append(connection)
            self._vacate(id(connection))

    def close(self, why: str = CLOSED) -> None:
        """Close every connection, for good; ``why``: the reason that later callers get."""
        self._over = self._over or why
        self._idle.clear()
        for connection in list(self._open.values()):
            self.drop(connection)
        self._hand_on()

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
        self.need_home()
        idle = None if fresh else self._take_idle(lambda c: c.leads)
        if idle is not None:
            return idle
        found = await self._seek_leader(forever=True)
        if found is None:
            self._hold_open()
            raise AssertionError("not reached: the search ends with a leader, or once closed")
        return found

    async def find_leader(self) -> Connection | None:
        """Ask every server once, the likeliest leader with a head start; a connection to the leader, or None."""
        return await self._seek_leader(forever=False)

    async def _seek_leader(self, forever: bool) -> Connection | None:
        search = _Search(
            self, lambda c: c.leads, lambda c: c.hello.leader, "knows no leader", "takes server {} for the leader"
        )

        def again() -> bool:
            self.reasons.counted(len(search.answering & self.members.keys()), len(self.members))
            return forever

        found = await search.run(lambda: self.candidates, lambda: self.hint, again)
        if found is not None:
            self.hint = found.address
        return found

    async def any(self, server: int | None, avoid: str | None = None) -> Connection:
        """A connection to server ``server``, or to the first that answers (None), at address ``avoid`` last. Raises
        `Lost` once all have failed; `Final` for a server that is no member."""
        self.need_home()
        idle = self._take_idle(lambda c: c.hello.id == server if server is not None else c.address != avoid)
        if idle is not None:
            return idle
        if server is not None:
            return await self._server(server)
        search = _Search(self, lambda c: True)
        avoided = [avoid]

        def addresses() -> list[str]:
            return [address for address in self.candidates if address not in avoided]

        def again() -> bool:
            return (avoided.pop() if avoided else None) is not None or search.under_way

        found = await search.run(addresses, lambda: next(iter(addresses()), None), again)
        if found is None:
            self._hold_open()
            raise Lost(self.reason or Unavailable("no server answers"))
        return found

    async def _server(self, id: int) -> Connection:
        """A connection to this server, at the address where it was last, or is by others' word. Raises `Lost`."""
        search = _Search(self, lambda c: c.hello.id == id, lambda c: id, f"knows no server {id}")

        def addresses() -> list[str]:
            there = self.members.get(id)
            return list(dict.fromkeys([*([there] if there is not None else []), *self.candidates]))

        def unknown() -> bool:
            return bool(self.members) and id not in self.members and not search.referred

        found = await search.run(addresses, lambda: self.members.get(id), lambda: search.under_way and not unknown())
        if found is not None:
            return found
        self._hold_open()
        if unknown():
            raise Final(Unavailable(f"the cluster has no server {id}"))
        raise Lost(self.reason or Unavailable(f"server {id} does not answer"))

    async def no_log(self) -> str:
        """The reason why there is no such log (any more), by the word of the first log's leader; "" while there may be.
        A log whose id is known is gone if it was deleted, whatever its name."""
        first = Servers(self.candidates, self._open_connection, self.rng)
        with closing(first), suppress(Lost, Refused), anyio.move_on_after(ELECTION_S):
            answer = await (await first.leader()).ask(ListLogs)
            if isinstance(answer, LogsAre):
                named, deleted = answer.listing.named(self.log), {log.id for log in answer.listing.deleted}
                if (self._cluster in deleted) if self._cluster else (named is None):
                    return f"the log {self.log} is another one by now" if named else f"there is no log {self.log}"
        return ""

    def _take_idle(self, fits: Callable[[Connection], bool]) -> Connection | None:
        for at, connection in enumerate(self._idle):
            if fits(connection):
                return self._idle.pop(at)
        return None


class _Search:
    """A search among all servers: ends with the first that will do; the others say whom else to ask.

    All are asked in rounds. A round waits `ROUND_S` at most: a server whose try takes longer is not asked again
    meanwhile, and no other waits for it.

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
        #: True once some server has said where the wanted server is.
        self.referred = False
        #: Ids of the servers that answered in this round and will not do.
        self.answering: set[int] = set()
        #: Tries under way, of this round and of earlier ones.
        self._ways: dict[str, Way] = {}
        self._asked: list[str] = []
        #: True while it is asked whether there is such a log at all; and the reason why there is none.
        self._looks, self._no_log = False, ""
        self._hurry, self._ended = anyio.Event(), anyio.Event()

    @property
    def under_way(self) -> bool:
        """True while a try goes on that may yet succeed."""
        return bool(self._ways)

    async def run(
        self, addresses: Callable[[], Iterable[str]], likeliest: Callable[[], str | None], again: Callable[[], bool]
    ) -> Connection | None:
        """Ask the servers at these addresses, the likeliest with a head start, in rounds as long as ``again()`` says so
        after one; a connection to one that will do, or None, also once closed. Raises `Final`. Called once."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._rounds(addresses, likeliest, again)
                self._tasks.cancel_scope.cancel()
        except BaseException:
            if self._found is not None:
                self._servers.drop(self._found)
            raise
        if self._found is not None:
            self._servers.reasons.found(self._found.address)
        elif self._no_log:
            raise Final(NoSuchLog(self._no_log, log=self._servers.log))
        return self._found

    async def _rounds(
        self, addresses: Callable[[], Iterable[str]], likeliest: Callable[[], str | None], again: Callable[[], bool]
    ) -> None:
        began_s, pauses = anyio.current_time(), Pauses(PAUSE_FIRST_S)
        while not self._servers.closed:
            first, self._hurry = likeliest(), anyio.Event()
            if first is None or first in self._ways:
                self._hurry.set()
            self._asked, self.answering, self.referred = [], set(), False
            for address in addresses():
                if address not in self._ways:
                    self._ask(address, wait=address != first)
            with anyio.move_on_after(ROUND_S):
                while any(address in self._ways for address in self._asked):
                    self._ended = anyio.Event()
                    await self._ended.wait()
            for way in self._ways.values():
                self._note_slow(way)
            if not again():
                while self._looks:
                    self._ended = anyio.Event()
                    await self._ended.wait()
                return
            outage = anyio.current_time() - began_s > ELECTION_S
            pause_s = max(pauses.take_s(PAUSE_MAX_S if outage else PAUSE_ELECTION_S), self._servers.busy_pause_s)
            await anyio.sleep(pause_s * self._servers.rng.uniform(0.75, 1.25))

    def _note_slow(self, way: Way) -> None:
        """Note the step at which a try is still under way, unless the reason known for its address is one that
        lasts."""
        if way.begun and not self._servers.reasons.lasts(way.address):
            self._servers.reasons.lost(way.address, Unavailable(way.late()))

    def _ask(self, address: str, wait: bool) -> None:
        self._asked.append(address)
        self._ways[address] = self._servers.way(address)
        self._tasks.start_soon(self._probe, address, self._ways[address], wait)

    async def _probe(self, address: str, way: Way, wait: bool) -> None:
        try:
            if wait:
                with anyio.move_on_after(HEAD_START_S):
                    await self._hurry.wait()
            connection = await self._servers.dial(address, way=way)
        except Lost as lost:
            self._hurry.set()
            if isinstance(lost.reason, NoSuchLog) and self._servers.log and not self._looks:
                self._looks = True
                self._tasks.start_soon(self._look_up)
        except anyio.get_cancelled_exc_class():
            if self._found is None and not self._servers.reasons.knows(address):
                self._note_slow(way)
            raise
        else:
            await self._judge(connection)
        finally:
            del self._ways[address]
            self._ended.set()

    async def _look_up(self) -> None:
        self._no_log = await self._servers.no_log()
        if self._no_log:
            self._tasks.cancel_scope.cancel()
        self._looks = False
        self._ended.set()

    async def _judge(self, connection: Connection) -> None:
        if self._found is None and self._will_do(connection):
            self._found = connection
            self._tasks.cancel_scope.cancel()
            return
        self.answering.add(connection.hello.id)
        try:
            waits = "" if connection.hello.cluster else await _why_it_waits(connection)
        finally:
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
        if target not in self._asked and target not in self._ways:
            self._ask(target, wait=False)


async def _why_it_waits(connection: Connection) -> str:
    """Ask a server without a cluster what it waits for; "" if it does not say in time."""
    with anyio.move_on_after(ANSWER_FIRST_S), suppress(Lost):
        answer = await connection.ask(Status)
        waits = answer.fields.get("waiting") if isinstance(answer, StatusAnswer) else None
        if isinstance(waits, list):
            return "; ".join(map(str, waits))
    return ""


def _valid(address: str) -> bool:
    """True if the address can be dialled."""
    with suppress(ValueError):
        return bool(parse_address(address))
    return False
