"""Seeing what servers do: plain requests to one server at one address, without the client library, and waiting."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, TypeVar, overload

import trio

from alpo.secure import Contexts
from alpo.tls import tls_given
from alpo.wire import requests as w
from alpo.wire.codec import decode_hello, decode_server, encode
from alpo.wire.framing import FrameReader, frame_bytes_max

ANSWER_S = 5.0
WITHIN_S = 60.0
#: Seconds between two looks, more and more: while a test waits, looks cost the servers more than all else.
_POLL_FIRST_S, _POLL_MAX_S = 0.02, 0.25
T = TypeVar("T")


@overload
async def until(condition: Callable[[], Awaitable[T]], within_s: float = WITHIN_S) -> T: ...
@overload
async def until(condition: Callable[[], T], within_s: float = WITHIN_S) -> T: ...
async def until(condition: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """Wait until ``condition``, which other processes bring about, gives something true; return that. Raises
    `trio.TooSlowError`."""
    pause_s = _POLL_FIRST_S
    with trio.fail_after(within_s):
        while True:
            found = condition()
            came_to = await found if isawaitable(found) else found
            if came_to:
                return came_to
            await trio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _POLL_MAX_S)


class Probe:
    """One connection, hello done. Raises `trio.BrokenResourceError` once the server has closed it."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.hello: w.Hello | w.Problem | None = None
        self._frames = FrameReader(frame_bytes_max(8 << 20))
        self._bodies: list[Any] = []

    async def body(self) -> bytes | memoryview:
        """The next frame's body."""
        while not self._bodies:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise trio.BrokenResourceError("closed by the server")
            self._bodies.extend(self._frames.feed(bytes(data)))
        body: bytes | memoryview = self._bodies.pop(0)
        return body

    async def answer(self) -> w.ServerReply | w.Problem:
        """The next answer, to whatever request."""
        return decode_server(await self.body())

    async def ask(self, request: w.ClientRequest) -> w.ServerReply | w.Problem:
        """Send and take the next answer."""
        await self.stream.send_all(encode(request))
        return await self.answer()


@asynccontextmanager
async def probe(address: str, hello: w.Hello | None = None) -> AsyncIterator[Probe]:
    """Connect, over TLS if the environment names certificates, and exchange hellos; ``hello`` (a client's by default)
    is sent as given."""
    host, _, port = address.rpartition(":")
    plain = await trio.open_tcp_stream(host, int(port))
    tls = tls_given(os.environ)
    stream = plain if tls is None else trio.SSLStream(plain, Contexts.load(tls).client, server_hostname=host)
    async with stream:
        connection = Probe(stream)
        await stream.send_all(encode(hello or w.ClientHello(w.VERSION, b"", "probe")))
        connection.hello = decode_hello(await connection.body())
        yield connection


async def status(address: str, log: str = "") -> dict[str, Any] | None:
    """Status of a server of any release, in one of its logs, by default the first; None if it does not answer."""
    hello = w.ClientHello(w.LOGS_VERSION if log else w.OLDEST_VERSION, b"", "probe", log)
    with trio.move_on_after(ANSWER_S):
        try:
            async with probe(address, hello) as server:
                answer = await server.ask(w.Status(1))
        except (OSError, trio.BrokenResourceError):
            return None
        return answer.fields if isinstance(answer, w.StatusAnswer) else None
    return None
