"""Servers that are far from each other, or whose names take long, find each other; a late step is named."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from node_rig import WAIT_S, rig, until
from tls_kit import certificates, security_of

from alpo import dialling
from alpo.dialling import Way
from alpo.node import peers
from alpo.node.compare import Inquiry, Unusable
from alpo.node.security import Security

HOST = "127.0.0.1"


@asynccontextmanager
async def far_away(monkeypatch: pytest.MonkeyPatch, delay_s: float) -> AsyncIterator[None]:
    """Every connection that a server dials takes so long in either direction for whatever is said on it."""
    connect = Way.connect

    async def pump(source: socket.socket, sink: socket.socket) -> None:
        with trio.socket.from_stdlib_socket(source.dup()) as from_, trio.socket.from_stdlib_socket(sink.dup()) as to:
            try:
                while data := await from_.recv(1 << 16):
                    await trio.sleep(delay_s)
                    await trio.SocketStream(to).send_all(data)
                to.shutdown(socket.SHUT_WR)
            except (OSError, trio.BrokenResourceError):
                pass

    async def via(way: Way) -> socket.socket:
        far = await connect(way)
        with socket.create_server((HOST, 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            near = listening.accept()[0]
        with near, far:
            for sock in (near, far):
                sock.setblocking(False)
            ends = near.dup(), far.dup()
        nursery.start_soon(both_ways, *ends)
        return ours

    async def both_ways(near: socket.socket, far: socket.socket) -> None:
        with near, far:
            async with trio.open_nursery() as pumps:
                pumps.start_soon(pump, near, far)
                pumps.start_soon(pump, far, near)

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(Way, "connect", via)
            yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.trio
async def test_servers_that_are_far_get_more_time_with_each_try(
    secure: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first tries are shorter than a round trip."""
    certificates(tmp_path)
    monkeypatch.setattr(peers, "_STEP_S_FIRST", 0.005)
    security = (lambda id: security_of(tmp_path, id)) if secure else (lambda id: Security())
    async with far_away(monkeypatch, 0.05), rig(3, security=security, heartbeat_s=0.2, election_timeout_s=0.8) as r:
        leader = await r.leader()
        for peer in leader.peers.by_id.values():
            assert peer.route is not None and (not secure or max(peer.step_s.values()) > 0.05)


@pytest.mark.trio
async def test_names_that_take_long_and_names_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status tells of a name that is not resolved in time, and other work in threads goes on meanwhile."""
    ask, answers = socket.getaddrinfo, threading.Event()

    def slow(host: Any, port: Any, *given: Any, **named: Any) -> Any:
        if host == "db2":
            answers.wait()
            host = HOST
        return ask(host, port, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(dialling, "_look_ups", dialling._LookUps())
    monkeypatch.setattr(peers, "_NAME_S", 0.05)
    try:
        async with rig(2) as r:
            await r.leader()
            peer = r.nodes[0].peers.by_id[2]
            own = peer.said_address
            monkeypatch.setattr(r.nodes[0].peers, "_addresses", lambda peer: [f"db2:{own.partition(':')[2]}"])
            assert peer.route is not None
            peer.route.link.close("to be dialled by name")
            await until(lambda: "the name db2 could not be resolved within 0.05 s" in peer.trouble)
            assert await trio.to_thread.run_sync(lambda: 1) == 1
            answers.set()
            await until(lambda: peer.route is not None and peer.route.full)
            await r.leader()
    finally:
        answers.set()


@pytest.mark.trio
async def test_a_question_to_a_silent_server_ends_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.node.compare.ANSWER_S_MAX", 0.05)
    with socket.create_server((HOST, 0)) as silent, trio.fail_after(WAIT_S):
        address = f"{HOST}:{silent.getsockname()[1]}"
        with pytest.raises(Unusable, match=f"^{address}: connected, but no hello within 0.05 s"):
            await Inquiry.open(2, address, b"c" * 16, Security())
