"""A cluster in one process that speaks the wire and does what a test says: one shared log, several front doors.

It keeps R21 and R22 as a client sees them (serials, remembered serials, epochs) and nothing of the protocol between
servers. A test changes `leader`, kills and revives servers, and puts a `script` in front of appends.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup, TaskStatus
from ports import free_port

from alpo.core import requests as q
from alpo.core.directory import Listing
from alpo.core.disk import SessionRow
from alpo.core.requests import Code
from alpo.wire import requests as r
from alpo.wire.codec import decode_client, decode_hello, encode
from alpo.wire.framing import HELLO_BYTES_MAX, FrameReader, frame_bytes_max

#: A script's verdicts on an append: take it as the log does, or …
TAKE = "take"
SWALLOW = "swallow"  # never taken, never answered
TAKE_MUTE = "take mute"  # taken, never answered
CUT = "cut"  # the connection goes before it is taken
TAKE_CUT = "take cut"  # taken, the connection goes before the answer

Verdict = str | Code
Appends = r.Append | r.AppendAfter
Script = Callable[["FakeServer", Appends], Verdict]


@dataclass
class FakeSession:
    epoch: int = 0
    nonce: bytes = b""
    opened_last: int = 0
    last: int = 0
    #: serial -> (lsn, epoch, count, body)
    slots: dict[int, tuple[int, int, int, bytes]] = field(default_factory=dict)


class FakeCluster:
    """A cluster whose servers have the ids 1, 2, …; ``leader`` is 0 while no server leads."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.tasks = tasks
        self.servers: dict[int, FakeServer] = {}
        self.leader = 1
        self.cluster = secrets.token_bytes(16)  # another test may be given the port of a server that was killed
        self.window = 1024
        self.payload_bytes_max = 1 << 20
        self.batch_bytes_max = 8 << 20
        self.time_ms = 1_700_000_000_000
        self.horizon_ms = 0
        self.entries: list[tuple[int, int, int, str, int, int, int, bytes]] = []
        self.next_id = 1
        self.next_lsn = 1
        self.first_lsn = 1
        self.sessions: dict[str, FakeSession] = {}
        self.script: Script = lambda server, append: TAKE
        #: Every append and open that reached a server, in order: (server id, request).
        self.appends: list[tuple[int, Appends]] = []
        self.opens: list[tuple[int, q.OpenSession]] = []
        self.reads: list[tuple[int, r.Read]] = []
        self.trims: list[tuple[int, q.Trim]] = []
        self.cursors: dict[str, int] = {}
        self.listing = Listing()
        #: Number of trims to come that a deposed leader judges, which has not noticed that it leads no more.
        self.stale_trims = 0
        self.page_entries_max = 1000
        #: Set when anything was appended.
        self.grown = anyio.Event()

    @property
    def addresses(self) -> str:
        return ",".join(s.address for s in self.servers.values())

    @property
    def payloads(self) -> list[bytes]:
        return [row[7] for row in self.entries]

    @property
    def last_lsn(self) -> int:
        return self.next_lsn - 1

    def lead(self, id: int) -> None:
        self.leader = id

    def append(self, client: str, serial: int, epoch: int, count: int, body: bytes) -> int:
        lsn = self.next_lsn
        self.entries.append((self.next_id, 1, self.time_ms, client, serial, lsn, count, body))
        self.next_id += 1
        self.next_lsn += count
        if client in self.sessions:
            session = self.sessions[client]
            session.last = max(session.last, serial)
            session.slots[serial] = (lsn, epoch, count, body)
        self.grown.set()
        self.grown = anyio.Event()
        return lsn

    def judge(self, append: Appends, serial: int, count: int, body: bytes) -> q.Appended | r.AppendRefused:
        """Judge one item of an append as R21 says."""
        random = append.client.startswith("~")
        if random:
            if append.client not in self.sessions and self.expired(append.client):
                return refusal(append, serial, Code.SESSION_EXPIRED, self.horizon_ms)
            self.sessions.setdefault(append.client, FakeSession())
        session = self.sessions.get(append.client)
        if session is None:
            return refusal(append, serial, Code.DROPPED, 0)
        slot = session.slots.get(serial)
        if slot is not None:
            if slot[1:] == (append.epoch, count, body):
                return q.Appended(None, append.client, serial, [slot[0]], True)
            return refusal(append, serial, Code.SERIAL_REUSED, 0)
        if append.epoch != session.epoch:
            return refusal(append, serial, Code.FENCED, session.epoch)
        if serial <= session.last:
            oldest = min(session.slots, default=serial + 1)
            return refusal(append, serial, Code.SKIPPED if serial > oldest else Code.TOO_OLD, 0)
        if serial != session.last + 1 and not append.sparse:
            return refusal(append, serial, Code.SERIAL_EXPECTED, session.last + 1)
        if isinstance(append, r.AppendAfter) and append.expect_last != self.last_lsn:
            return refusal(append, serial, Code.CONFLICT, self.last_lsn)
        lsn = self.append(append.client, serial, append.epoch, count, body)
        return q.Appended(None, append.client, serial, [lsn], False)

    def expired(self, client: str) -> bool:
        return int(client[1:].replace("-", "")[:12], 16) <= self.horizon_ms

    def open(self, ask: q.OpenSession) -> q.Opened | r.RequestRefused:
        """Open a session (R22)."""
        session = self.sessions.get(ask.name)
        epoch = session.epoch if session is not None else 0
        if session is not None and session.nonce == ask.nonce:
            return q.Opened(ask.origin, epoch, session.opened_last)
        if ask.replaces != epoch:
            return r.RequestRefused(cast(int, ask.origin), Code.EPOCH, epoch, 0, "", "")
        session = self.sessions.setdefault(ask.name, FakeSession())
        session.epoch, session.nonce, session.opened_last = self.next_id, ask.nonce, session.last
        self.next_id += 1
        return q.Opened(ask.origin, session.epoch, session.last)


