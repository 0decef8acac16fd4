"""The way to a server: names that take long, addresses that drop packets, slow round trips, ports of something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from fake_cluster import fake_cluster, until
from ports import free_port
from tls_kit import certificates, descriptors, tls_of

import alpo
from alpo import dialling
from alpo.client import servers as servers_module
from alpo.client.connection import Connection, Lost
from alpo.client.servers import Servers
from alpo.dialling import Unreachable, Way, look_up
from alpo.secure import Trust

pytestmark = pytest.mark.anyio

GOOD = "127.0.0.1"
DEAD = [f"127.0.0.{number}" for number in range(9, 14)]


@contextmanager
def dropping(host: str, port: int) -> Iterator[None]:
    """An address whose accept queue is full: it drops what comes, as a firewall does."""
    with ExitStack() as stack:
        sock = stack.enter_context(socket.socket())
        sock.bind((host, port))
        sock.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield


class Names:
    """Stands for the resolver: ``known`` names have these addresses, as soon as ``answers`` is set."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self._ask = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        if host not in self.known:
            return self._ask(host, port, *args, **options)
        self.asked.append(host)
        self.answers.wait()
        return [row for address in self.known[host] for row in self._ask(address, port, *args, **options)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    monkeypatch.setattr(dialling, "_look_ups", dialling._LookUps())
    yield made
    made.answers.set()


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certs"))


@pytest.mark.parametrize("dead", [1, 5])
async def test_addresses_that_drop_packets_do_not_stand_before_one_that_works(names: Names, dead: int) -> None:
    async with fake_cluster(1) as c:
        port = int(c.addresses.partition(":")[2])
        names.known["db"] = [*DEAD[:dead], GOOD]
        with ExitStack() as stack:
            for host in DEAD[:dead]:
                stack.enter_context(dropping(host, port))
            async with alpo.connect(f"db:{port}") as log:
                assert await log.append(b"x") == 1


async def test_the_second_address_is_of_the_other_family() -> None:
    def row(family: socket.AddressFamily, host: str) -> tuple[int, int, int, str, tuple[object, ...]]:
        return family, socket.SOCK_STREAM, 0, "", (host, 1)

    six, four = socket.AF_INET6, socket.AF_INET
    found = dialling._in_turn([row(six, "a"), row(six, "b"), row(six, "b"), row(four, "c"), row(four, "d")])
    assert [target.where[0] for target in found] == ["a", "c", "b", "d"]
    assert len(dialling._in_turn([row(four, str(number)) for number in range(99)])) == dialling.TARGETS_MAX


async def test_all_addresses_are_tried_again_while_one_drops_packets(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that comes up is found at once, though another address of its name is silent."""
    monkeypatch.setattr(dialling, "AGAIN_S", 0.02)
    monkeypatch.setattr(dialling, "STAGGER_S", 0.001)
    port = free_port()
    names.known["db"] = [DEAD[0], GOOD]
    refused: list[str] = []
    connect = dialling._connect

    async def watched(sock: socket.socket, where: tuple[object, ...]) -> None:
        try:
            await connect(sock, where)
        except ConnectionRefusedError:
            refused.append(str(where[0]))
            raise

    monkeypatch.setattr(dialling, "_connect", watched)
    with dropping(DEAD[0], port), socket.socket() as listening:
        async with anyio.create_task_group() as tasks:
            reached: list[socket.socket] = []

            async def reach() -> None:
                reached.append(await Way(f"db:{port}").connect())

            tasks.start_soon(reach)
            await until(lambda: refused.count(GOOD) > 3 * dialling.TRIES_MAX)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((GOOD, port))
            listening.listen()
        assert reached[0].getpeername() == (GOOD, port)
        reached[0].close()


async def test_a_name_that_takes_long_is_waited_for_and_looked_up_once(names: Names) -> None:
    async with fake_cluster(1) as c:
        port = int(c.addresses.partition(":")[2])
        names.known["db"] = [GOOD]
        names.answers.clear()
        for _ in range(3):
            async with alpo.connect(f"db:{port}", timeout_s=0.2) as log:
                with pytest.raises(alpo.Unavailable, match=f"db:{port}: the name db could not be resolved within"):
                    await log.append(b"x")
        async with alpo.connect(f"db:{port}", timeout_s=60) as log, anyio.create_task_group() as tasks:
            tasks.start_soon(log.append, b"y")
            await anyio.wait_all_tasks_blocked()
            assert names.asked == ["db"]
            names.answers.set()
        assert c.payloads == [b"y"]


async def test_names_that_never_resolve_delay_no_other_thread_and_no_other_name(names: Names) -> None:
    """Few threads look up names, and they do nothing else."""
    names.known = {f"dead{number}": [] for number in range(60)}
    names.answers.clear()
    async with anyio.create_task_group() as tasks:
        for name in names.known:
            tasks.start_soon(look_up, name, 1)
        await until(lambda: len(names.asked) == dialling.THREADS_MAX)
        assert await anyio.to_thread.run_sync(lambda: 1) == 1
        assert (await Way("127.0.0.1:1")._resolve())[0].where == ("127.0.0.1", 1)
        looking = [thread for thread in threading.enumerate() if thread.name.startswith("name ")]
        assert len(looking) == dialling.THREADS_MAX
        tasks.cancel_scope.cancel()
    names.answers.set()
    await until(lambda: len(set(names.asked)) == 60)


async def test_a_process_out_of_threads_says_so_and_resolves_names_once_it_has_some(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.known["db"] = [GOOD]
    start, room = threading.Thread.start, [False]

    def starting(thread: threading.Thread) -> None:
        if not room[0] and thread.name.startswith("name "):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    for port in range(1, dialling.THREADS_MAX + 2):
        with pytest.raises(Unreachable, match=rf"db:{port}: the name db .* no thread can be started .*can't start new"):
            await Way(f"db:{port}").connect()
    room[0] = True
    assert [target.where for target in await look_up("db", 1)] == [(GOOD, 1)]


async def test_a_look_up_that_ends_by_a_defect_is_told_and_leaves_room(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    with monkeypatch.context() as context:
        context.setattr(dialling, "_in_turn", lambda rows: 1 // 0)
        for port in range(1, dialling.THREADS_MAX + 2):
            with pytest.raises(OSError, match="the look-up has failed"):
                await look_up("localhost", port)
    assert await look_up("localhost", 1)
    await until(lambda: len(told) == dialling.THREADS_MAX + 1)
    assert set(told) == {ZeroDivisionError}


async def test_the_answer_of_a_slow_look_up_stands_for_as_long_as_it_took(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(dialling, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    names.known["db"] = [GOOD]
    names.answers.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_up, "db", 1)
        await until(lambda: names.asked == ["db"])
        clock[0] += 4
        names.answers.set()
    for later_s, times in ((3, 1), (2, 2)):
        clock[0] += later_s
        await look_up("db", 1)
        assert names.asked == ["db"] * times


async def test_a_name_without_an_address_and_one_that_nobody_knows(names: Names) -> None:
    names.known["db"] = []
    for host, why in (("db", "the name db has no address"), ("no-such-host.invalid", "the name no-such-host.invalid")):
        with pytest.raises(Unreachable, match=f"^{host}:1: {why}"):
            await Way(f"{host}:1").connect()


class Slow(Servers):
    """Servers whose ways have no time limits: a search that waits for one server first never comes to the next."""

    def way(self, address: str) -> Way:
        return Way(address)


async def test_a_server_that_is_slow_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server accepts connections and stays silent; another, which then begins to lead, is found all the same."""
    monkeypatch.setattr(servers_module, "ROUND_S", 0.05)
    async with fake_cluster() as c:
        c.lead(0)
        c.servers[1].frozen = True
        servers = Slow([server.address for server in c.servers.values()])
        async with anyio.create_task_group() as tasks:
            found: list[Connection] = []

            async def seek() -> None:
                found.append(await servers.leader())

            tasks.start_soon(seek)
            await until(lambda: servers.reason is not None and "connected, but no hello" in str(servers.reason))
            c.lead(2)
        assert found[0].hello.id == 2
        servers.close()


@asynccontextmanager
async def slow_way(address: str, delay_s: float) -> AsyncIterator[str]:
    """The address of a relay to ``address`` on which each piece takes so long, in either direction."""
    host, _, port = address.partition(":")

    async def pump(source: SocketStream, sink: SocketStream) -> None:
        with anyio.CancelScope():
            try:
                async for data in source:
                    await anyio.sleep(delay_s)
                    await sink.send(data)
                await sink.send_eof()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass

    async def serve(near: SocketStream) -> None:
        async with near, await anyio.connect_tcp(host, int(port)) as far, anyio.create_task_group() as tasks:
            tasks.start_soon(pump, near, far)
            tasks.start_soon(pump, far, near)

    listener = await anyio.create_tcp_listener(local_host=GOOD)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"{GOOD}:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def test_a_server_that_is_far_away_gets_more_time_with_each_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try is too short for a round trip, and so may be some more."""
    monkeypatch.setattr(servers_module, "ANSWER_FIRST_S", 0.01)
    async with fake_cluster(1) as c, slow_way(c.addresses, 0.1) as address:
        servers = Servers([address])
        connection = await servers.leader()
        assert connection.hello.id == 1
        assert servers._answer_s[address] > 0.1
        servers.close()


@pytest.mark.parametrize(("secure", "why"), [
    (False, "connected, but no hello within 0.1 s: is it an ALPO server?"),
    (True, "connected, but the TLS handshake was not done within 0.1 s"),
], ids=["plain", "tls"])
async def test_a_late_step_is_named(certs: Path, secure: bool, why: str) -> None:
    trust = Trust(tls_of(certs, "ops")) if secure else None
    with socket.create_server((GOOD, 0)) as silent:
        address = f"{GOOD}:{silent.getsockname()[1]}"
        for bounds in ({"timeout_s": 0.1}, {"way": Way(address, answer_s=0.1)}):
            with pytest.raises(Lost) as caught:
                await Connection.open(address, trust=trust, **bounds)
            said = str(caught.value)
            assert said.startswith(f"{address}: {why.partition(' within')[0]} within ")
            assert said == f"{address}: {why}" or "timeout_s" in bounds
    with dropping(DEAD[0], port := free_port()), pytest.raises(Lost, match=r"9:\d+: no TCP connection within 0\.1 s$"):
        await Connection.open(f"{DEAD[0]}:{port}", trust=trust, way=Way(f"{DEAD[0]}:{port}", tcp_s=0.1))


@pytest.mark.parametrize(("says", "kind", "why"), [
    (b"HTTP/1.1 400 Bad Request\r\n\r\nno; the log's port is 7105", alpo.ProtocolError,
     "an HTTP port answers there; the log's port is 7105"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", alpo.ProtocolError, "an HTTP port answers there; the log's port is the one"),
    (b"\x15\x03\x01\x00\x02\x02\x0a", alpo.Refused, "a port with TLS answers there; give --ca"),
    (b"220 smtp.example ready\r\n", alpo.ProtocolError, "a frame of"),
], ids=["http of alpod", "other http", "tls", "smtp"])
async def test_a_port_of_something_else_is_told_as_that(says: bytes, kind: type[Exception], why: str) -> None:
    def answer(listening: socket.socket) -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(says[:60])
            sock.sendall(says[60:])

    with socket.create_server((GOOD, 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        with pytest.raises(Lost) as caught:
            await Connection.open(f"{GOOD}:{listening.getsockname()[1]}", timeout_s=60)
        thread.join()
    assert isinstance(caught.value.reason, kind) and why in str(caught.value)


@pytest.mark.parametrize("says", [b"", b"<html>bad request", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
async def test_a_port_that_waits_for_a_line_is_told_as_what_it_is(says: bytes) -> None:
    """A web server of another kind waits for the end of the line that a hello begins: it is silent till then."""
    def answer(listening: socket.socket) -> None:
        sock, _ = listening.accept()
        with sock, sock.makefile("rb") as lines:
            lines.readline()
            sock.sendall(says)
            sock.recv(1000)

    with socket.create_server((GOOD, 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        address = f"{GOOD}:{listening.getsockname()[1]}"
        with pytest.raises(Lost) as caught:
            await Connection.open(address, way=Way(address, answer_s=0.1))
        thread.join()
    assert type(caught.value.reason) is (alpo.ProtocolError if says else alpo.Unavailable)
    assert ("no hello" in str(caught.value)) is not bool(says)


async def test_a_dial_that_is_given_up_leaves_no_socket(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "AGAIN_S", 0.005)
    monkeypatch.setattr(dialling, "STAGGER_S", 0.001)
    names.known["db"] = [DEAD[0], GOOD]
    with dropping(DEAD[0], port := free_port()):
        await look_up("db", port)
        before = descriptors()
        for step in range(50):
            with anyio.move_on_after(0.001 * step):
                await Way(f"db:{port}").connect()
        assert descriptors() == before
