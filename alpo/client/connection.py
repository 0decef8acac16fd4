"""One connection to one server: dial, hello, frames out and messages in.

Laws:

* Whatever breaks it (the network, the server's last word, bytes that are no ALPO) comes out as `Lost`.
* Sending never waits: what the kernel does not take at once is kept for `drain`, and whoever sends looks at
  `backlog` first, so that at most one group of frames is kept.
* One task receives at a time; closing wakes whoever waits.

The sockets are used directly, without a stream class in between: a send from the task that has something to say spares
a hop through another task, which at one append outstanding is what the client adds to its latency.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable

import anyio

from alpo._version import __version__
from alpo.addresses import parse_address
from alpo.core.requests import Code
from alpo.core.settings import BATCH_BYTES_MOST
from alpo.errors import AlpoError, Overloaded, ProtocolError, Refused, Unavailable
from alpo.secure import SecureSocket, Trust
from alpo.tls import Rights
from alpo.wire.codec import WireError, decode_hello, decode_server, encode, version_told
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError, FrameReader, frame_bytes_max
from alpo.wire.requests import OLDEST_VERSION, VERSION, ClientHello, ClientRequest, Problem, ServerHello, ServerReply

#: `tcpi_bytes_acked` and `tcpi_bytes_received`, at offset 120 of Linux' `struct tcp_info`.
_MOVED = struct.Struct("@QQ")
#: Bytes to receive at once: after a receive that was full, and otherwise. The allocator maps new memory for the larger.
RECEIVE_BYTES, FIRST_BYTES = 256 * 1024, 64 * 1024


class Lost(Exception):
    """The end of a connection; ``reason`` is the error for a user."""

    def __init__(self, reason: AlpoError) -> None:
        super().__init__(str(reason))
        self.reason = reason


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

    @staticmethod
    async def open(
        address: str, cluster: bytes = b"", timeout_s: float = 1.0, trust: Trust | None = None
    ) -> Connection:
        """Dial and exchange hellos. ``cluster``: the only cluster id accepted (b"": any); ``trust``: for TLS. Raises
        `Lost`."""
        connection: Connection | None = None
        try:
            with anyio.fail_after(timeout_s):
                connection = await _connection(address, VERSION, trust)
                older = await connection._greet(cluster)
                if older:
                    connection.close()
                    connection = await _connection(address, older, trust)
                    await connection._greet(cluster)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise Lost(Unavailable(f"{address} does not answer")) from error
            if isinstance(error, OSError):
                raise Lost(Unavailable(f"{address}: {error.strerror or error}")) from error
            raise
        return connection

    async def _greet(self, cluster: bytes) -> int:
        """Exchange hellos. Returns 0, or the older version of the protocol that the server asks for. Raises `Lost`."""
        self.send_now(encode(ClientHello(self.version, cluster, f"alpo-python {__version__}")))
        bodies: list[bytes | memoryview] = []
        while not bodies:
            bodies = await self._receive_bodies()
        try:
            hello = decode_hello(bodies[0])
        except WireError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error
        if isinstance(hello, Problem):
            if OLDEST_VERSION <= version_told(hello.text) < self.version:
                return version_told(hello.text)
            raise _problem(self.address, hello)
        if not isinstance(hello, ServerHello):
            raise Lost(ProtocolError(f"{self.address} answered a client as a server answers another"))
        if cluster and hello.cluster and hello.cluster != cluster:
            raise Lost(ProtocolError(f"{self.address} belongs to another cluster, {hello.cluster.hex()}"))
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
            raise self._lost(error) from error
        if sent < len(data):
            self.backlog = data[sent:]

    @property
    def moved_bytes(self) -> int:
        """A number that grows as long as bytes arrive, at either end: Linux tells what was acknowledged and received;
        elsewhere what the kernel took has to do."""
        if sys.platform == "linux" and not self.closed:
            with contextlib.suppress(OSError, struct.error):
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
            raise self._lost(error) from error

    async def receive(self) -> list[ServerReply]:
        """All messages that one receive completes, at least one. Raises `Lost`."""
        bodies: list[bytes | memoryview] = []
        while not bodies:
            bodies = await self._receive_bodies()
        messages: list[ServerReply] = []
        try:
            for body in bodies:
                message = decode_server(body, self.version)
                if isinstance(message, Problem):
                    if messages:
                        break  # what came before it is heard first; the connection's end follows by itself
                    raise _problem(self.address, message)
                messages.append(message)
        except WireError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error
        return messages

    async def ask(self, make: Callable[[int], ClientRequest]) -> ServerReply:
        """Send the request that ``make`` makes of a number; returns its answer, and drops others. Raises `Lost`."""
        number = self.next_request()
        self.send(make(number))
        await self.drain()
        return await self.answer(number)

    async def answer(self, number: int) -> ServerReply:
        """The answer to request ``number``; others are dropped. Raises `Lost`."""
        while True:
            for message in await self.receive():
                if message[0] == number:
                    return message

    async def _receive_bodies(self) -> list[bytes | memoryview]:
        try:
            while True:
                if self._more:
                    await anyio.lowlevel.checkpoint()
                else:
                    await anyio.wait_readable(self._sock)
                try:
                    room = RECEIVE_BYTES if self._more else FIRST_BYTES
                    data = self._sock.recv(room)
                except BlockingIOError:
                    self._more = False
                    continue
                break
        except (OSError, anyio.ClosedResourceError) as error:
            raise self._lost(error) from error
        if not data:
            raise Lost(Unavailable(f"{self.address} closed the connection"))
        self._more = len(data) >= room
        try:
            return self._frames.feed(data)
        except FrameError as error:
            raise Lost(ProtocolError(f"{self.address}: {error}")) from error

    def close(self) -> None:
        """Close; may be called twice. Every task that waits on the connection gets `Lost`."""
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._sock)
            self._sock.close()

    def abandon(self) -> None:
        """Forget the socket in a forked child: it stays open in the parent, and the server is told nothing."""
        self.closed = True
        if isinstance(self._sock, SecureSocket):
            self._sock.forget()
        else:
            self._sock.close()

    def _lost(self, error: Exception) -> Lost:
        text = (error.strerror or error) if isinstance(error, OSError) else "the connection was closed"
        return Lost(Unavailable(f"{self.address}: {text}"))


def _problem(address: str, problem: Problem) -> Lost:
    text = f"{address}: {problem.text}"
    if problem.code == Code.NO_RIGHT:
        return Lost(Refused(text))
    return Lost(Overloaded(text) if problem.code == Code.OVERLOADED else ProtocolError(text))


async def _connection(address: str, version: int, trust: Trust | None) -> Connection:
    """A connection without hellos, over TLS if ``trust`` is given. Nothing was sent to a server that is none of the
    cluster's, by its certificate. Raises `Lost`, OSError."""
    sock = await _dial(address)
    if trust is None:
        return Connection(sock, address, version)
    try:
        contexts = trust.contexts()
        sock = secure = contexts.wrap(sock, server_side=False, host=parse_address(address)[0])
        await _shake_hands(secure)
        rights = contexts.rights(secure)
        if not rights.peers:
            raise Lost(ProtocolError(f"{address}: {rights} is not the certificate of a server of {contexts.tls.name}"))
    except BaseException:
        sock.close()
        raise
    return Connection(sock, address, version, rights)


async def _shake_hands(sock: SecureSocket) -> None:
    while True:
        try:
            return sock.handshake()
        except ssl.SSLWantReadError:
            await anyio.wait_readable(sock)
        except ssl.SSLWantWriteError:
            await anyio.wait_writable(sock)


async def _dial(address: str) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError."""
    host, port = parse_address(address)
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        targets: list[tuple[socket.AddressFamily, tuple[object, ...]]] = [(family, (host, port))]
    except ValueError:
        try:
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except ValueError as error:
            raise OSError(f"no host can have this name ({error})") from error
        targets = [(info[0], info[4]) for info in found]
    failure: OSError = OSError(f"no address for {host}")
    for family, target in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await _connect(sock, target)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _connect(sock: socket.socket, target: tuple[object, ...]) -> None:
    code = sock.connect_ex(target)
    if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        await anyio.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code).lower())
