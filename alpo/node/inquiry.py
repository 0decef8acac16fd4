"""One connection of ours to another member, as a client's: to ask it what it holds (R31).

Laws: whatever goes wrong (the network, an answer that does not come or makes no sense) comes out as `Unusable`; nothing
waits longer than `ANSWER_S_MAX`; one request at a time.
"""

from __future__ import annotations

from collections import deque

import trio

from alpo import __version__
from alpo.config import ConfigError, parse_address
from alpo.core.ready import Code
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_hello, decode_server, encode, version_told
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError, FrameReader

from .link import Body

#: A digest takes a second at most, and one is made at a time.
ANSWER_S_MAX = 10.0
_RECEIVE_BYTES = 1 << 16
_ERRORS = (
    OSError, ConfigError, FrameError, WireError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError,
)


class Unusable(Exception):
    """This server cannot be asked, or its answer makes no sense; the message says why."""


class DamagedThere(Exception):
    """Entry ``id`` of what was asked for is damaged on the other server."""

    def __init__(self, id: int) -> None:
        super().__init__(f"entry {id} is damaged there")
        self.id = id


class Inquiry:
    """Made by `open`; to be closed with `aclose`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._frames = FrameReader(HELLO_BYTES_MAX)  # no digest is longer
        self._bodies: deque[Body] = deque()
        self._request = 0

    @staticmethod
    async def open(id: int, address: str, cluster: bytes) -> Inquiry:
        """A connection to server ``id`` of this cluster. Raises `Unusable`."""
        stream: trio.SocketStream | None = None
        try:
            with trio.fail_after(ANSWER_S_MAX):
                host, port = parse_address(address)
                stream = await trio.open_tcp_stream(host, port)
                made = Inquiry(stream)
                older = await made._greet(id, cluster, w.VERSION)
                if older:
                    await trio.aclose_forcefully(stream)
                    stream = await trio.open_tcp_stream(host, port)
                    made = Inquiry(stream)
                    await made._greet(id, cluster, older)
                return made
        except BaseException as error:
            if stream is not None:
                await trio.aclose_forcefully(stream)
            if isinstance(error, _ERRORS):
                raise Unusable(str(error) or "no answer in time") from error
            raise

    async def _greet(self, id: int, cluster: bytes, version: int) -> int:
        """0; or the older version of the protocol that the server wants. A digest is the same in all."""
        await self._stream.send_all(encode(w.ClientHello(version, cluster, f"alpod {__version__}")))
        hello = decode_hello(await self._body())
        if isinstance(hello, w.Problem):
            if w.OLDEST_VERSION <= version_told(hello.text) < version:
                return version_told(hello.text)
            raise Unusable(hello.text)
        if not isinstance(hello, w.ServerHello) or (hello.id, hello.cluster) != (id, cluster):
            raise Unusable("another server answers there")
        return 0

    async def digest(self, first_id: int, last_id: int) -> w.DigestIs:
        """What the server says of its entries ``first_id`` … ``last_id``. Raises `Unusable`, `DamagedThere`."""
        self._request += 1
        try:
            with trio.fail_after(ANSWER_S_MAX):
                await self._stream.send_all(encode(w.RangeDigest(self._request, first_id, last_id)))
                answer = decode_server(await self._body())
        except _ERRORS as error:
            raise Unusable(str(error) or "no answer in time") from error
        if isinstance(answer, w.RequestRefused) and answer.request == self._request:
            if answer.code == Code.NOT_READY and first_id <= answer.number <= last_id:
                raise DamagedThere(answer.number)
            raise Unusable(answer.detail)
        if isinstance(answer, w.Problem):
            raise Unusable(answer.text)
        if not isinstance(answer, w.DigestIs) or answer.request != self._request:
            raise Unusable("its answer makes no sense")
        if answer.last_id >= answer.first_id and not first_id <= answer.first_id <= answer.last_id <= last_id:
            raise Unusable("its answer is about other entries")
        return answer

    async def _body(self) -> Body:
        while not self._bodies:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            if not data:
                raise Unusable("it closed the connection")
            self._bodies.extend(self._frames.feed(bytes(data)))
        return self._bodies.popleft()

    async def aclose(self) -> None:
        """At once, without a checkpoint that could be cancelled midway."""
        await trio.aclose_forcefully(self._stream)
