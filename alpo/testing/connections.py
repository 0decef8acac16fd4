"""Connections between clients and servers, each over a `Wire`: a server's end, with alpod's own rules, without sockets
and tasks; a client's end, an `alpo.client.connection.Connection`; and the `Network` of all.

Laws:

* Bytes in, bytes out, through the real codec; requests and answers are those of `alpo.node.client_connection`.
* A server that is paused or down does nothing; one that comes to life goes on with what waited.
* Nothing is read that the core has not vouched for, and every entry read is held against the one log.
"""

from __future__ import annotations

import random
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast, get_args

import anyio

from alpo.client.connection import Connection, Lost
from alpo.core.directory import FIRST_NAME, FIRST_NUMBER, NONCE_BYTES, Listing, LogOptions, NamedLog
from alpo.core.entries import Part, join_payloads, parts, split_payloads
from alpo.core.ready import Input
from alpo.core.replica import Replica
from alpo.core.requests import (
    ChangeMember,
    Code,
    CreateLog,
    CursorsAre,
    DeleteLog,
    ListCursors,
    ListLogs,
    LogRequest,
    LogsAre,
    ReadAt,
    ReadIndex,
    Refused,
    RenameLog,
    Reply,
    SetLog,
)
from alpo.core.settings import Settings
from alpo.dialling import Way
from alpo.errors import ProtocolError, Unavailable
from alpo.node.admission import Limits, frame_bytes
from alpo.node.backups import behind
from alpo.node.client_connection import ClientRequests, Handler
from alpo.node.counters import Counters, Elections
from alpo.node.pages import Extent, OutOfRange, build_page, extent, with_tail
from alpo.node.reads import front, refuse_range, refused_here
from alpo.node.retention import lags
from alpo.node.routes import Ourselves, server_hello
from alpo.node.status import status_fields
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_client, decode_hello, encode, encode_problem
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError, FrameReader
from alpo.wire.requests import unpack_page
from alpo_sim.checks import Broken
from alpo_sim.host import Host
from alpo_sim.options import MS

from .world import DELAY_US, ClusterWorld, Wire

#: Seconds after which a dial that nobody answers is given up: a new one finds out whether the network is mended.
DIAL_S = 1.0
_PAGE_US = 300
_OF_THE_CLUSTER = "members and logs are those of the cluster: ask its first log"
#: Requests that no simulated server can do, and why.
_REFUSED = {
    w.Backup: "a simulated server has no data file to copy",
    w.GiveBack: "a simulated server has no data file to make smaller",
    w.AcceptClocks: "simulated clocks never leap",
    w.RangeDigest: "simulated servers do not compare what they hold",
    **dict.fromkeys(
        (CreateLog, SetLog, RenameLog, DeleteLog), "a simulated cluster keeps the logs that it was made with"
    ),
}


def _refuse(why: str, client: ClientRequests, ask: Any) -> None:
    client.refuse(ask[0], Code.NOT_READY, detail=why)


