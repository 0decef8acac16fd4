"""The faults of the proxy are what they say: against a server that sends back what it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from proxy import CLIENT, HOST, Network

from alpo.wire.codec import encode
from alpo.wire.requests import VERSION, ClientHello, PeerHello

HELLO = encode(ClientHello(VERSION, b"", "test"))
PEER_HELLO = encode(PeerHello(VERSION, b"", 2, b"i" * 16, "127.0.0.1:1", 1, b"", 0, 0, (1, 2, 3)))
#: Seconds to wait for bytes that must not come. If they came later, the test would pass wrongly, never fail wrongly.
NOTHING_S = 0.1


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Network, str]]:
    async def echo(stream: trio.SocketStream) -> None:
        try:
            async for data in stream:
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        network = Network(nursery)
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        network.ports[1] = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, echo, [listener])
        yield network, await network.open(1)
        nursery.cancel_scope.cancel()


async def dial(address: str, hello: bytes = HELLO) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.send_all(hello)
    return stream


async def heard(stream: trio.SocketStream, wanted: bytes) -> None:
    got = b""
    with trio.fail_after(10):
        while len(got) < len(wanted):
            data = await stream.receive_some()
            assert data
            got += data
    assert got == wanted


async def nothing(stream: trio.SocketStream) -> None:
    with trio.move_on_after(NOTHING_S):
        raise AssertionError(f"got {await stream.receive_some()!r}")


@pytest.mark.trio
async def test_all_passes_and_ends_pass_too() -> None:
    async with echoing() as (_, address):
        async with await dial(address) as stream:
            await heard(stream, HELLO)
            await stream.send_all(b"x" * 1_000_000)
            await heard(stream, b"x" * 1_000_000)
            await stream.send_eof()
            with trio.fail_after(10):
                assert await stream.receive_some() == b""


@pytest.mark.parametrize("flow", [(CLIENT, 1), (1, CLIENT)])
@pytest.mark.trio
async def test_what_is_held_comes_when_healed(flow: tuple[int, int]) -> None:
    async with echoing() as (network, address):
        async with await dial(address) as stream:
            await heard(stream, HELLO)
            network.hold(*flow)
            await stream.send_all(b"late")
            await nothing(stream)
            network.heal(*flow)
            await heard(stream, b"late")


@pytest.mark.parametrize("flow", [(CLIENT, 1), (1, CLIENT)])
@pytest.mark.trio
async def test_a_flow_that_lost_something_stays_silent(flow: tuple[int, int]) -> None:
    async with echoing() as (network, address):
        async with await dial(address) as stream, await dial(address, PEER_HELLO) as other:
            await heard(stream, HELLO)
            await heard(other, PEER_HELLO)
            network.drop(*flow)
            await stream.send_all(b"lost")
            await nothing(stream)
            network.heal_all()
            await stream.send_all(b"lost too")
            await nothing(stream)
            await other.send_all(b"there")
            await heard(other, b"there")
        async with await dial(address) as anew:
            await heard(anew, HELLO)


@pytest.mark.trio
async def test_faults_are_of_whom_the_first_frame_names() -> None:
    async with echoing() as (network, address):
        network.hold(2, 1)
        async with await dial(address) as stream, await dial(address, PEER_HELLO) as other:
            await heard(stream, HELLO)
            await nothing(other)
            network.heal(2, 1)
            await heard(other, PEER_HELLO)


@pytest.mark.trio
async def test_a_delay_delays() -> None:
    async with echoing() as (network, address):
        async with await dial(address) as stream:
            await heard(stream, HELLO)
            network.delay(CLIENT, 1, NOTHING_S)
            await stream.send_all(b"slow")
            await heard(stream, b"slow")
            network.delay(CLIENT, 1, 3600)
            await stream.send_all(b"slower")
            await nothing(stream)
            network.heal_all()
            await heard(stream, b"slower")


@pytest.mark.trio
async def test_a_cut_resets_and_refuses_until_healed() -> None:
    async with echoing() as (network, address):
        async with await dial(address) as stream:
            await heard(stream, HELLO)
            network.cut(CLIENT, 1)
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        async with await dial(address) as refused:
            with pytest.raises(trio.BrokenResourceError):
                await refused.receive_some()
        network.heal_all()
        async with await dial(address) as stream:
            await heard(stream, HELLO)


@pytest.mark.trio
async def test_a_server_that_does_not_listen_resets() -> None:
    async with echoing() as (network, address):
        network.ports.clear()
        async with await dial(address) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
