"""One connection to one server: dial, hello, frames out and messages in.

Laws:

* Whatever breaks it (the network, the server's last word, bytes that are no ALPO) comes out as `Lost`.
* Sending never waits: what the kernel does not take at once is kept for `drain`, and a sender looks at `backlog` first,
  so that at most one group of frames is kept.
* One task receives at a time; closing wakes every task that waits.

The sockets are used directly, without a stream class in between: a send from the task that has something to say spares
a hop through another task, which at one append outstanding is what the client adds to its latency.
"""

from __future__ import annotations

import math
import re
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import anyio

from alpo._version import __version__
from alpo.core.requests import LogRequest
from alpo.core.settings import BATCH_BYTES_MOST
from alpo.dialling import Unreachable, Way
from alpo.errors import AlpoError, ProtocolError, Refused, TlsMismatch, Unavailable
from alpo.secure import SecureSocket, TlsBroken, TlsLeft, Trust
from alpo.tls import Rights
from alpo.wire.client_codec import decode_hello, decode_server, encode
from alpo.wire.framing import (
    HELLO_BYTES_MAX,
    HTTP_TOLD,
    LOG_PORT_TOLD,
    TLS_TOLD,
    FrameError,
    FrameReader,
    WireError,
    frame_bytes_max,
)
from alpo.wire.requests import (
    LOGS_VERSION,
    OLDEST_VERSION,
    VERSION,
    ClientHello,
    ClientRequest,
    Problem,
    ServerHello,
    ServerReply,
)
from alpo.wire.shapes import version_told

from .reasons import OtherCluster, of_problem
from .tasks import running_loop

#: `tcpi_bytes_acked` and `tcpi_bytes_received`, at offset 120 of Linux' `struct tcp_info`.
_MOVED = struct.Struct("@QQ")
#: Bytes to receive at once: after a receive that was full, and otherwise. The allocator maps new memory for the larger.
RECEIVE_BYTES, FIRST_BYTES = 256 * 1024, 64 * 1024
#: Most buffers of one send; systems take 1024.
_BUFFERS_MAX = 256
#: Longest time, and most bytes, to hear what a port says that is not a log's.
_STRANGER_S, _STRANGER_BYTES_MAX = 0.5, 16 * 1024
_GIVE_TLS = "give --ca, --cert and --key, or tls= in Python"


#: Beginning of the name by which this process calls itself.
_library = "alpo-python "


def call_ourselves(name: str) -> None:
    """Have this process call itself so, to which its version is added. For the `alpo` command."""
    global _library
    _library = name


