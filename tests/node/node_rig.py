"""Nodes on loopback in one Trio run: the whole shell and the real core, a store in memory, real sockets."""

from __future__ import annotations

import math
import random
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from alpo.core import requests as q
from alpo.core.config import ReplicaConfig
from alpo.core.directory import LogOptions
from alpo.core.disk import Write
from alpo.core.entries import random_client
from alpo.core.members import Configured
from alpo.core.ready import Tick
from alpo.core.settings import Settings
from alpo.node.admission import NO_CARE, DiskCare, Limits
from alpo.node.host import Host
from alpo.node.hosted import Shelf
from alpo.node.log_server import MakeWriter
from alpo.node.retention import KEEP_ALL, Retention
from alpo.node.security import Security
from alpo.storage.events import EventRow
from alpo.storage.hosted import find_stores
from alpo.storage.interface import Rest
from alpo.storage.memory import MemoryStore
from alpo.storage.writer import After, Slow, WriterStats
from alpo.wire import requests as w
from alpo.wire.codec import decode_hello, decode_server, encode
from alpo.wire.framing import FrameReader

FRAME_BYTES_MAX = 1 << 25
WAIT_S = 60.0


class HeldWriter:
    """A writer that commits at once, or keeps all writes while `held` is set."""

    def __init__(self, store: MemoryStore, done: Callable[[int], None]) -> None:
        self._store = store
        self._done = done
        self._waiting: deque[tuple[Write, After]] = deque()
        self.held = False
        self.stats = WriterStats()
        self.here_since_s = math.inf

    def submit(self, write: Write, after: After = None) -> None:
        if self.held:
            self._waiting.append((write, after))
        else:
            self._store.commit([write])
            if after is not None:
                after()
            self._done(write.number)

    def commit_here(self, write: Write, after: After = None) -> bool:
        """Refuse to commit on the caller's thread: writes that a test holds back must stay held."""
        return False

    def note(self, event: EventRow) -> None:
        self._store.note([event])
        self._store.checkpoint(Rest.IDLE)

    def watch(self, slow_s: float, slow: Slow, full: Callable[[], None], *, quick_s: float = math.inf) -> None:
        self.slow_s, self.slow, self.full = slow_s, slow, full

    def release(self) -> None:
        self.held = False
        while self._waiting:
            self.submit(*self._waiting.popleft())

    def give_back(self) -> None:
        """Do nothing: there is no file to shrink."""

    def close(self) -> None:
        """Do nothing: there is no thread to join."""


def held_writer(store: MemoryStore) -> MakeWriter:
    return lambda done, failed: HeldWriter(store, done)


def writer_of(node: Host) -> HeldWriter:
    assert isinstance(node.log.writer, HeldWriter)
    return node.log.writer


def memory_of(node: Host) -> MemoryStore:
    assert isinstance(node.log.store, MemoryStore)
    return node.log.store


#: Connections of `connect_raw`, which the rig closes as it ends.
_open: list[trio.SocketStream] = []


