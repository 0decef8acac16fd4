"""The network between the servers, and between them and their clients: loopback TCP with faults.

Laws:

* One listening port for each server; the dialler's first frame says who it is (`CLIENT` for all that are no server).
* A fault is of a *flow*, one direction between two ends, whichever of them dialled: so one way can be cut alone.
* A byte stream never gets a gap: a flow that lost bytes (`drop`) stays silent on that connection for good, as a real
  one does whose packets no longer arrive. What is held (`hold`) arrives when the flow heals, as after a retransmission.
* A slow flow (`slow`) has so many bytes a second for all connections together, and next to no buffer: like a slow
  cable, not like a long one.
* A connection buffers `_CHUNKS_MAX` chunks a direction; whoever sends more is slowed down by TCP itself.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from ports import free_port

from alpo.wire.codec import WireError, decode_hello
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError, FrameReader
from alpo.wire.requests import PeerHello

CLIENT = 0
HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_CHUNKS_MAX = 256
#: Bytes that a slow flow takes at a time, and that the kernel may buffer for it: on loopback a segment is 64 KiB.
_SLOW_BYTES, _SLOW_BUFFER_BYTES = 1 << 14, 1 << 16
#: Time after which TCP sends a lost packet again, doubled each time; and how often one packet is lost at most.
_RETRANSMISSION_S, _RETRIES_MAX = 0.2, 3
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class Flow:
    """All bytes from one end to another. Change it through `Network` only, which wakes tasks that wait."""

    held: bool = False
    dropping: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    loss: float = 0.0
    came_bytes: int = 0
    _free_s: float = 0.0
    refused: bool = False
    _rng: random.Random = field(default_factory=lambda: random.Random(0))
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def has_room(self, count: int) -> None:
        """Wait for the turn of ``count`` bytes, if the flow is slow."""
        if self.bytes_per_s:
            self._free_s = max(self._free_s, trio.current_time()) + count / self.bytes_per_s
            turn_s = self._free_s
            while self.bytes_per_s and trio.current_time() < turn_s:
                with trio.move_on_at(turn_s):
                    await self.changed.park()
        else:
            self._free_s = 0.0

    async def pass_through(self, came_s: float) -> None:
        """Wait for as long as what came at ``came_s`` (trio's time) takes."""
        if self.loss:  # a lost packet comes with a retransmission, and all behind it waits
            sent_again_s = trio.current_time()
            for attempt in range(_RETRIES_MAX):
                if self._rng.random() < self.loss:
                    sent_again_s += _RETRANSMISSION_S * 2**attempt
            while self.loss and trio.current_time() < sent_again_s:
                with trio.move_on_at(sent_again_s):
                    await self.changed.park()
        while self.held:
            await self.changed.park()
        while self.delay_s and trio.current_time() < came_s + self.delay_s:
            with trio.move_on_at(came_s + self.delay_s):
                await self.changed.park()
        while self.held:
            await self.changed.park()


@dataclass(slots=True, eq=False)
class _Connection:
    dialler: int
    target: int
    near: trio.SocketStream
    far: trio.SocketStream
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def reset(self) -> None:
        """Close both ends with a RST."""
        _reset_on_close(self.near)
        _reset_on_close(self.far)
        self.scope.cancel()


class Network:
    """The proxies of all servers. Serve with `open`; ``ports`` says where each server really listens."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.ports: dict[int, int] = {}
        self._nursery = nursery
        self._flows: dict[tuple[int, int], Flow] = {}
        self._connections: dict[_Connection, None] = {}
        self._listeners: dict[int, trio.SocketListener] = {}

    async def open(self, target: int) -> str:
        """Begin to listen for server ``target``; the address that everyone dials."""
        (listener,) = await trio.open_tcp_listeners(free_port(), host=HOST)  # still ours when closed
        self._listeners[target] = listener
        self._nursery.start_soon(self._accept, target, listener)
        return f"{HOST}:{listener.socket.getsockname()[1]}"

    async def _accept(self, target: int, listener: trio.SocketListener) -> None:
        async with listener, trio.open_nursery() as nursery:
            with suppress(trio.ClosedResourceError):  # `refuse`
                while True:
                    stream = await listener.accept()
                    nursery.start_soon(self._serve, target, stream)

    # -- faults ---------------------------------------------------------------------------------------------

    def hold(self, sender: int, receiver: int) -> None:
        """Hold everything back until healed; then it gets through."""
        self._flow(sender, receiver).held = True

    def drop(self, sender: int, receiver: int) -> None:
        """Lose everything sent; connections that lose something are half open for good, healed or not."""
        self._flow(sender, receiver).dropping = True

    def delay(self, sender: int, receiver: int, delay_s: float) -> None:
        """Let every chunk take so much longer, until healed."""
        self._flow(sender, receiver).delay_s = delay_s

    def slow(self, sender: int, receiver: int, bytes_per_s: float) -> None:
        """Let so many bytes a second through, until healed."""
        self._flow(sender, receiver).bytes_per_s = bytes_per_s

    def lossy(self, sender: int, receiver: int, loss: float) -> None:
        """Lose this share of the packets, which TCP sends again, until healed."""
        self._flow(sender, receiver).loss = loss

    def came_bytes(self, sender: int, receiver: int) -> int:
        """Bytes that were sent so far."""
        return self._flow(sender, receiver).came_bytes

    def reset(self, one: int, other: int) -> None:
        """RST every connection between the two."""
        for connection in list(self._connections):
            if {connection.dialler, connection.target} == {one, other}:
                connection.reset()

    def cut(self, one: int, other: int) -> None:
        """RST every connection between the two, and every new one until healed."""
        self._flow(one, other).refused = self._flow(other, one).refused = True
        self.reset(one, other)

    async def refuse(self, target: int) -> None:
        """Refuse every new connection to ``target`` in its name, as a firewall does; those that are open stay."""
        await self._listeners[target].aclose()

    def isolate(self, server: int, ends: Iterable[int]) -> None:
        """Hold everything between ``server`` and ``ends``, both ways."""
        for end in ends:
            self.hold(server, end)
            self.hold(end, server)

    def heal(self, sender: int, receiver: int) -> None:
        """End every fault of this flow."""
        flow = self._flow(sender, receiver)
        flow.held = flow.dropping = flow.refused = False
        flow.delay_s = flow.bytes_per_s = flow.loss = 0.0
        flow.changed.unpark_all()

    def heal_all(self) -> None:
        """End every fault."""
        for sender, receiver in list(self._flows):
            self.heal(sender, receiver)

    def _flow(self, sender: int, receiver: int) -> Flow:
        return self._flows.setdefault((sender, receiver), Flow())

    # -- connections ----------------------------------------------------------------------------------------

    async def _serve(self, target: int, near: trio.SocketStream) -> None:
        async with near:
            try:
                dialler, first = await _who(near)
                out, back = self._flow(dialler, target), self._flow(target, dialler)
                await out.pass_through(trio.current_time())
                if out.refused:
                    raise ConnectionRefusedError
                far = await trio.open_tcp_stream(HOST, self.ports[target])
            except (OSError, trio.BrokenResourceError, KeyError):
                _reset_on_close(near)
                return
            async with far:
                connection = _Connection(dialler, target, near, far)
                self._connections[connection] = None
                try:
                    with connection.scope:
                        async with trio.open_nursery() as both:
                            both.start_soon(self._pump, connection, near, far, out, first)
                            both.start_soon(self._pump, connection, far, near, back, b"")
                finally:
                    del self._connections[connection]

    async def _pump(
        self, connection: _Connection, source: trio.SocketStream, sink: trio.SocketStream, flow: Flow, first: bytes
    ) -> None:
        """One direction, until it ends or the connection is reset."""
        put, take = trio.open_memory_channel[tuple[float, bytes | None]](_CHUNKS_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, source, put, first, flow)
            silent = False
            async with take:
                async for came_s, data in take:
                    await flow.pass_through(came_s)
                    silent = silent or flow.dropping
                    if not silent and not await _give(sink, data):
                        connection.reset()

    async def _read(
        self, source: trio.SocketStream, put: trio.MemorySendChannel[tuple[float, bytes | None]], first: bytes,
        flow: Flow,
    ) -> None:
        """Put each chunk with the time at which it came, then the end: b"" for an orderly one, None for a reset."""
        async with put:
            data: bytes | None = first or await _receive(source)
            while data:
                flow.came_bytes += len(data)
                await put.send((trio.current_time(), data))
                if flow.bytes_per_s:
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
                    data = await _receive(source, _SLOW_BYTES)
                    await flow.has_room(len(data or b""))
                else:
                    data = await _receive(source)
            await put.send((trio.current_time(), data))


async def _give(sink: trio.SocketStream, data: bytes | None) -> bool:
    """Pass it on. False: the connection is to be reset."""
    try:
        if data:
            await sink.send_all(data)
        elif data is not None:
            await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return False
    return data is not None


async def _receive(stream: trio.SocketStream, bytes_max: int = _CHUNK_BYTES) -> bytes | None:
    """The next bytes; b"" at the stream's end, None if it was reset."""
    try:
        return bytes(await stream.receive_some(bytes_max))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return None


async def _who(stream: trio.SocketStream) -> tuple[int, bytes]:
    """Id of the server that dialled, by its first frame, or `CLIENT`; and all bytes read for it."""
    reader = FrameReader(HELLO_BYTES_MAX)
    read = b""
    try:
        while data := await stream.receive_some(_CHUNK_BYTES):
            read += data
            for body in reader.feed(bytes(data)):
                hello = decode_hello(body)
                return hello.id if isinstance(hello, PeerHello) else CLIENT, read
    except (FrameError, WireError):
        pass
    return CLIENT, read


def _reset_on_close(stream: trio.SocketStream) -> None:
    with suppress(OSError, trio.ClosedResourceError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