class FakeServer:
    """One front door. ``address`` stays the same over `kill` and `revive`."""

    def __init__(self, cluster: FakeCluster, id: int, port: int) -> None:
        self.cluster = cluster
        self.id = id
        self.address = f"127.0.0.1:{port}"
        self.connections = 0
        self.script: Script | None = None
        #: Problem frame to greet with, instead of a hello; with NO_SUCH_LOG, those that name a log.
        self.problem: r.Problem | None = None
        #: Newest version of the protocol that it speaks.
        self.speaks = r.VERSION
        self.frozen = False
        self._sending: WeakKeyDictionary[SocketStream, anyio.Lock] = WeakKeyDictionary()
        #: Last LSN in this server's own copy; None: the copy holds all.
        self.local_lsn: int | None = None
        #: Rows of an `EventList`, and each ``before`` that was asked for.
        self.events: list[tuple[int, int, str, str]] = []
        self.events_asked: list[int] = []
        #: Status key ``appends``, and the number of times that a status was asked for.
        self.says_of_appends: Any = None
        self.asked_status = 0
        #: Milliseconds by which this server's clock is ahead.
        self.ahead_ms = 0
        self._scope = anyio.CancelScope()

    async def run(self, listener: Any, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self._scope:
            task_status.started()
            async with listener:
                await listener.serve(self._serve)

    def kill(self) -> None:
        """Cut every connection, and refuse new ones."""
        self._scope.cancel()

    async def revive(self) -> None:
        listener = await anyio.create_tcp_listener(
            local_host="127.0.0.1", local_port=int(self.address.rpartition(":")[2])
        )
        await self.cluster.tasks.start(self.run, listener)

    async def _serve(self, stream: SocketStream) -> None:
        self.connections += 1
        try:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await self._talk(stream)
        finally:
            # A cut is abrupt: what was sent and not read is gone.
            with suppress(OSError):  # it may be closed already
                raw = stream.extra(SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _talk(self, stream: SocketStream) -> None:
        c = self.cluster
        frames = FrameReader(HELLO_BYTES_MAX)
        bodies: list[bytes | memoryview] = []
        while not bodies:
            bodies = frames.feed(await stream.receive())
        hello = decode_hello(bodies[0])
        assert isinstance(hello, r.ClientHello)
        await self._thaw()
        problem = None if self.problem and self.problem.code == Code.NO_SUCH_LOG and not hello.log else self.problem
        if hello.version > self.speaks:
            problem = r.Problem(q.Code.INVALID, (
                f"the other side speaks version {hello.version} of the protocol, this one version {self.speaks}"
            ))
        if problem is not None:
            await stream.send(encode(problem))
            with suppress(OSError):  # AnyIO's own error is not raised where a client has reset the connection
                await stream.send_eof()
            await stream.receive()
            return
        members = tuple((s.id, s.address) for s in c.servers.values())
        await stream.send(encode(r.ServerHello(
            hello.version, c.cluster, self.id, c.time_ms, c.horizon_ms, c.payload_bytes_max, c.batch_bytes_max,
            c.window, c.leader, members,
        )))
        frames.bytes_max = frame_bytes_max(c.batch_bytes_max)
        todo = list(bodies[1:])
        async with anyio.create_task_group() as tasks:
            while True:
                await self._thaw()
                try:
                    for body in todo:
                        request = decode_client(body)
                        if isinstance(request, r.Read):
                            tasks.start_soon(self._read, stream, request)
                        else:
                            for reply in self._answers(request):
                                await self._send(stream, reply)
                    todo = list(frames.feed(await stream.receive()))
                except (anyio.EndOfStream, anyio.BrokenResourceError, _Cut):
                    tasks.cancel_scope.cancel()
                    return

    async def _thaw(self) -> None:
        while self.frozen:
            await anyio.sleep(0.005)

    def _answers(self, request: r.ClientRequest) -> list[Any]:
        c = self.cluster
        if isinstance(request, r.Append | r.AppendAfter):
            return self._append(request)
        leads, number = c.leader == self.id, cast(int, request[0])
        if isinstance(request, r.Status):
            self.asked_status += 1
            told = {"id": self.id, "state": "leader" if leads else "passive", "appends": self.says_of_appends}
            return [r.StatusAnswer(number, told)]
        if isinstance(request, r.ListEvents):
            self.events_asked.append(request.before)
            below = [row for row in self.events if not request.before or row[0] < request.before]
            now_ms = int(time.time() * 1000) + self.ahead_ms
            return [r.EventList(request[0], self.id, now_ms, below[-request.count :])]
        if isinstance(request, q.Initialise):
            return [r.Done(number, 0)]
        if isinstance(request, q.OpenSession):
            c.opens.append((self.id, request))
        if not leads:
            return [r.RequestRefused(number, Code.NOT_LEADER, 0, c.leader, self._address(c.leader), "")]
        if isinstance(request, q.OpenSession):
            verdict = (self.script or c.script)(self, request)  # type: ignore[arg-type]
            if verdict == CUT:
                raise _Cut
            answer = c.open(request)
            if verdict == TAKE_CUT:
                raise _Cut
            return [answer]
        if isinstance(request, q.ListSessions):
            rows = [SessionRow(name, s.epoch, b"", 0, s.last, 0, c.time_ms, []) for name, s in c.sessions.items()]
            return [q.Sessions(request[0], rows, c.horizon_ms)]
        if isinstance(request, q.Trim):
            c.trims.append((self.id, request))
            if c.stale_trims:
                c.stale_trims -= 1
                return [r.RequestRefused(number, Code.OUT_OF_RANGE, 0, 0, "", "1,3")]
            if not 0 < request.before_lsn <= c.next_lsn:
                return [r.RequestRefused(number, Code.OUT_OF_RANGE, 0, 0, "", f"{c.first_lsn},{c.last_lsn}")]
            c.first_lsn = max(c.first_lsn, request.before_lsn)
            return [q.Trimmed(request[0], c.first_lsn)]
        if isinstance(request, q.SetCursor):
            c.cursors[request.name] = request.lsn
            return [r.Done(number, request.lsn)]
        if isinstance(request, q.ShowSettings):
            return [q.SettingsAre(number, {"payload_bytes_max": c.payload_bytes_max, "batch_bytes_max": 8 << 20})]
        if isinstance(request, q.ListLogs):
            return [q.LogsAre(number, c.listing)]
        if isinstance(request, q.ListCursors):
            return [r.CursorTable(number, [(name, lsn, 10 * lsn, 1500) for name, lsn in sorted(c.cursors.items())])]
        if isinstance(request, q.DropCursor):
            if request.name not in c.cursors:
                return [r.RequestRefused(number, Code.NO_CURSOR, 0, 0, "", f"there is no cursor {request.name}")]
            return [r.Done(number, c.cursors.pop(request.name))]
        assert isinstance(request, q.DropSession)
        session = c.sessions.get(request.name)
        epoch = session.epoch if session is not None else 0
        if session is None or request.epoch not in (0, epoch):
            return [r.RequestRefused(number, Code.EPOCH, epoch, 0, "", "")]
        del c.sessions[request.name]
        return [r.Done(number, epoch)]

    def _address(self, id: int) -> str:
        return self.cluster.servers[id].address if id else ""

    def _append(self, request: Appends) -> list[Any]:
        c = self.cluster
        c.appends.append((self.id, request))
        verdict = (self.script or c.script)(self, request)
        if c.leader != self.id and verdict == TAKE:
            verdict = Code.NOT_LEADER
        if isinstance(verdict, Code):
            leader = c.leader if verdict in (Code.NOT_LEADER, Code.LOST_LEADERSHIP) else 0
            return [r.AppendRefused(
                request.client, request.serial, len(request.items), verdict, 0, leader, self._address(leader), ""
            )]
        if verdict == CUT:
            raise _Cut
        if verdict == SWALLOW:
            return []
        answers = [c.judge(request, request.serial + n, *item) for n, item in enumerate(request.items)]
        if verdict == TAKE_CUT:
            raise _Cut
        return [] if verdict == TAKE_MUTE else answers

    async def _read(self, stream: SocketStream, ask: r.Read) -> None:
        c = self.cluster
        c.reads.append((self.id, ask))
        if ask.linearizable and c.leader != self.id:
            await self._send(stream, r.RequestRefused(
                ask.request, Code.NOT_LEADER, 0, c.leader, self._address(c.leader), ""
            ))
            return
        if ask.wait_ms and not ask.linearizable:
            with anyio.move_on_after(ask.wait_ms / 1000):
                while self._end() < (ask.end or ask.start):
                    await c.grown.wait()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._send(stream, self._page(ask))

    async def _send(self, stream: SocketStream, reply: Any) -> None:
        """Send as one of the tasks that answer over this connection."""
        async with self._sending.setdefault(stream, anyio.Lock()):
            await stream.send(encode(reply))

    def _end(self) -> int:
        return self.cluster.last_lsn if self.local_lsn is None else min(self.local_lsn, self.cluster.last_lsn)

    def _page(self, ask: r.Read) -> r.Page | r.RequestRefused:
        c, end = self.cluster, self._end()
        start = ask.start or c.first_lsn
        if ask.last:
            start = max(c.first_lsn, end - ask.last + 1)
        if not c.first_lsn <= start <= end + 1:
            if start > end and ask.wait_ms:
                return r.Page(ask.request, [], start, end, c.first_lsn)
            return r.RequestRefused(ask.request, Code.OUT_OF_RANGE, 0, 0, "", f"{c.first_lsn},{end}")
        upto = min(end, ask.end) if ask.end else end
        rows = [e for e in c.entries if e[5] + e[6] > start and e[5] <= upto][: c.page_entries_max]
        next_lsn = rows[-1][5] + rows[-1][6] if rows else start
        mine = [e for e in rows if not ask.client or e[3] == ask.client]
        return r.Page(ask.request, mine, next_lsn, end, c.first_lsn)


class _Cut(Exception):
    """Raised to end a connection that the test wants gone."""


def refusal(append: Appends, serial: int, code: Code, number: int) -> r.AppendRefused:
    return r.AppendRefused(append.client, serial, 1, code, number, 0, "", "")


def hands_over(c: FakeCluster, verdict: Verdict) -> Script:
    """A script by which the leader of now judges its next append so ("kill": is killed), and another one leads."""
    old = c.servers[c.leader]

    def script(server: FakeServer, append: Appends) -> Verdict:
        if server is not old or c.leader != old.id:
            return TAKE
        c.lead(old.id % 3 + 1)
        if verdict == "kill":
            old.kill()
            return SWALLOW
        return verdict

    return script


@asynccontextmanager
async def fake_cluster(size: int = 3) -> AsyncIterator[FakeCluster]:
    """A cluster of ``size`` servers on loopback, server 1 leading."""
    async with anyio.create_task_group() as tasks:
        cluster = FakeCluster(tasks)
        listeners = []
        for id in range(1, size + 1):
            # The system's own choice could be another test's as soon as this server is killed.
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=free_port())
            cluster.servers[id] = FakeServer(cluster, id, listener.extra(SocketAttribute.local_port))
            listeners.append(listener)
        for server, listener in zip(cluster.servers.values(), listeners, strict=True):
            await tasks.start(server.run, listener)
        try:
            yield cluster
        finally:
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, however long; the test's own limit ends what never comes."""
    while not condition():
        await anyio.sleep(0.001)
