"""A server in the place of the dialled one receives no bytes of another server, of its questions, or of a client."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from node_rig import address_of, held_writer, listening_socket, rig, until
from secure_stream import SecureStream
from tls_kit import leaf, security_of, tls_of

from alpo.client.connection import Connection, Lost
from alpo.core.config import ReplicaConfig
from alpo.core.members import Configured
from alpo.dialling import Way
from alpo.node.admission import Limits
from alpo.node.host import Host
from alpo.node.link import LinkClosed
from alpo.node.security import Security
from alpo.secure import Contexts, SecureSocket, TlsBroken, Trust
from alpo.storage.memory import MemoryStore
from alpo.tls import Tls

#: Bytes that came over each connection whose handshake was made, and which has ended.
Heard = list[bytes]
WRONG: dict[str, Callable[[Path], Tls]] = {
    "append": lambda at: leaf(at, "wrong", "append"),
    "another server": lambda at: leaf(at, "wrong", "peer/3"),
    "another name": lambda at: leaf(at, "wrong", "peer/2", name="test"),
    "a name that begins alike": lambda at: leaf(at, "wrong", "peer/2", name="prod.test"),
    "an id that begins alike": lambda at: leaf(at, "wrong", "peer/22"),
}


@asynccontextmanager
async def listening(tls: Tls) -> AsyncIterator[tuple[str, Heard]]:
    """A server that makes handshakes, and listens to what is said then."""
    heard: Heard = []
    contexts = Contexts.load(tls)

    async def hear(plain: trio.SocketStream) -> None:
        sock = socket.socket(fileno=plain.socket.detach())
        sock.setblocking(False)
        stream = SecureStream(contexts.wrap(sock, server_side=True))
        said = b""
        try:
            await stream.shake_hands(trio.CapacityLimiter(1))
            while data := await stream.receive_some():
                said += data
        except OSError:
            return
        finally:
            await trio.aclose_forcefully(stream)
        heard.append(said)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hear, [listener])
        host, port = listener.socket.getsockname()[:2]
        yield f"{host}:{port}", heard
        nursery.cancel_scope.cancel()


@pytest.fixture
def mine(certs: Path, tmp_path: Path) -> Path:
    at = tmp_path / "mine"
    shutil.copytree(certs, at)
    return at


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.trio
async def test_a_server_that_dials_sends_nothing_to_the_wrong_one(mine: Path, kind: str) -> None:
    async with listening(WRONG[kind](mine)) as (wrong, heard):
        own = listening_socket()
        configured = (Configured(1, address_of(own)), Configured(2, wrong))
        store = MemoryStore(1, b"1" * 16)
        cfg = ReplicaConfig(
            me=store.boot().me, address=configured[0].address, configured=configured, heartbeat_s=0.01,
            election_timeout_s=0.05, stagger_s=0.005,
        )
        node = Host(cfg, Limits(), store, held_writer(store), security=security_of(mine, 1))
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run, own)
            await until(lambda: len(heard) >= 3)
            assert "is not the certificate of server 2" in node.peers.by_id[2].trouble
            nursery.cancel_scope.cancel()
        assert set(heard) == {b""}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.trio
async def test_a_server_that_asks_sends_nothing_to_the_wrong_one(mine: Path, kind: str) -> None:
    async with listening(WRONG[kind](mine)) as (wrong, heard):
        with pytest.raises(TlsBroken, match="is not the certificate of server 2"):
            await security_of(mine, 1).dial(2, Way(wrong))
        await until(lambda: len(heard) == 1)
        assert heard == [b""]


@pytest.mark.parametrize("kind", ["append", "another name", "a name that begins alike"])
@pytest.mark.trio
async def test_a_client_sends_nothing_to_what_is_no_server(mine: Path, kind: str) -> None:
    async with listening(WRONG[kind](mine)) as (wrong, heard):
        with pytest.raises(Lost, match="is not the certificate of a server of prod"):
            await Connection.open(wrong, trust=Trust(tls_of(mine, "ops")), timeout_s=20)
        await until(lambda: len(heard) == 1)
        assert heard == [b""]


@pytest.mark.trio
async def test_the_right_one_is_heard(mine: Path) -> None:
    """The right server receives the bytes: so the other tests would see bytes that reach a wrong one."""
    async with listening(tls_of(mine, "server-2")) as (right, heard):
        link = await security_of(mine, 1).dial(2, Way(right))
        link.push(b"hello" * 10_000)
        link.close("all was sent")
        await until(lambda: heard == [b"hello" * 10_000])
        plain = await Security().dial(2, Way(right))
        assert plain.closed == ""
        plain.close("looked at")


@pytest.mark.trio
async def test_no_handshake_computes_in_the_loop(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handshake, threads = SecureSocket.handshake, set[int]()

    def noted(sock: SecureSocket) -> None:
        threads.add(threading.get_ident())
        handshake(sock)

    monkeypatch.setattr(SecureSocket, "handshake", noted)
    async with rig(size=2, security=lambda id: security_of(mine, id)) as servers:
        await servers.leader()
        (await security_of(mine, 1).dial(2, Way(servers.addresses[1]))).close("looked at")
    assert threads and threading.get_ident() not in threads


@pytest.mark.trio
async def test_a_question_over_a_closed_connection_ends_in_words(mine: Path) -> None:
    async with listening(tls_of(mine, "server-2")) as (right, _):
        link = await security_of(mine, 1).dial(2, Way(right))
        async with trio.open_nursery() as nursery:
            async def listen() -> None:
                with pytest.raises(LinkClosed, match="done with"):
                    await link.receive()

            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            link.close("done with")
        link.close("closed again")
        link.push(b"x")
        with pytest.raises(LinkClosed, match="done with"):
            await link.receive()