def random_id(ms: int | None = None) -> str:
    """A random client's id (R22)."""
    return random_client(ms or time.time_ns() // 1_000_000, random.getrandbits(80))


def listening_socket(port: int = 0) -> socket.socket:
    """A socket that listens on a loopback port; 0: a free one."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"{host}:{port}"


class Rig:
    """Servers 1 … n. ``nodes[i]`` is server i + 1."""

    def __init__(self, nodes: list[Host], addresses: list[str], visited: list[str]) -> None:
        self.nodes = nodes
        self.addresses = addresses
        #: Addresses of HTTP.
        self.visited = visited

    async def leader(self) -> Host:
        """The server that leads, once all follow it, it has guaranteed something, and all have dialled each other."""
        found: list[Host] = []
        last = self.nodes[-1]
        await until(lambda: all(node.replica.members.may_stand for node in self.nodes))
        if not any(node.replica.term for node in self.nodes):
            for node in self.nodes:
                node.replica.heard_s = None  # nobody led before
            last.replica.election.timer_s = trio.current_time()
            last.driver.post(Tick())
            last.driver.pump()

        def settled() -> bool:
            found[:] = [n for n in self.nodes if n.replica.state.value == "leader" and n.replica.guaranteed_id > 0]
            dialled = all(len(n.routes.dialled) >= len(self.nodes) - 1 for n in self.nodes)
            return len(found) == 1 and dialled and all(n.replica.leader_id == found[0].us.me.id for n in self.nodes)

        await until(settled)
        return found[0]


def shelf_in(folder: Path, id: int) -> Shelf:
    """The place of a server's other logs, in a folder for all servers."""
    data = folder / str(id)
    data.mkdir(exist_ok=True)
    return Shelf(data, id, *find_stores(data, id), lambda folder: NO_CARE)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``, looking at every pass of the scheduler; fails after `WAIT_S`."""
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.001)


@asynccontextmanager
async def rig(
    size: int = 1, limits: Limits | None = None, settings: Settings | None = None, retention: Retention = KEEP_ALL,
    care: DiskCare = NO_CARE, security: Callable[[int], Security] | None = None, shelves: Path | None = None,
    **config: Any,
) -> AsyncIterator[Rig]:
    """``size`` running servers, for `3 * WAIT_S` at the most. A single server starts by command: send `Init` first
    (`Client.init`). ``security`` gives the TLS settings of each id; None: no TLS. ``shelves``: a folder for the stores
    of other logs than the first; None: there can be none."""
    timers = {"heartbeat_s": 0.01, "election_timeout_s": 0.05, "stagger_s": 0.005}
    if size > 1:  # a stalled machine must not depose anybody; `Rig.leader` has the first election held at once
        timers = {"heartbeat_s": 0.05, "election_timeout_s": 2.0, "stagger_s": 0.02}
    config = timers | config
    socks = [listening_socket() for _ in range(size)]
    visits = [listening_socket() for _ in range(size)]
    configured = tuple(Configured(i + 1, address_of(sock)) for i, sock in enumerate(socks))
    nodes = []
    for i in range(size):
        store = MemoryStore(i + 1, bytes([i + 1]) * 16)
        cfg = ReplicaConfig(
            me=store.boot().me, address=configured[i].address, configured=configured, settings=settings or Settings(),
            **config,
        )
        secure = security(i + 1) if security is not None else None
        shelf = shelf_in(shelves, i + 1) if shelves is not None else None
        nodes.append(Host(cfg, limits or Limits(), store, held_writer(store), retention, care, secure, shelf))
    with trio.fail_after(3 * WAIT_S):
        try:
            async with trio.open_nursery() as nursery:
                for node, sock, visitors in zip(nodes, socks, visits, strict=True):
                    await nursery.start(partial(node.run, sock, visitors=visitors))
                try:
                    yield Rig(nodes, [c.address for c in configured], [address_of(sock) for sock in visits])
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            hang_up()  # whether or not time is up
            for sock in visits:
                sock.close()


class Client:
    """A connection that speaks frames by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._bodies: deque[bytes | memoryview] = deque()
        self.hello: w.ServerHello | None = None
        self.version = w.VERSION

    async def send(self, *messages: Any) -> None:
        await self.stream.send_all(b"".join(encode(message, self.version) for message in messages))

    async def body(self) -> bytes | memoryview | None:
        """The next frame's body; None at the end of the stream."""
        while not self._bodies:
            data = await self.stream.receive_some(1 << 18)
            if not data:
                return None
            self._bodies.extend(self._reader.feed(bytes(data)))
        return self._bodies.popleft()

    async def receive(self) -> Any:
        """The next reply; None at the end of the stream."""
        with trio.fail_after(WAIT_S):
            while (body := await self.body()) is not None:
                reply = decode_server(body, self.version)
                if reply != w.Done(0, 0):  # a sign of life, while appends go ahead
                    return reply
        return None

    async def ask(self, request: Any) -> Any:
        await self.send(request)
        return await self.receive()

    async def greet(self, hello: Any) -> Any:
        """Send a hello; the answer."""
        self.version = min(max(hello.version, w.OLDEST_VERSION), w.VERSION)
        await self.send(hello)
        with trio.fail_after(WAIT_S):
            body = await self.body()
        return None if body is None else decode_hello(body)


def hang_up() -> None:
    """Close all connections made so far."""
    while _open:
        _open.pop().socket.close()


async def connect_raw(address: str) -> Client:
    host, port = address.rsplit(":", 1)
    stream = await trio.open_tcp_stream(host, int(port))
    _open.append(stream)
    return Client(stream)


async def connect(address: str, cluster: bytes = b"", version: int = w.VERSION, log: str = "") -> Client:
    """A client that has said hello."""
    client = await connect_raw(address)
    client.hello = await client.greet(w.ClientHello(version, cluster, "test", log))
    assert isinstance(client.hello, w.ServerHello), client.hello
    return client


def append(client: str, serial: int, *items: Any) -> w.Append:
    return w.Append(client, 0, serial, False, False, list(items))


async def founded(r: Rig) -> Client:
    """A cluster of one, started by command; a client of it."""
    client = await connect(r.addresses[0])
    assert await client.ask(q.Initialise(1)) == w.Done(1, 0)
    await r.leader()
    return client


@asynccontextmanager
async def lone(**config: Any) -> AsyncIterator[tuple[Host, str, Client]]:
    """A running cluster of one: its server, the address, and a client that is connected."""
    async with rig(**config) as r:
        yield r.nodes[0], r.addresses[0], await founded(r)


def create(name: str, nonce: bytes = b"n" * 16, **options: int) -> q.CreateLog:
    return q.CreateLog(1, name, nonce, LogOptions(**options), Settings().to_plain())


def leader_of(r: Rig, number: int) -> Host | None:
    """The server that leads a log, once it serves."""
    return next((
        node for node in r.nodes if node.hosted is not None and number in node.hosted.running
        and node.hosted.running[number].server.replica.serves
    ), None)


async def led(r: Rig, number: int) -> Host:
    """Wait for the server that leads a log."""
    await until(lambda: leader_of(r, number) is not None)
    leader = leader_of(r, number)
    assert leader is not None
    return leader


def read(request: int = 1, **fields: Any) -> w.Read:
    """A local read with everything else at its default."""
    given: dict[str, Any] = {
        "start": 0, "end": 0, "last": 0, "since_ms": 0, "bytes_max": 1 << 20, "linearizable": False, "wait_ms": 0,
        "client": "",
    } | fields
    return w.Read(request, **given)
