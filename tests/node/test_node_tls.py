"""Handshakes that fail, stop, are cut, or take for ever: the reason arrives, nothing leaks, and the log works on."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from node_rig import Client, Rig, address_of, append, listening_socket, random_id, rig, until
from tls_kit import (
    HELLO,
    Open,
    certificates,
    client_hello,
    descriptors,
    greeted,
    leaf,
    plain_socket,
    refusal_of,
    security_of,
    tls_of,
)

from alpo.core import requests as q
from alpo.dialling import Way
from alpo.node import link
from alpo.node.admission import Limits
from alpo.node.link import Link
from alpo.secure import Contexts, SecureSocket
from alpo.wire import requests as w

TIMES, AT_ONCE = 100, 10


class Running:
    """One server that requires TLS, and a client of it that appends."""

    def __init__(self, servers: Rig, client: Client, contexts: Contexts) -> None:
        self.node, self.address, self.client, self.contexts = servers.nodes[0], servers.addresses[0], client, contexts
        self._id, self._serial = random_id(), 0
        self.before = descriptors()

    async def append(self) -> None:
        self._serial += 1
        answer = await self.client.ask(append(self._id, self._serial, b"on"))
        assert isinstance(answer, q.Appended), answer

    async def all_gone(self) -> None:
        """Wait until no other connection is left in the server, and no socket of one."""
        listener = self.node.listener
        await until(lambda: not listener._silent and len(listener.clients) == 1 and descriptors() <= self.before)
        await self.append()


@asynccontextmanager
async def running(certs: Path, limits: Limits | None = None) -> AsyncIterator[Running]:
    contexts = Contexts.load(tls_of(certs, "ops"))
    async with rig(limits=limits, security=lambda id: security_of(certs, id)) as servers:
        async with Open(servers.addresses[0], contexts.client) as (_, stream):
            client = await greeted(stream)
            assert await client.ask(q.Initialise(1)) == w.Done(1, 0)
            await servers.leader()
            yield Running(servers, client, contexts)


@pytest.mark.trio
async def test_a_client_hello_a_byte_at_a_time_is_closed_at_its_time(certs: Path) -> None:
    """The time is for the whole handshake: no byte begins it anew."""
    async with running(certs, Limits(hello_timeout_s=1.0)) as server:
        hello, ended = client_hello(server.contexts), []

        async def drip(cut_s: float) -> None:
            with await plain_socket(server.address) as sock:
                try:
                    for at in range(len(hello)):
                        sock.send(hello[at : at + 1])
                        with trio.move_on_after(cut_s):
                            await trio.lowlevel.wait_readable(sock)
                            assert sock.recv(100) == b""
                            break
                    else:
                        raise AssertionError(f"the whole hello was heard at {cut_s} s a byte")
                except (BrokenPipeError, ConnectionResetError):
                    pass
                ended.append(at)

        async with trio.open_nursery() as nursery:
            for cut_s in (0.3, 0.15, 0.3, 0.15):
                nursery.start_soon(drip, cut_s)
            while len(ended) < 4:
                await server.append()
        await server.all_gone()


@pytest.mark.trio
async def test_a_handshake_cut_at_every_byte_leaves_nothing(certs: Path) -> None:
    """The client ends it, resets it, or says no more until its time is over."""
    async with running(certs, Limits(hello_timeout_s=2.0)) as server:
        hello, silent = client_hello(server.contexts), []
        assert 200 < len(hello) < server.node.limits.silent_connections_max
        for at in range(len(hello) + 1):
            for how in ("end", "reset", "silence"):
                sock = await plain_socket(server.address)
                sock.send(hello[:at])
                if how == "silence":
                    silent.append(sock)
                    continue
                if how == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            if at % 20 == 0:
                await server.append()
        for sock in silent:
            await _ended(sock)
            sock.close()
        await server.all_gone()
        handshakes, hosts = server.node.driver.counters.handshakes, server.node.listener.strangers.fields()
        assert hosts == [] and handshakes["failed"] == 0, "who goes away is no stranger"
        assert handshakes["left"] > len(hello)


async def _ended(sock: socket.socket) -> None:
    """Wait until the server has ended the connection."""
    with contextlib.suppress(ConnectionResetError):
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not sock.recv(1 << 16):
                return


@pytest.mark.trio
async def test_a_hello_with_any_byte_wrong_leaves_nothing(certs: Path) -> None:
    async with running(certs, Limits(hello_timeout_s=2.0)) as server:
        hello, chance = client_hello(server.contexts), random.Random(0)

        async def tell(at: int) -> None:
            wrong = bytearray(hello)
            wrong[at] ^= chance.randrange(1, 256)
            with await plain_socket(server.address) as sock:
                sock.send(wrong)
                sock.shutdown(socket.SHUT_WR)
                await _ended(sock)

        for part in range(0, len(hello), 50):
            async with trio.open_nursery() as nursery:
                for at in range(part, min(part + 50, len(hello))):
                    nursery.start_soon(tell, at)
                await server.append()
        await server.all_gone()


def _context(change: Callable[[ssl.SSLContext], None]) -> Callable[[Path], ssl.SSLContext]:
    def make(at: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = SecureSocket
        context.check_hostname = False
        context.load_verify_locations(at / "ca.pem")
        change(context)
        return context

    return make


def _old(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def _of_another_ca(at: Path) -> ssl.SSLContext:
    other = certificates(at / "other")
    shutil.copy(at / "ca.pem", other / "ca.pem")
    return Contexts.load(tls_of(other, "ops")).client


@pytest.mark.parametrize(("make", "words"), [
    (_of_another_ca, "the other side does not trust this side's certificate: another CA made it"),
    (lambda at: Contexts.load(leaf(at, "late", ends_in_s=-60)).client, "this side's certificate has expired"),
    (_context(lambda context: None), "the other side wants a certificate"),
    (
        lambda at: Contexts.load(leaf(at, "only", uses=["serverAuth"])).client,
        "this side's certificate is not one for this use",
    ),
    (_context(_old), "the other side speaks another version of TLS: ALPO speaks TLS 1.3"),
], ids=["another CA", "expired", "none", "no client's", "TLS 1.2"])
@pytest.mark.trio
async def test_the_reason_of_a_refusal_arrives_every_time(
    certs: Path, tmp_path: Path, make: Callable[[Path], ssl.SSLContext], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "certs"
    shutil.copytree(certs, mine)
    context = make(mine)
    monkeypatch.setattr(link, "_LINGER_S", 30.0)  # a machine that stalls is late, and not refused
    async with running(certs, Limits(hello_timeout_s=60.0)) as server:
        told: list[str] = []

        async def ask() -> None:
            for _ in range(TIMES // AT_ONCE):
                told.append(await refusal_of(server.address, context))

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(ask)
            while len(told) < TIMES:
                await server.append()
        assert all(text.startswith(words) for text in told), sorted(set(told))
        await server.all_gone()


@pytest.mark.trio
async def test_a_refusal_is_no_reset_though_the_hello_is_unread(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset could overtake the reason, and throw it away."""
    mine = tmp_path / "certs"
    shutil.copytree(certs, mine)
    handshake, goes, begun = SecureSocket.handshake, threading.Event(), set[int]()

    def late(sock: SecureSocket) -> None:
        if sock.server_side and sock.fileno() in begun:
            goes.wait(20)
        elif sock.server_side:
            begun.add(sock.fileno())
        handshake(sock)

    async with running(certs) as server:
        monkeypatch.setattr(SecureSocket, "handshake", late)
        async with Open(server.address, _of_another_ca(mine)) as (sock, stream):
            await stream.send_all(HELLO * 100)
            goes.set()
            told = b""
            while True:
                await trio.lowlevel.wait_readable(sock)
                data = socket.socket.recv(sock, 1 << 16)
                if not data:
                    break
                told += data
        assert told  # an alert, then the end


