"""A client's end of a connection: an `alpo.client.connection.Connection` over a `Wire` instead of a socket."""

from __future__ import annotations

import random
import socket
from collections import deque
from typing import cast

import anyio

from alpo.client.connection import Connection, Lost
from alpo.dialling import Way
from alpo.errors import ProtocolError, Unavailable
from alpo.wire.framing import FrameError

from .server_end import ServerEnd
from .world import DELAY_US, ClusterWorld, Wire

#: Seconds after which a dial that nobody answers is given up: a new one finds out whether the network is mended.
DIAL_S = 1.0


class ClientEnd(Connection):
    """A client's open connection, over ``wire``."""

    def __init__(self, address: str, wire: Wire) -> None:
        super().__init__(cast(socket.socket, None), address)
        self._wire = wire
        self._inbox: deque[bytes] = deque()
        self._ended = ""
        self._news: anyio.Event | None = None
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

    @property
    def moved_bytes(self) -> int:
        """The number of bytes on their way, none: a message arrives as a whole or not at all."""
        return 0

    async def drain(self) -> None:
        """Return at once: the wire takes everything."""

    async def _receive_bodies(self) -> list[bytes | memoryview]:
        await anyio.lowlevel.checkpoint()
        while not self._inbox:
            if self.closed or self._ended:
                raise self._gone()
            self._news = anyio.Event()
            await self._news.wait()
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

    async def open(self, address: str, cluster: bytes, timeout_s: float, way: Way) -> Connection:
        """Dial a simulated server, as `Connection.open` dials a real one. Raises `Lost`."""
        connection: ClientEnd | None = None
        try:
            with anyio.fail_after(min(timeout_s, DIAL_S)):
                connection = await self._dial(address)
                await connection.greet(cluster)
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
