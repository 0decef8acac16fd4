"""A TCP connection that receives whole frames and sends bytes.

Laws:

* `push` tries the socket at once, so an answer costs no task switch. Only what the kernel does not take is queued; one
  task, `drain`, sends it in order.
* The queue is bounded: beyond ``queue_bytes_max`` the connection is closed.
* The socket is written and closed, and the queue changed, under one lock: the writer's thread may call
  `push_from_thread`, so that an acceptance leaves without waiting for the event loop. Nothing is awaited under the
  lock.
* Until `allow_frames` a frame may be no longer than a hello.
* After `open_lanes` what `push_long` gets leaves in pieces, with whatever `push` gets between them, and the kernel
  keeps little that it has not sent: nothing short waits behind more than 64 KiB on this side.
* Bytes of an unfinished frame that come are told to ``moving``: the connection lives. So are queued bytes that the
  other host has acknowledged, but no more than `_UNANSWERED_BYTES` of them since its last frame: its kernel takes
  bytes also while its process stands.
* TLS, if there is any, begins before the first frame. Its handshakes take turns in threads: each costs milliseconds.
* One task receives: by `receive`, or by `deliver`, which costs no task switch for each group of frames. After a close
  by any of them, receiver and drainer both end with `LinkClosed`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeAlias

import trio

from alpo.secure import Contexts, SecureSocket, TlsBroken
from alpo.tls import FIRST_BYTES, Rights
from alpo.wire.codec import WireError
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError
from alpo.wire.lanes import LaneReader, Long, block_frame, forget_frame

from .counters import Traffic
from .poller import Poller
from .threads import in_thread

if sys.platform == "linux":
    import fcntl

#: Body of one frame, as returned by `Link.receive`.
Body: TypeAlias = bytes | memoryview

_RECEIVE_BYTES = 1 << 16  # the allocator maps new memory for each buffer of 128 KiB or more: 9 µs
#: Bytes to receive at once after a receive that was full.
_MUCH_BYTES = 1 << 18
_LINGER_S, _LINGER_BYTES = 1.0, 1 << 22
#: Number of bytes not sent yet from which on the kernel gets no more pieces. A short frame then waits behind these
#: bytes and one piece, 64 KiB in all, however much of the piece the kernel took.
_UNSENT_BYTES = 16 << 10
#: Linux' requests for the number of bytes not sent yet, and of those not acknowledged yet, sent or not.
_SIOCOUTQNSD, _SIOCOUTQ = (0x894B, 0x5411) if sys.platform == "linux" else (None, None)
_COUNT = struct.Struct("i")
#: Seconds between looks at what was acknowledged.
_LOOK_S = 0.05
#: Acknowledged bytes after which the other side should have answered: 64 KiB that a question may wait behind, and more
#: than a proxy between the two may hold.
_UNANSWERED_BYTES = 1 << 20
#: Sends of queued bytes before other tasks run.
_SENDS_A_TURN = 8
#: Bytes or seconds of leaving pieces that are enough to measure a connection by: more than the kernel has room for.
_MEASURED_BYTES, _MEASURED_S = 1 << 20, 0.05
#: Pause after a send that was refused though the socket could be written to.
_REFUSED_S = 0.001
#: Most buffers of one send; systems take 1024.
_BUFFERS_MAX = 64
#: Places, in Linux' `struct tcp_info`, of `tcpi_rtt`, the round trip time in microseconds, and `tcpi_bytes_acked`.
_RTT, _ACKED = slice(68, 72), slice(120, 128)


class _Room(threading.local):
    """A buffer for each thread to receive much into: mapping memory for it each time takes longer than the receive."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_MUCH_BYTES))


_room = _Room()


class LinkClosed(Exception):
    """The connection is closed; the message says why."""


#: Seconds of silence before the kernel probes the other host, and between its three probes.
KEEPALIVE_S = (30, 5)


