"""Visits to a server's HTTP port, over real sockets."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import h11
import trio

WAIT_S = 20.0


class Visited(NamedTuple):
    """An answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    text: str


@asynccontextmanager
async def connected(address: str, context: ssl.SSLContext | None = None) -> AsyncIterator[trio.abc.Stream]:
    """A connection, over TLS if a context is given."""
    host, _, port = address.rpartition(":")
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, int(port))
    if context is not None:
        stream = trio.SSLStream(stream, context, https_compatible=True)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def ask(
    stream: trio.abc.Stream, path: str, *headers: tuple[str, str], method: str = "GET", host: str = "localhost"
) -> Visited:
    """One request over a connection of its own, or before the next."""
    protocol = h11.Connection(h11.CLIENT)
    request = h11.Request(method=method, target=path, headers=[("Host", host), *headers])
    await stream.send_all((protocol.send(request) or b"") + (protocol.send(h11.EndOfMessage()) or b""))
    return await answer(stream, protocol)


async def answer(stream: trio.abc.Stream, protocol: h11.Connection | None = None) -> Visited:
    """The answer to what was sent before."""
    if protocol is None:
        protocol = h11.Connection(h11.CLIENT)
        protocol.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        protocol.send(h11.EndOfMessage())
    found, body = None, b""
    with trio.fail_after(WAIT_S):
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                protocol.receive_data(bytes(await stream.receive_some(1 << 16)))
            elif isinstance(event, h11.Response):
                found = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
    assert found is not None, "no answer"
    headers = {name.decode(): value.decode() for name, value in found.headers}
    return Visited(found.status_code, headers, body.decode())


async def visit(
    address: str, path: str, *headers: tuple[str, str], method: str = "GET", host: str = "localhost",
    context: ssl.SSLContext | None = None,
) -> Visited:
    """One request on a connection of its own."""
    async with connected(address, context) as stream:
        return await ask(stream, path, *headers, method=method, host=host)


async def sent(address: str, data: bytes) -> bytes:
    """Send these bytes; return all that comes back until the server closes."""
    found = b""
    async with connected(address) as stream:
        with trio.fail_after(WAIT_S):
            try:
                await stream.send_all(data)
                while more := await stream.receive_some(1 << 16):
                    found += more
            except trio.BrokenResourceError:
                pass
    return found