class ServerEnd:
    """A server's end of one client's connection: link, driver and services for its `ClientRequests`."""

    limits = Limits()

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.closed = ""
        self.queued_bytes = 0
        self._world: ClusterWorld = wire.world
        self._host: Host = self._world.stage.hosts[wire.server]
        self._counters = Counters(Elections(wire.server))
        self._inbox: deque[bytes] = deque()
        self._frames = FrameReader(HELLO_BYTES_MAX)
        self._client: ClientRequests | None = None
        self._version = w.VERSION
        #: Handlers of the requests that the core does not answer, by their types.
        self.handlers: dict[type, Handler] = {
            w.Read: self._begin_read, w.ReadColumns: self._begin_read, ListCursors: self._begin_cursors,
            ListLogs: self._begin_logs, w.AwaitReplicated: self._begin_await, w.Status: self._begin_status,
            w.ListEvents: self._begin_events,
            **{request: partial(_refuse, why) for request, why in _REFUSED.items()},
        }
        wire.to_server.arrive = self._arrive

    @property
    def replica(self) -> Replica:
        assert self._host.replica is not None
        return self._host.replica

    # -- bytes ------------------------------------------------------------------------------------------

    def _arrive(self, data: bytes) -> None:
        self._inbox.append(data)
        self.work()

    def work(self) -> None:
        """Take what has come, unless the server's process stands still."""
        while self._inbox and not self.closed and self._host.replica is not None:
            if self._world.paused(self._host.id):
                self._world.at(self._world.paused_until[self._host.id], self.work)
                return
            data = self._inbox.popleft()
            if not data:
                self.close("the client is gone")
                return
            try:
                for body in self._frames.feed(data):
                    self._take(body)
            except (FrameError, WireError) as error:
                self._part(Code.INVALID, str(error))
            if self._client is not None:
                self._client.flush()

    def _take(self, body: bytes | memoryview) -> None:
        """Take one frame: the hello, or a request."""
        if self.closed:
            return
        if self._client is not None:
            self._client.take(decode_client(body, self._version), len(body))
            return
        hello = decode_hello(body)
        if not isinstance(hello, w.ClientHello):
            raise WireError("a connection begins with a client's hello")
        if hello.log not in ("", FIRST_NAME):
            if hello.log not in self._world.others:
                self._part(Code.NO_SUCH_LOG, f"there is no log {hello.log} on this server")
                return
            self._world = self._world.others[hello.log]
            self._host = self._world.stage.hosts[self.wire.server]
            self.handlers |= dict.fromkeys((*get_args(LogRequest), ChangeMember), partial(_refuse, _OF_THE_CLUSTER))
        cluster = self.replica.cluster
        if hello.cluster and hello.cluster != cluster:
            self._part(Code.INVALID, f"this server belongs to {cluster.hex() or 'no cluster yet'}")
            return
        self._frames.bytes_max = frame_bytes(self.replica.settings)
        self._version = hello.version
        told = server_hello(self.replica, hello.version, self._host.wall_ms(self._world.now_us))
        self.push(encode(told._replace(number=self._world.number, name=self._world.name)))
        self._client = ClientRequests(self, self, self, hello.version)

    def _part(self, code: Code, why: str) -> None:
        """Tell the client why, and close."""
        self.push(encode_problem(code, why))
        self.close(why)

    def close(self, why: str) -> None:
        """Close this end; the client is told."""
        if not self.closed:
            self.closed = why
            self.wire.to_client.send(b"")

    def push(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.closed:
            self.wire.to_client.send(data)

    # -- the driver's part ------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._counters

    def clock_s(self) -> float:
        """The world's time in seconds."""
        return self._world.now_us / 1e6

    @property
    def now_s(self) -> float:
        """Time of the present step: there is no other."""
        return self.clock_s()

    def post(self, request: Any, size_bytes: int = 0, /) -> None:
        """Ask the core; the request's origin gets every reply."""
        origin = request.origin

        def heard(reply: Reply) -> None:
            if not self.closed:
                origin.answer(reply)
                origin.flush()

        self._ask(request, heard)

    def _ask(self, request: Input, heard: Any) -> None:
        """Ask the core; ``heard`` gets every reply."""
        self._world.request(self._host.id, request, self.wire.party, heard)

    # -- the services -----------------------------------------------------------------------------------

    def address_of(self, id: int) -> str:
        """The address of server ``id``; "" for 0."""
        return self.replica.address_of(id) if id else ""

    def trouble_with(self, id: int) -> str:
        """"": simulated servers note no trouble with each other."""
        return ""

    def _begin_read(self, client: ClientRequests, ask: w.Read | w.ReadColumns) -> None:
        """Answer a read with a page, once the core has vouched for it, or from what this server has."""
        if ask.linearizable:
            self._ask(ReadIndex(0), lambda reply: self._read_index(client, ask, reply))
        elif not refused_here(client, ask, self.replica):
            self._read_local(client, ask)

    def _read_index(self, client: ClientRequests, ask: w.Read | w.ReadColumns, reply: Reply) -> None:
        if isinstance(reply, ReadAt):
            self._world.after(_PAGE_US, self._page, client, ask, reply.id, self._host.boots)
        elif not self.closed:
            assert isinstance(reply, Refused)
            client.refuse(ask.request, reply.code, number=reply.number, leader=reply.leader, detail=reply.detail)

    def _read_local(self, client: ClientRequests, ask: w.Read | w.ReadColumns) -> None:
        """Answer a local read once the payload that it waits for is there, or its time is up."""
        wanted, boots = (ask.end or ask.start) if ask.wait_ms > 0 else 0, self._host.boots
        self._when(
            lambda: self._extent(self.replica.readable_id).end_lsn >= wanted, ask.wait_ms,
            lambda: self._world.after(_PAGE_US, self._page, client, ask, self.replica.readable_id, boots),
        )

    def _when(self, ready: Callable[[], bool], wait_ms: int, then: Callable[[], None]) -> None:
        """Call ``then()`` once ``ready()``, which is asked after each step, or the time is up; not if the connection or
        the server's process ends before."""
        boots, looks = self._host.boots, self._world.after_step[self._host.id]

        def look(late: bool = False) -> None:
            if look not in looks:
                return
            if not self._serves(boots):
                looks.remove(look)
            elif late or ready():
                looks.remove(look)
                then()

        looks.append(look)
        look()
        if look in looks:
            self._world.after(min(wait_ms, int(self.limits.poll_s_max * 1000)) * MS, look, True)

    def _serves(self, boots: int) -> bool:
        """True while the connection is open, and the server's process is the one of so many starts."""
        return not self.closed and self._host.boots == boots and self._host.replica is not None

    def _extent(self, end_id: int) -> Extent:
        """The part of the log that may be read, up to entry ``end_id``."""
        return extent(with_tail(self._host.store, self.replica.log, end_id), front(self.replica), end_id)

    def _page(self, client: ClientRequests, ask: w.Read | w.ReadColumns, end_id: int, boots: int) -> None:
        """Answer a read with the page up to entry ``end_id``, or a refusal."""
        if not self._serves(boots):
            return
        if self._world.paused(self._host.id):
            self._world.at(self._world.paused_until[self._host.id], self._page, client, ask, end_id, boots)
            return
        bytes_max = min(max(1, ask.bytes_max), self.limits.page_bytes_max)
        try:
            readable = with_tail(self._host.store, self.replica.log, end_id)
            page = build_page(readable, ask, self._extent(end_id), bytes_max)
        except OutOfRange as error:
            refuse_range(client, ask, error)
            return
        self._check(page)
        client.settle(page)

    def _check(self, page: w.Page | w.ColumnPage) -> None:
        """Hold a page against the one log. Raises `Broken`."""
        log = self._world.safety.guaranteed
        rows = page.entries if isinstance(page, w.Page) else unpack_page(page).appends()
        held_id, held = 0, dict[int, Part]()
        for id, term, _, client, serial, lsn, count, body in rows:
            known = log[id - 1] if id <= len(log) else None
            if known is not None and id != held_id:
                held_id, held = id, {part.serial: part for part in parts(known)}
            part = held.get(serial)
            if part is not None and part.lsn < lsn == page.first_lsn:  # the log was trimmed inside of a batch
                left = split_payloads(part.count, part.body)[lsn - part.lsn :]
                part = part._replace(lsn=lsn, count=len(left), body=join_payloads(left))
            if known is None or (term, client) != (known.term, known.client) or part != (serial, lsn, count, body):
                raise Broken("one log", f"server {self._host.id} serves an entry {id} that is not guaranteed: {known}")

    def _begin_cursors(self, client: ClientRequests, ask: ListCursors) -> None:
        """Answer with all cursors, and how far each lags behind."""
        request = cast(int, ask.origin)  # as it came

        def heard(reply: Reply) -> None:
            if self.closed:
                return
            if isinstance(reply, CursorsAre):
                rows = lags(self._host.store, reply.rows, self.replica.log.base_id, self.replica.guaranteed_id)
                client.settle(w.CursorTable(request, [(r.name, r.lsn, r.lag_bytes, 0) for r in rows]))
            else:
                assert isinstance(reply, Refused)
                client.refuse(request, reply.code, leader=reply.leader, detail=reply.detail)

        self._ask(ListCursors(0), heard)

    def _begin_await(self, client: ClientRequests, ask: w.AwaitReplicated) -> None:
        """Answer once every member has the payload, or when the request's time is up."""
        def done() -> bool:
            return self._entry(ask.lsn) <= self.replica.fully_replicated_id

        def tell() -> None:
            r, held = self.replica, done()
            if held or r.leadership is not None:
                client.settle(w.Replicated(ask.request, held, () if held else behind(r, self._entry(ask.lsn))))
            else:
                client.refuse(ask.request, Code.NOT_LEADER, leader=r.leader_id)

        self._when(lambda: done() or self.replica.leadership is None, ask.wait_ms, tell)

    def _entry(self, lsn: int) -> int:
        """The id of the entry that holds a payload, as readers see the log; one past the end while there is none."""
        r = self.replica
        if lsn < r.log.base_next_lsn:
            return r.log.base_id
        id = self._host.store.find_lsn(lsn, r.readable_id)
        return id if id <= r.readable_id else r.last_id + 1

    def _begin_logs(self, client: ClientRequests, ask: ListLogs) -> None:
        """Answer with the logs besides the first."""
        nonce, settings = bytes(NONCE_BYTES), Settings().to_plain()
        logs = []
        for log in self.wire.world.others.values():
            first_list = log.stage.hosts[self._host.id].store.boot().start.first_list
            logs.append(NamedLog(log.number, log.name, nonce, LogOptions(), settings, first_list))
        client.settle(LogsAre(cast(int, ask.origin), Listing(tuple(logs), next_number=FIRST_NUMBER + 1 + len(logs))))

    def asked(self, who: str, what: str, how: str) -> None:
        pass

    def no_right(self, why: str) -> None:
        raise AssertionError("simulated clients have all rights")

    def _begin_events(self, client: ClientRequests, ask: w.ListEvents) -> None:
        """Answer with no events: simulated servers keep none."""
        client.settle(w.EventList(ask.request, self._host.id, self._host.wall_ms(self._world.now_us), []))

    def _begin_status(self, client: ClientRequests, ask: w.Status) -> None:
        """Answer with this server's status."""
        replica = self.replica
        us = Ourselves(replica.me, self._host.address, (0, 0, 0))
        fields = status_fields(us, replica, {}, [], self._extent(replica.readable_id), {})
        client.settle(w.StatusAnswer(ask.request, fields))


class ClientEnd(Connection):
    """A client's open connection, over ``wire``."""

    def __init__(self, address: str, wire: Wire) -> None:
        super().__init__(cast(socket.socket, None), address)
        self._wire = wire
        self._inbox: deque[bytes] = deque()
        self._ended = ""
        self._news: anyio.Event | None = None
        self._disturbed = False
        wire.to_client.arrive = self._arrive

    def _arrive(self, data: bytes) -> None:
        """Take bytes from the server; b"": it has closed the connection."""
        if data:
            self._inbox.append(data)
        else:
            self._ended = self._ended or "closed the connection"
        if self._news is not None:
            self._news.set()

    def reset(self) -> None:
        """Break the connection; what was on its way to the client is lost."""
        if not self._wire.over:
            self._wire.over = True
            self._inbox.clear()
            self._ended = "connection reset by peer"
            self._arrive(b"")

    def send_now(self, data: bytes) -> None:
        if self.closed or self._wire.over:
            raise self._gone()
        self._wire.to_server.send(data)

    def send_parts(self, parts: list[bytes]) -> None:
        self.send_now(b"".join(parts))

    @property
    def moved_bytes(self) -> int:
        """The number of bytes on their way, none: a message arrives as a whole or not at all."""
        return 0

    async def drain(self) -> None:
        """Return at once: the wire takes everything."""

    async def readable(self) -> None:
        await anyio.lowlevel.checkpoint()
        while not (self._inbox or self.closed or self._ended or self._disturbed):
            self._news = anyio.Event()
            await self._news.wait()
        self._disturbed = False
        if not self._inbox:
            raise self._gone()

    def disturb(self) -> None:
        self._disturbed = True
        if self._news is not None:
            self._news.set()

    def new_poll(self) -> select.poll:
        """An object whose `poll` tells at once what has arrived."""
        return cast(select.poll, SimpleNamespace(poll=lambda _: self.closed or self._ended or self._inbox))

    def _bodies_now(self) -> list[bytes | memoryview]:
        data = b"".join(self._inbox)
        self._inbox.clear()
        try:
            return self._frames.feed(data)
        except FrameError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._wire.to_server.send(b"")
            if self._news is not None:
                self._news.set()

    leave = close

    def abandon(self) -> None:
        self.closed = True

    def _gone(self) -> Lost:
        """The error of a connection that is over."""
        if self._ended == "closed the connection":
            return Lost(Unavailable(f"{self.address} {self._ended}"))
        return Lost(Unavailable(f"{self.address}: {self._ended or 'the connection was closed'}"))


class Network:
    """All connections between clients and servers."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self._open: list[tuple[ClientEnd, ServerEnd, Wire]] = []
        self._cuts = 0
        world.on_down, world.on_wake = self._down, self._wake
        world.on_mended, world.on_client_fault = self.mended, self._fault

    def dialler(self, client: str, party: int) -> Dialler:
        """The `Dialler` that makes the connections of one client; ``party``: its number, for the checks."""
        return Dialler(self, client, party)

    def add(self, client: ClientEnd, server: ServerEnd, wire: Wire) -> None:
        """Keep a new connection; forget those that are over."""
        self._open = [each for each in self._open if not (each[0].closed or each[1].closed or each[2].over)]
        self._open.append((client, server, wire))

    def _of(self, server: int) -> list[tuple[ClientEnd, ServerEnd, Wire]]:
        return [each for each in self._open if each[2].server == server]

    def _down(self, id: int) -> None:
        """End the connections of a server whose process has ended."""
        for _, server, _ in self._of(id):
            server.close("the process has ended")

    def _wake(self, id: int) -> None:
        """Have a server that runs again go on with what waited for it."""
        for _, server, _ in self._of(id):
            server.work()

    def mended(self) -> None:
        """Let what waited behind cuts that are gone go on."""
        for _, _, wire in self._open:
            wire.mended()

    def _fault(self, rng: random.Random) -> None:
        """Break a connection at random, or cut a client off from a server for 0.05 to 5 s."""
        alive = [each for each in self._open if not (each[0].closed or each[1].closed or each[2].over)]
        if not alive:
            return
        client, server, wire = rng.choice(alive)
        if rng.random() < 0.5:
            client.reset()
            server.close("connection reset by peer")
            return
        pair = (wire.client, wire.server)
        self.world.client_cuts[pair] = True
        self._cuts += 1
        self.world.after(int(50_000 * 100 ** rng.random()), self._heal, pair)

    def _heal(self, pair: tuple[str, int]) -> None:
        self.world.client_cuts.pop(pair, None)
        self.mended()


class Dialler:
    """One client's way to connections: `open` stands for `Connection.open`."""

    def __init__(self, network: Network, client: str, party: int) -> None:
        self._network = network
        self._client = client
        self._party = party
        self._count = 0

    async def open(self, address: str, cluster: bytes, timeout_s: float, way: Way, log: str) -> Connection:
        """Dial a simulated server, as `Connection.open` dials a real one. Raises `Lost`."""
        connection: ClientEnd | None = None
        try:
            with anyio.fail_after(min(timeout_s, DIAL_S)):
                connection = await self._dial(address)
                await connection.greet(cluster, log)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise Lost(Unavailable(f"{address} does not answer")) from error
            raise
        return connection

    async def _dial(self, address: str) -> ClientEnd:
        """A new connection, without hellos; waits forever for a server that cannot be reached. Raises `Lost`."""
        world = self._network.world
        self._count += 1
        rng = random.Random(f"{world.options.seed}/{self._party}/{self._count}")
        await anyio.sleep(2 * rng.randint(*DELAY_US) / 1e6)
        host = next((h for h in world.stage.hosts.values() if h.address == address), None)
        if host is None or world.client_cut(self._client, host.id):
            await anyio.sleep_forever()
        assert host is not None
        if host.replica is None:
            raise Lost(Unavailable(f"{address}: connection refused"))
        wire = Wire(world, self._client, host.id, self._party, rng)
        client, server = ClientEnd(address, wire), ServerEnd(wire)
        self._network.add(client, server, wire)
        return client