def prepare(sock: socket.socket, keepalive_s: tuple[int, int] = KEEPALIVE_S) -> None:
    """Set the options of every connection: no delay, and keepalive, so that a dead host is noticed on a silent
    connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; other systems use their defaults
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive_s[0])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive_s[1])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _remote(sock: socket.socket, address: tuple[Any, ...] | None) -> str:
    try:
        host, port = (address or sock.getpeername())[:2]
    except (OSError, ValueError):  # reset already; or no internet address
        return "?"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Link:
    """A connected socket, made non-blocking (`prepare`). ``queue_bytes_max``: bytes that may wait to be sent."""

    def __init__(
        self, sock: socket.socket, queue_bytes_max: int, keepalive_s: tuple[int, int] = KEEPALIVE_S,
        address: tuple[Any, ...] | None = None,
    ) -> None:
        """``address``: the other side's, as `socket.accept` told it: a connection that was reset knows it no more.
        Raises OSError."""
        prepare(sock, keepalive_s)
        self._sock = sock
        #: HOST:PORT of the other side; "?" if it cannot be determined.
        self.remote = _remote(sock, address)
        self._reader = LaneReader(HELLO_BYTES_MAX)
        self._long = Long()
        self._in_lanes = False
        #: Numbers of blocks that the other side holds; called with each that it holds now.
        self.held: set[int] = set()
        self.on_held: Callable[[], None] = lambda: None
        #: Bytes of long frames that leave in a second, by the last that took a while; None: not known yet.
        self.long_bytes_per_s: float | None = None
        self._long_since_s, self._long_sent_bytes = 0.0, 0
        #: Called when part of a frame has come (True), or some of what was queued has arrived (False). For the Trio
        #: thread.
        self.moving: Callable[[bool], None] = lambda incoming: None
        #: Bytes of payload over this connection, or, once replaced, over all to the same server.
        self.traffic = Traffic()
        self._look_s = 0.0  # time of the next look at what has arrived, by Trio's clock
        self._arrived_bytes = 0  # bytes that the other host had acknowledged at the last look
        self._answered_bytes = 0  # bytes acknowledged at the first look after the other side's last frame
        self._answered = True  # a frame has come since that look
        self._queue: deque[memoryview] = deque()
        self._queue_bytes_max = queue_bytes_max
        self._lock = threading.Lock()
        self._token = trio.lowlevel.current_trio_token()
        self._wake = trio.Event()
        self._sent = trio.lowlevel.ParkingLot()
        self._waits = trio.CancelScope()
        #: Bytes that wait for the other side to read.
        self.queued_bytes = 0
        #: Reason for closing; "" while open.
        self.closed = ""
        self._trouble = ""
        self._take: Callable[[list[Body]], bool] | None = None  # gets what `deliver` receives
        self._much = False  # the last receive of `deliver` was full
        self._poller: Poller | None = None  # the one that watches the socket for `deliver`
        self._paused = trio.Event()  # set when it does so no longer
        self._undeliverable: FrameError | WireError | None = None
        self._is_ready = True  # not during a handshake

    @property
    def round_trip_ms(self) -> float | None:
        """Round trip time in ms as the kernel measured it; None if not available or the connection is closed."""
        found = self._tcp_info(_RTT)
        return None if found is None else found / 1000

    def _tcp_info(self, field: slice) -> int | None:
        """A field of the kernel's account of the connection; None if it has none, or the connection is closed."""
        if not hasattr(socket, "TCP_INFO") or self.closed:
            return None
        try:
            found = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, field.stop)[field]
        except OSError:
            return None
        return int.from_bytes(found, sys.byteorder) if len(found) == field.stop - field.start else None

    async def first_bytes(self) -> bytes:
        """The first `alpo.tls.FIRST_BYTES` bytes, which `receive` or `secure` gets again; fewer if the connection ends.
        Raises `LinkClosed`."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, FIRST_BYTES)
            first = None
            while first is None:
                await trio.lowlevel.wait_readable(self._sock)
                with contextlib.suppress(BlockingIOError, InterruptedError):
                    first = self._sock.recv(FIRST_BYTES, socket.MSG_PEEK)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except (OSError, trio.ClosedResourceError) as error:
            self.close(self.closed or str(error))
            raise LinkClosed(self.closed) from error
        return first

    async def secure(
        self, contexts: Contexts, turns: trio.CapacityLimiter, host: str = "", roles: Mapping[str, str] | None = None,
        first: trio.CapacityLimiter | None = None,
    ) -> Rights:
        """Begin TLS; returns what the other side's certificate gives a right to. ``host``: the host that was dialled;
        "": the connection was accepted. ``turns``: a limiter of handshakes that compute at the same time; ``first``:
        another limiter, in which the handshake takes its turn before. ``roles``: see `alpo.tls.rights_of`. Raises
        `alpo.secure.TlsBroken`, after which nothing can be sent, `LinkClosed`."""
        self._sock = sock = contexts.wrap(self._sock, not host, host)
        self._is_ready = False
        while not self.closed:
            try:
                async with first or contextlib.nullcontext():
                    if not self.closed:  # while it waited for its turn
                        await in_thread(sock.handshake, limiter=turns)
                self._is_ready = True
                if not self.closed:
                    return contexts.rights(sock, roles)
            except TlsBroken:
                if not self.closed:
                    raise
            except ssl.SSLWantReadError:
                await self._until_ready(trio.lowlevel.wait_readable)
            except ssl.SSLWantWriteError:
                await self._until_ready(trio.lowlevel.wait_writable)
        raise LinkClosed(self.closed)

    async def _until_ready(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            if not self.closed:
                await wait(self._sock)

    async def linger(self, why: str) -> None:
        """Close after a handshake that failed; for a moment what still comes in is dropped, so that the other side
        reads why."""
        dropped = 0
        with trio.move_on_after(_LINGER_S):
            with contextlib.suppress(OSError, trio.ClosedResourceError):
                self._sock.shutdown(socket.SHUT_WR)
                while not self.closed and dropped < _LINGER_BYTES:
                    await trio.lowlevel.wait_readable(self._sock)
                    data = socket.socket.recv(self._sock, _RECEIVE_BYTES)
                    dropped += len(data)
                    if not data:
                        break
        self.close(why)

    def open_lanes(self) -> None:
        """Take and send pieces: the other side is a server."""
        self._in_lanes = True
        self._reader.open(self.push, self._have)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def allow_frames(self, bytes_max: int) -> None:
        """Accept frames of up to ``bytes_max``, once the hello was accepted."""
        self._reader.bytes_max = bytes_max

    async def receive(self) -> list[Body]:
        """Receive at least one whole frame; returns all bodies that arrived. Raises `LinkClosed`, `FrameError`."""
        while True:
            data = await self.receive_some()
            bodies = self._reader.feed(data)
            if bodies:
                self._answered = True
                return bodies
            self.moving(True)

    async def receive_some(self) -> bytes:
        """Receive bytes as they come, for what is not frames. Raises `LinkClosed`."""
        while True:
            if self.closed:
                await trio.lowlevel.checkpoint_if_cancelled()
                raise LinkClosed(self.closed)
            try:
                await trio.lowlevel.wait_readable(self._sock)
                data = self._sock.recv(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, trio.ClosedResourceError) as error:
                self.close(self.closed or str(error))
                raise LinkClosed(self.closed) from error
            if not data:
                self.close("closed by the other side")
                raise LinkClosed(self.closed)
            self.traffic.received_bytes += len(data)
            return data

    async def deliver(
        self, poller: Poller, take: Callable[[list[Body]], bool], room: Callable[[], Awaitable[None]]
    ) -> NoReturn:
        """Call ``take`` with whatever arrives, a group of bodies at a time, until the connection ends. The bodies last
        until ``take`` returns. At first, and after it has returned False, nothing is read until ``room()`` is done,
        which a close ends. Raises `LinkClosed`, `FrameError`, and the `WireError` that ``take`` raised."""
        self._take = take
        while not self.closed:
            with trio.CancelScope() as self._waits:
                await room()
            if self.closed:
                break
            try:
                poller.add(self._sock, self._deliver_some, server=self._in_lanes)
            except OSError as error:  # the system watches no more sockets
                self.close(str(error))
                break
            self._paused, self._poller = trio.Event(), poller
            try:
                await self._paused.wait()
            finally:
                self._pause()
            if self._undeliverable is not None:
                raise self._undeliverable
        await trio.lowlevel.checkpoint_if_cancelled()
        raise LinkClosed(self.closed)

    def _deliver_some(self) -> None:
        """Receive once, and give whole frames on. Called by the poller."""
        if self._poller is None:  # closed, or paused, by another socket's function in the same pass
            return
        assert self._take is not None
        try:
            data = self._sock.recv(_RECEIVE_BYTES) if not self._much else self._receive_much()
            self.traffic.received_bytes += len(data)
            self._much = len(data) >= _RECEIVE_BYTES
            if not data:
                self.close("closed by the other side")
            elif bodies := self._reader.feed(data):
                self._answered = True
                if not self._take(bodies):
                    self._pause()
            else:
                self.moving(True)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close(str(error))
        except (FrameError, WireError) as error:
            self._undeliverable = error
            self._pause()

    def _receive_much(self) -> bytes | memoryview:
        """Receive more at once, into a buffer that the next call in this thread overwrites."""
        if isinstance(self._sock, SecureSocket):
            return self._sock.recv(_RECEIVE_BYTES)
        room = _room.view
        return room[: self._sock.recv_into(room)]

    def _pause(self) -> None:
        if self._poller is not None:
            self._poller.remove(self._sock)
            self._poller = None
            self._paused.set()

    def push(self, data: bytes | bytearray) -> None:
        """Send ``data``, which the caller must not change any more. Never blocks; a closed link drops it."""
        if self._try(data):
            self._see_to_rest()

    def push_from_thread(self, data: bytes) -> None:
        """Send like `push`, from any thread."""
        if self._try(data):
            with contextlib.suppress(trio.RunFinishedError):  # the server has stopped
                self._token.run_sync_soon(self._see_to_rest)

    def push_long(self, *parts: bytes, ordered: bool) -> None:
        """Send a frame, the ``parts`` joined, in pieces, after `open_lanes`. ``ordered``: it has entries, see
        `long_entries`. From any thread."""
        with self._lock:
            if self.closed or self._trouble:
                return
            before_bytes = self._long.bytes
            self._long.add(*parts, ordered=ordered)
            self._queued(self._long.bytes - before_bytes)
        if trio.lowlevel.in_trio_run():
            self._send_at_once()
            self._see_to_rest()
        else:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._see_to_rest)

    def _send_at_once(self) -> None:
        """Send as many pieces as the kernel takes, if nothing else waits."""
        try:
            while not self._queue and self._send_next() and self._kernel_keeps_little():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._trouble = str(error)

    def send_block(self, number: int, data: bytes) -> None:
        """Send bytes ahead of the message in which they belong; see `held`."""
        self.push_long(*block_frame(number, data), ordered=False)

    def forget_block(self, number: int) -> None:
        """Have a block forgotten, after all that was pushed before; refer to it no more."""
        self.held.discard(number)
        self.push_long(forget_frame(number), ordered=False)

    def _have(self, number: int) -> None:
        self.held.add(number)
        self.on_held()

    @property
    def long_entries(self) -> int:
        """Frames of entries that wait to leave in pieces: later entries must not overtake them."""
        return self._long.ordered

    def abandon_long(self) -> None:
        """Drop what waits to leave in pieces, but for blocks to forget."""
        with self._lock:
            before_bytes = self._long.bytes
            end = self._long.abandon()
            self.queued_bytes += self._long.bytes - before_bytes
        if end:
            self.push(end)
        self._see_to_rest()

    def _try(self, data: bytes | bytearray) -> bool:
        """Send what the kernel takes, and queue the rest. True if there is a rest or an error: call `_see_to_rest`."""
        with self._lock:
            if self.closed or self._trouble:  # then whoever met the trouble has seen to it that it is closed
                return False
            sent = 0
            if not self._queue:
                try:
                    sent = self._sock.send(data)
                    self.traffic.sent_bytes += sent
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError as error:
                    self._trouble = str(error)
                    return True
                if sent == len(data):
                    return False
            self._queue.append(memoryview(data)[sent:])
            self._queued(len(data) - sent)
            return True

    def _queued(self, count: int) -> None:
        self.queued_bytes += count
        if self.queued_bytes > self._queue_bytes_max:
            self._trouble = f"the other side does not read: {self.queued_bytes} bytes wait"

    def _see_to_rest(self) -> None:
        if self._trouble:
            self.close(self._trouble)
        else:
            self._wake.set()

    async def drain(self) -> None:
        """Send what `push` had to queue, as long as the link is open. Run in one task."""
        while True:
            while self._queue or self._long.bytes:
                await self._send_some()
                if self.closed:
                    return
            if self.closed:
                return
            self._wake = trio.Event()
            await self._while_arriving(self._wake.wait)

    async def _while_arriving(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Call ``wait()`` while the link is open; meanwhile, report to `moving` what arrives at the other host."""
        while not self.closed:  # a closed socket cannot be waited for
            over, now_s = not self.queued_bytes and not self._leaves_bytes(), trio.current_time()
            if over or now_s >= self._look_s:
                self._look_s = now_s + _LOOK_S
                self._look_at_arrivals()
            if over:
                return await wait()
            with trio.move_on_after(_LOOK_S):
                return await wait()

    def _leaves_bytes(self) -> bool:
        """True if the other host has not acknowledged all that was sent in lanes."""
        if not self._in_lanes or _SIOCOUTQ is None or self.closed:
            return False
        return _COUNT.unpack(fcntl.ioctl(self._sock, _SIOCOUTQ, bytes(_COUNT.size))) != (0,)

    def _look_at_arrivals(self) -> None:
        """Report to `moving` that bytes have arrived since the last look, unless the other side should have answered by
        now."""
        if not self._in_lanes:
            return
        acknowledged = self._tcp_info(_ACKED)
        arrived_bytes = self.traffic.sent_bytes if acknowledged is None else acknowledged
        if self._answered:
            self._answered, self._answered_bytes = False, arrived_bytes
        if self._arrived_bytes < arrived_bytes <= self._answered_bytes + _UNANSWERED_BYTES:
            self.moving(False)
        self._arrived_bytes = arrived_bytes

    async def _send_some(self) -> None:
        sends = 0
        try:
            await self._while_arriving(partial(trio.lowlevel.wait_writable, self._sock))
            while sends < _SENDS_A_TURN and self._send_next() and self._kernel_keeps_little():
                sends += 1
        except (BlockingIOError, InterruptedError):
            if not sends:
                await trio.sleep(_REFUSED_S)  # TLS may want to read first
                return
        except (OSError, trio.ClosedResourceError) as error:
            self.close(self.closed or str(error))
            return
        if not self._in_lanes:  # then an answer may wait behind all that is queued
            self.moving(False)
        self._sent.unpark_all()

    def _kernel_keeps_little(self) -> bool:
        """True if the kernel may get one more piece without waiting until it says so."""
        if not self._in_lanes:
            return True
        if _SIOCOUTQNSD is None or self.closed:
            return False
        (count,) = _COUNT.unpack(fcntl.ioctl(self._sock, _SIOCOUTQNSD, bytes(_COUNT.size)))
        return bool(count < _UNSENT_BYTES)

    def _send_next(self) -> bool:
        """Send of what is queued first, or the next piece; True if it was sent as a whole, and something is left."""
        with self._lock:
            if self.closed:
                return False
            queue = self._queue
            if not queue:
                if not self._long.bytes:
                    return False
                self._take_piece()
            if len(queue) == 1 or isinstance(self._sock, SecureSocket):
                sent = self._sock.send(queue[0])
            else:
                sent = self._sock.sendmsg(islice(queue, _BUFFERS_MAX))
            self.traffic.sent_bytes += sent
            self.queued_bytes -= sent
            while queue and sent >= len(queue[0]):
                sent -= len(queue.popleft())
            if sent:
                queue[0] = queue[0][sent:]
                return False
            return bool(queue or self._long.bytes)

    def _take_piece(self) -> None:
        """Move the next piece to the queue, and measure how quickly they leave."""
        long, now_s = self._long, trio.current_time()
        if not self._long_sent_bytes:
            self._long_since_s = now_s
        before_bytes = long.bytes
        parts = long.piece()
        size = sum(map(len, parts))
        if isinstance(self._sock, SecureSocket):  # each buffer would be a record of its own
            parts = [b"".join(parts)]
        self._queue.extend(map(memoryview, parts))
        self.queued_bytes += long.bytes + size - before_bytes
        self._long_sent_bytes += size
        if not long.bytes or self._long_sent_bytes > _MEASURED_BYTES:
            took_s = now_s - self._long_since_s
            if took_s > _MEASURED_S or self._long_sent_bytes > _MEASURED_BYTES:
                self.long_bytes_per_s = self._long_sent_bytes / max(took_s, 1e-6)
            self._long_sent_bytes = 0

    async def wait_below(self, bytes_high: int) -> None:
        """Wait until at most ``bytes_high`` are queued, or the link is closed."""
        while self.queued_bytes > bytes_high and not self.closed:
            await self._sent.park()

    def close(self, why: str) -> None:
        """Close at once; queued data is lost. Calls after the first change nothing."""
        if self.closed:
            return
        trio.lowlevel.notify_closing(self._sock)
        self._pause()
        with self._lock:
            self.closed = why or "closed"
            self._sock.close()
            self._queue.clear()
            self._long = Long()
            self.queued_bytes = 0
        self._wake.set()
        self._waits.cancel()
        self._sent.unpark_all()

    async def part(self, last_words: bytes, why: str) -> None:
        """Close after ``last_words`` have arrived. Incoming data is read and dropped for a moment: closing a socket
        with unread bytes resets the connection, and the words could be lost."""
        if not self._is_ready:  # words would wait for the other side's handshake
            return self.close(why)
        self.push(last_words)
        dropped = 0
        with trio.move_on_after(_LINGER_S):
            try:
                await self.wait_below(0)
                if not self.closed:
                    self._sock.shutdown(socket.SHUT_WR)
                while dropped < _LINGER_BYTES:
                    dropped += len(await self.receive_some())
            except (LinkClosed, OSError):
                pass
        self.close(why)