class Lost(Exception):
    """The end of a connection; ``reason`` is the error for a user."""

    def __init__(self, reason: AlpoError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Strange(Lost):
    """The end of a connection that brought something else than ALPO's frames; ``data``: the last bytes that came."""

    def __init__(self, address: str, what: str, data: bytes) -> None:
        super().__init__(ProtocolError(f"{address}: {what}"))
        self.what, self.data = what, data


class Connection:
    """An open connection on which the hellos have been exchanged. Made by `Connection.open`."""

    def __init__(
        self, sock: socket.socket, address: str, version: int = VERSION, rights: Rights | None = None
    ) -> None:
        """``rights``: of the server's certificate; None: no TLS."""
        self.address = address
        self._rights = rights
        #: The version of the protocol that is spoken on this connection.
        self.version = version
        self.hello = ServerHello(VERSION, b"", 0, 0, 0, 0, 0, 0, 0, ())
        self.closed = False
        #: Bytes that the kernel has not taken yet.
        self.backlog = b""
        self._taken_bytes = 0
        self._sock = sock
        self._frames = FrameReader(HELLO_BYTES_MAX)
        self._more = False
        self._request = 0
        self._loop = running_loop()

    @staticmethod
    async def open(
        address: str, cluster: bytes = b"", timeout_s: float = math.inf, way: Way | None = None, log: str = "",
        trust: Trust | None = None,
    ) -> Connection:
        """Dial and exchange hellos. ``cluster``: the only cluster id accepted (b"": any); ``way``: bounds of the steps,
        and how far it has come; ``log``: the name of the log, "": the first; ``trust``: for TLS. Raises `Lost`."""
        connection: Connection | None = None
        way = way or Way(address)
        try:
            with anyio.fail_after(timeout_s):
                connection, older = await _greeted(way, VERSION, cluster, log, trust)
                if older:
                    connection.close()
                    if log and older < LOGS_VERSION:
                        raise Lost(Refused(f"{address} is too old: it knows the first log alone, and not {log}"))
                    connection, _ = await _greeted(way, older, cluster, log, trust)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise Lost(Unavailable(way.late())) from error
            if isinstance(error, Unreachable):
                raise Lost(Unavailable(str(error))) from error
            if isinstance(error, OSError):
                raise _lost(address, error) from error
            raise
        return connection

    async def greet(self, cluster: bytes, log: str = "") -> int:
        """Exchange hellos. Returns 0, or the older version of the protocol that the server asks for. Raises `Lost`."""
        self.send_now(encode(ClientHello(self.version, cluster, f"{_library}{__version__}", log)))
        bodies: list[bytes | memoryview] = []
        while not bodies:
            try:
                await self.readable()
                bodies = self._bodies_now()
            except _Strange as strange:
                raise await self._judge_stranger(strange) from strange
        try:
            hello = decode_hello(bodies[0])
        except WireError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error
        if isinstance(hello, Problem):
            if OLDEST_VERSION <= version_told(hello.text) < self.version:
                return version_told(hello.text)
            raise Lost(of_problem(self.address, hello))
        if not isinstance(hello, ServerHello):
            raise Lost(ProtocolError(f"{self.address} answered a client as a server answers another"))
        if cluster and hello.cluster and hello.cluster != cluster:
            raise Lost(OtherCluster(f"{self.address} belongs to another cluster, {hello.cluster.hex()}"))
        if self._rights is not None and hello.id not in self._rights.peers:
            raise Lost(ProtocolError(f"{self.address}: {self._rights} is not the certificate of server {hello.id}"))
        self.hello = hello
        # Today's limits do not bound the frames: entries that are in the log already may be larger.
        self._frames.bytes_max = frame_bytes_max(BATCH_BYTES_MOST)
        return 0

    @property
    def leads(self) -> bool:
        """True if the server said, in its hello, that it is the leader."""
        return self.hello.leader == self.hello.id != 0

    def next_request(self) -> int:
        """A new number for a request on this connection."""
        self._request += 1
        return self._request

    def send(self, request: ClientRequest) -> None:
        """Send one request; `drain` afterwards if that leaves a backlog. Raises `Lost`."""
        self.send_now(encode(request, self.version))

    def send_now(self, data: bytes) -> None:
        """Send as much as the kernel takes now; the rest is the backlog. Raises `Lost`."""
        if self.backlog:
            self.backlog += data
            return
        try:
            sent = self._sock.send(data)
            self._taken_bytes += sent
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _lost(self.address, error) from error
        if sent < len(data):
            self.backlog = data[sent:]

    def send_parts(self, parts: list[bytes]) -> None:
        """Send like `send_now` what the parts are together. Raises `Lost`."""
        sent = 0
        if not self.backlog and len(parts) <= _BUFFERS_MAX and not isinstance(self._sock, SecureSocket):
            try:
                sent = self._sock.sendmsg(parts)
                self._taken_bytes += sent
            except BlockingIOError:
                pass
            except OSError as error:
                raise _lost(self.address, error) from error
            if sent < sum(map(len, parts)):
                self.backlog = b"".join(parts)[sent:]
            return
        self.send_now(b"".join(parts))

    @property
    def moved_bytes(self) -> int:
        """A number that grows as long as bytes arrive, at either end: Linux tells what was acknowledged and received;
        elsewhere what the kernel took has to do."""
        if sys.platform == "linux" and not self.closed:
            with suppress(OSError, struct.error):
                return sum(_MOVED.unpack_from(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 120))
        return self._taken_bytes

    async def drain(self) -> None:
        """Wait until the kernel has taken the backlog. Raises `Lost`."""
        try:
            while self.backlog:
                await anyio.wait_writable(self._sock)
                try:
                    sent = self._sock.send(self.backlog)
                    self._taken_bytes += sent
                except BlockingIOError:
                    continue
                self.backlog = self.backlog[sent:]
        except (OSError, anyio.ClosedResourceError) as error:
            raise _lost(self.address, error) from error

    async def receive(self) -> list[ServerReply]:
        """All messages that one receive completes, at least one. Raises `Lost`."""
        messages: list[ServerReply] = []
        while not messages:
            await self.readable()
            messages = self.receive_now()
        return messages

    def receive_now(self) -> list[ServerReply]:
        """All messages that what has arrived by now completes. Raises `Lost`."""
        messages: list[ServerReply] = []
        try:
            for body in self._bodies_now():
                message = decode_server(body, self.version)
                if isinstance(message, Problem):
                    if messages:
                        break  # the messages before the problem go first; the connection's end follows by itself
                    raise Lost(of_problem(self.address, message))
                messages.append(message)
        except WireError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error
        return messages

    async def ask(self, make: Callable[[int], ClientRequest]) -> ServerReply:
        """Send the request that ``make`` makes of a number; returns its answer, and drops others. Raises `Lost`, and
        `Refused` for a request that the server's release does not know."""
        number = self.next_request()
        request = make(number)
        if self.version < LOGS_VERSION and isinstance(request, LogRequest):
            raise Refused(f"{self.address} is too old: it knows the first log alone")
        self.send(request)
        await self.drain()
        return await self.answer(number)

    async def answer(self, number: int) -> ServerReply:
        """The answer to request ``number``; others are dropped. Raises `Lost`."""
        while True:
            for message in await self.receive():
                if message[0] == number:
                    return message

    async def _provoke(self) -> None:
        """Send an empty line to a port that has not said hello: many other protocols' servers answer that, ours never
        does. Raises `Lost` if something strange comes back."""
        try:
            with anyio.move_on_after(_STRANGER_S):
                self.send_now(b"\r\n\r\n")
                while True:
                    await self.readable()
                    self._bodies_now()
        except _Strange as strange:
            raise await self._judge_stranger(strange) from strange
        except Lost:
            pass  # its time was up before

    async def _judge_stranger(self, strange: _Strange) -> Lost:
        """The end of a connection to a port that speaks something else, in words that say what."""
        data = strange.data
        if strange.what == HTTP_TOLD:
            with suppress(OSError, anyio.ClosedResourceError), anyio.move_on_after(_STRANGER_S):
                while len(data) < _STRANGER_BYTES_MAX:
                    await anyio.wait_readable(self._sock)
                    with suppress(BlockingIOError):
                        more = self._sock.recv(FIRST_BYTES)
                        if not more:
                            break
                        data += more
            port = re.search(LOG_PORT_TOLD.encode() + rb" (\d{1,5})", data)
            where = f"{LOG_PORT_TOLD} {port[1].decode()}" if port else f"{LOG_PORT_TOLD} the one of alpod's --listen"
            return Lost(ProtocolError(f"{self.address}: an HTTP port answers there; {where}"))
        if strange.what == TLS_TOLD and self._rights is None:
            return Lost(TlsMismatch(f"{self.address}: a port with TLS answers there; {_GIVE_TLS}"))
        return strange

    async def readable(self) -> None:
        """Wait until something has arrived, or may have. Raises `Lost`."""
        if self._more:
            await anyio.lowlevel.checkpoint()
            return
        try:
            await self._loop.readable(self._sock)
        except (OSError, self._loop.closed_error) as error:
            raise _lost(self.address, error) from error

    def disturb(self) -> None:
        """Have the task that waits in `readable` get `Lost`, though the connection stays as it is."""
        anyio.notify_closing(self._sock)

    def _bodies_now(self) -> list[bytes | memoryview]:
        """Receive once; returns the bodies of the frames that this completes. Raises `Lost`."""
        room = RECEIVE_BYTES if self._more else FIRST_BYTES
        try:
            data = self._sock.recv(room)
        except BlockingIOError:
            self._more = False
            return []
        except OSError as error:
            raise _lost(self.address, error) from error
        if not data and self._frames.begins_as_tls:
            raise _Strange(self.address, TLS_TOLD, data)
        if not data:
            raise Lost(Unavailable(f"{self.address} closed the connection"))
        self._more = len(data) >= room
        try:
            return self._frames.feed(data)
        except FrameError as error:
            raise _Strange(self.address, str(error), data) from error

    def new_poll(self) -> select.poll:
        """A new object that a thread polls to wait until something has arrived."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return poll

    def close(self) -> None:
        """Close; may be called twice. Every task that waits on the connection gets `Lost`."""
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._sock)
            self._sock.close()

    def cut(self) -> None:
        """Close but for the descriptor, which another thread may be using: that calls `sweep`. Never waits."""
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._sock)
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def sweep(self) -> None:
        """Close the descriptor of a connection that was cut, which nobody else uses any more."""
        self._sock.close()

    def leave(self) -> None:
        """Close a connection on which no task waits; in any thread, also where no loop runs."""
        if not self.closed:
            self.closed = True
            self._sock.close()

    def abandon(self) -> None:
        """Forget the socket in a forked child: it stays open in the parent, and the server is told nothing."""
        self.closed = True
        if isinstance(self._sock, SecureSocket):
            self._sock.forget()
        else:
            self._sock.close()


def _lost(address: str, error: Exception) -> Lost:
    if isinstance(error, TlsBroken) and not isinstance(error, TlsLeft):
        return Lost(TlsMismatch(f"{address}: {error}"))
    text = (error.strerror or error) if isinstance(error, OSError) else "the connection was closed"
    return Lost(Unavailable(f"{address}: {text}"))


async def _greeted(
    way: Way, version: int, cluster: bytes, log: str, trust: Trust | None
) -> tuple[Connection, int]:
    """A connection on which the hellos were exchanged, over TLS if ``trust`` is given; and 0, or the older version that
    the server asks for. Nothing is sent to a server whose certificate is not one of the cluster's. Raises `Lost`,
    OSError."""
    sock = await way.connect()
    connection: Connection | None = None
    try:
        with way.answering(trust is not None):
            rights: Rights | None = None
            if trust is not None:
                contexts = trust.contexts()
                sock = secure = contexts.wrap(sock, server_side=False, host=way.host)
                await _shake_hands(secure)
                rights = contexts.rights(secure)
                if not rights.peers:
                    why = f"{rights} is not the certificate of a server of {contexts.tls.name}"
                    raise Lost(ProtocolError(f"{way.address}: {why}"))
                way.greet()
            connection = Connection(sock, way.address, version, rights)
            return connection, await connection.greet(cluster, log)
    except Unreachable:
        try:
            if connection is not None:
                await connection._provoke()
            raise
        finally:
            sock.close()
    except BaseException:
        sock.close()
        raise
    raise AssertionError("not reached: the step ends with a connection or an error")


async def _shake_hands(sock: SecureSocket) -> None:
    while True:
        try:
            return sock.handshake()
        except ssl.SSLWantReadError:
            await anyio.wait_readable(sock)
        except ssl.SSLWantWriteError:
            await anyio.wait_writable(sock)
