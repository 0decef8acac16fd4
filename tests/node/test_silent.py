"""A crowd of strangers from one host displaces and delays itself, not connections from other hosts."""

from __future__ import annotations

import contextlib
import socket
import threading
from itertools import count
from pathlib import Path

import pytest
import trio
from node_rig import listening_socket, rig, until
from tls_kit import Open, client_hello, greeted, security_of, tls_of

from alpo.node.admission import Limits, Silent
from alpo.node.link import Link
from alpo.secure import Contexts, SecureSocket

CROWD = "127.0.0.2"


def _can_be_another_host() -> bool:
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.bind((CROWD, 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not _can_be_another_host(), reason="this system has one loopback address")


def connected(address: tuple[str, int] | str, host: str) -> socket.socket:
    """A connection from ``host``."""
    if isinstance(address, str):
        name, port = address.split(":")
        address = name, int(port)
    return socket.create_connection(address, source_address=(host, 0))


@pytest.mark.trio
async def test_the_oldest_of_the_largest_crowd_is_closed_for_a_new_one() -> None:
    silent, links, others = Silent(), list[Link](), list[socket.socket]()
    with listening_socket() as listening:
        for host in ("127.0.0.1", CROWD, CROWD, "127.0.0.3", CROWD, CROWD, CROWD, "127.0.0.1"):
            others.append(connected(listening.getsockname(), host))
            links.append(Link(listening.accept()[0], 1 << 20))
    turns = [silent.add(link, 5) for link in links]
    assert [number for number, link in enumerate(links) if link.closed] == [1, 2, 4]
    assert turns[0] is turns[7] and turns[1] is turns[6] and turns[0] is not turns[1]
    assert len(silent) == 5
    for link in [*links, *links]:
        silent.discard(link)
    assert len(silent) == 0 and not silent._hosts
    for link in links:
        link.close("done")
    for sock in others:
        sock.close()


@pytest.mark.trio
async def test_a_crowd_of_one_host_does_not_displace_another_s_connection(certs: Path) -> None:
    limits = Limits(silent_connections_max=20, hello_timeout_s=60)
    context = Contexts.load(tls_of(certs, "ops")).client
    async with rig(limits=limits, security=lambda id: security_of(certs, id)) as servers:
        async with Open(servers.addresses[0], context) as (_, stream):  # the oldest
            crowd = [connected(servers.addresses[0], CROWD) for _ in range(100)]
            try:
                await until(lambda: servers.nodes[0].listener._accepts == 101)
                await until(lambda: len(servers.nodes[0].listener._silent) <= 20)
                await greeted(stream)
            finally:
                for sock in crowd:
                    sock.close()


@pytest.mark.trio
async def test_a_crowd_s_handshakes_do_not_delay_another_host_s(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    security, contexts = security_of(certs), Contexts.load(tls_of(certs, "ops"))
    hello, goes, ours, order = client_hello(contexts), threading.Event(), threading.Event(), list[str]()
    handshake, crowds = SecureSocket.handshake, count()

    def noted(sock: SecureSocket) -> None:
        if sock.server_side:
            goes.wait(20)
            host = sock.getpeername()[0]
            if host == CROWD and next(crowds) >= 2 * 2:
                ours.wait(20)  # Threads may begin later than they got their turn.
            order.append(host)
            if host != CROWD:
                ours.set()
        handshake(sock)

    monkeypatch.setattr(SecureSocket, "handshake", noted)
    async with rig(limits=Limits(hello_timeout_s=60), security=lambda id: security) as servers:
        listener, crowd = servers.nodes[0].listener, list[socket.socket]()
        try:
            for _ in range(60):
                crowd.append(connected(servers.addresses[0], CROWD))
                crowd[-1].send(hello)
            waiting = security.accepted_turns.statistics
            await until(lambda: listener._accepts == 60 and waiting().borrowed_tokens == 2)
            async with trio.open_nursery() as nursery:
                async def greet() -> None:
                    async with Open(servers.addresses[0], contexts.client) as (_, stream):
                        await greeted(stream)

                nursery.start_soon(greet)
                await until(lambda: waiting().tasks_waiting > 0)
                goes.set()
            assert order.index("127.0.0.1") <= 2 * 2
        finally:
            goes.set()
            ours.set()
            for sock in crowd:
                sock.close()