@pytest.mark.trio
async def test_a_server_that_stops_amid_handshakes_leaves_no_descriptor(certs: Path) -> None:
    hello, before = client_hello(Contexts.load(tls_of(certs, "ops"))), 0
    for round in range(11):
        ours = []
        async with rig(security=lambda id: security_of(certs, id)) as servers:
            for number in range(20):
                sock = await plain_socket(servers.addresses[0])
                sock.send(hello[: len(hello) * (number % 5) // 4])
                ours.append(sock)
            for _ in range(round * 5):
                await trio.lowlevel.checkpoint()
        for sock in ours:
            sock.close()
        before = before or descriptors()  # the first round opens some that stay
        assert descriptors() == before


@pytest.mark.parametrize("dials", [True, False], ids=["dialled", "accepted"])
@pytest.mark.trio
async def test_a_server_s_handshake_that_is_cancelled_leaves_no_descriptor(certs: Path, dials: bool) -> None:
    """The other side says nothing, a part of its hello, or all of it and no more."""
    security, before = security_of(certs), 0
    assert security.contexts is not None
    hello = client_hello(security.contexts)
    with listening_socket() as listening:
        for number in range(200):
            other = await plain_socket(address_of(listening))
            with listening.accept()[0] as ours, other, trio.CancelScope() as scope:
                other.send(hello[: len(hello) * (number % 4) // 3])
                async with trio.open_nursery() as nursery:
                    if dials:
                        nursery.start_soon(security.dial, 2, Way(address_of(listening)))
                    else:
                        link = Link(ours, 1 << 20)
                        nursery.start_soon(link.secure, security.contexts, security.accepted_turns)
                    for _ in range(number // 4):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            if dials:
                with contextlib.suppress(BlockingIOError):
                    listening.accept()[0].close()
            else:
                assert not link.closed
                link.close("cancelled")
            before = before or descriptors()
            assert descriptors() == before


@pytest.mark.trio
async def test_a_hello_of_which_each_byte_is_a_record_is_heard(certs: Path) -> None:
    async with running(certs) as server:
        async with Open(server.address, server.contexts.client) as (_, stream):
            for at in range(len(HELLO)):
                await stream.send_all(HELLO[at : at + 1])
            assert await stream.receive_some()
        await server.all_gone()
