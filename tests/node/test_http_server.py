"""The HTTP server of a node: its answers, and its defence against hostile visitors."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from node_rig import append, connect, random_id, rig, until
from visits import ask, connected, sent, visit

from alpo.core import requests as q
from alpo.core.messages import Room
from alpo.core.ready import Space
from alpo.core.requests import Code
from alpo.node.admission import Limits
from alpo.node.http import server, site
from alpo.storage.interface import StoreError
from alpo.tls import Rights


@pytest.mark.trio
async def test_known_paths_are_answered_and_nothing_else() -> None:
    async with rig() as found:
        at = found.visited[0]
        assert (await visit(at, "/healthz"))[0::2] == (200, "ok\n")
        for path, kind in (
            ("/", "text/html"), ("/?part", "text/html"), ("/status", "application/json"), ("/metrics", "text/plain"),
            ("/page.css", "text/css"), ("/page.js", "text/javascript"),
        ):
            answer = await visit(at, path)
            assert answer.status == 200 and answer.headers["content-type"].startswith(kind), path
            assert answer.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            head = await visit(at, path, method="HEAD")
            assert (head.status, head.text) == (200, "") and int(head.headers["content-length"]) > 0
        for path in ("/nothing", "/../etc/passwd", "//", "/%2e%2e/", "/?other=1x" * 50, "/page.py"):
            assert (await visit(at, path)).status in (200, 404), path
        assert (await visit(at, "/nothing")).status == 404
        answer = await visit(at, "/status", method="POST")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(("data", "status"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),  # HTTP/2 begins like a request by a method of its own
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n\r\n", 400),  # without a Host
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"nonsense\r\n\r\n", 400),
    (b"\x00" * 100, 400),
    (b"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
])
@pytest.mark.trio
async def test_junk_gets_its_answer_and_is_closed(data: bytes, status: int) -> None:
    async with rig() as found:
        answer = await sent(found.visited[0], data)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"connection: close" in answer.lower()
        assert (await visit(found.visited[0], "/healthz")).status == 200


@pytest.mark.trio
async def test_random_bytes_end_nothing() -> None:
    drawn = random.Random(7)
    async with rig() as found:
        for _ in range(50):
            data = drawn.randbytes(drawn.randint(1, 3000)) + b"\r\n\r\n"
            assert (await sent(found.visited[0], data)).startswith(b"HTTP/1.1 400")
        assert (await visit(found.visited[0], "/healthz")).status == 200


@pytest.mark.trio
async def test_one_connection_serves_many_requests_even_sent_at_once() -> None:
    async with rig() as found:
        async with connected(found.visited[0]) as stream:
            for path in ("/healthz", "/readyz", "/nothing", "/healthz"):
                assert (await ask(stream, path)).status in (200, 404, 503)
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert (await sent(found.visited[0], one * 20 + last)).count(b"HTTP/1.1 200") == 21
        assert b"200 OK" in await sent(found.visited[0], b"GET /healthz HTTP/1.0\r\n\r\n")


@pytest.mark.trio
async def test_half_requests_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    async with rig() as found:
        assert await sent(found.visited[0], b"GET / HTTP/1.1\r\nHost: loc") == b""
        assert await sent(found.visited[0], b"") == b""


@pytest.mark.trio
async def test_whoever_has_asked_for_nothing_makes_room() -> None:
    async with rig() as found:
        at = found.visited[0]
        streams = [await trio.open_tcp_stream(*_split(at)) for _ in range(2 * Limits().visitor_connections_max)]
        try:
            for stream in streams:
                await stream.send_all(b"GET / HTTP/1.1\r\n")
            answer = await visit(at, "/healthz")
            assert answer.status == 200
            with trio.fail_after(10):  # the oldest was closed
                while await streams[0].receive_some(1000):
                    pass
        except trio.BrokenResourceError:
            pass
        finally:
            for stream in streams:
                stream.socket.close()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.trio
async def test_visitors_that_do_not_read_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_S", 0.3)
    one = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with rig() as found, connected(found.visited[0]) as stream:
        with trio.fail_after(20), pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await stream.send_all(one * 100)
        assert (await visit(found.visited[0], "/healthz")).status == 200


@pytest.mark.parametrize(("host", "status"), [
    ("localhost", 200), ("LOCALHOST:7180", 200), ("127.0.0.1", 200), ("192.0.2.7:80", 200), ("[::1]:7180", 200),
    ("evil.example", 421), ("localhost.evil.example", 421), ("", 421),
])
@pytest.mark.trio
async def test_a_page_elsewhere_cannot_have_its_name_point_here(host: str, status: int) -> None:
    async with rig() as found:
        assert (await visit(found.visited[0], "/status", host=host)).status == status


@pytest.mark.trio
async def test_readiness_follows_the_server() -> None:
    async with rig() as found:  # a single server waits for the command to start
        at = found.visited[0]
        before = await visit(at, "/readyz")
        assert before.status == 503 and "started: it belongs to no cluster yet" in before.text
        assert (await visit(at, "/healthz")).status == 200
        await (await connect(found.addresses[0])).ask(q.Initialise(1))
        await until(lambda: found.nodes[0].replica.leader_id == 1)
        assert (await visit(at, "/readyz"))[0::2] == (200, "ready\n")
    async with rig(3) as found:
        leader = await found.leader()
        for node, at in zip(found.nodes, found.visited, strict=True):
            assert (await visit(at, "/readyz"))[0::2] == (200, "ready\n")
            leads = await visit(at, "/readyz?leader&verbose")
            assert leads.status == (200 if node is leader else 503)
            assert ("[+]leads ok" in leads.text) == (node is leader)
        leader.leaving = True
        at = found.visited[leader.us.me.id - 1]
        answer = await visit(at, "/readyz?verbose")
        assert answer.status == 503 and "[-]running failed: it is stopping" in answer.text
        leader.leaving, leader.log.writer.stats.full = False, "the disk is full"
        assert (await visit(at, "/readyz"))[0::2] == (503, "store: the disk is full\n")


@pytest.mark.trio
async def test_a_leader_without_enough_voters_that_take_entries_is_not_ready() -> None:
    """A leader that reaches a majority is not ready if one of the three servers is low on space and one is gone."""
    async with rig(3) as found:
        leader = await found.leader()
        low, gone = (node for node in found.nodes if node is not leader)
        at = found.visited[leader.us.me.id - 1]
        await until(lambda: leader.report.appends() == (True, [], 1))
        assert "[+]appends ok" in (await visit(at, "/readyz?leader&verbose")).text
        low.driver.post(Space(Room.LOW, 5))
        low.driver.kick()
        gone.stop()
        why = [f"server {low.us.me.id} is low on disk space", f"server {gone.us.me.id} does not answer"]
        await until(lambda: leader.report.appends() == (False, why, 0))
        answer = await visit(at, "/readyz?leader")
        assert (answer.status, answer.text) == (503, f"appends: {', '.join(why)}\n")
        assert (await visit(at, "/readyz")).status == 200
        status = json.loads((await visit(at, "/status")).text)["members"][leader.us.me.id - 1]
        assert status["appends"] == {"work": False, "why": why, "may_fail": 0} and status["failures_tolerable"] == 0
        page = (await visit(at, "/")).text
        assert f"Appends stand: {', '.join(why)}." in page
        metrics = (await visit(at, "/metrics")).text
        assert 'alpo_appends_work{log="default"} 0.0' in metrics
        assert 'alpo_failures_tolerable{log="default"} 0.0' in metrics
        client = await connect(found.addresses[leader.us.me.id - 1])
        refused = await client.ask(append(random_id(), 1, (1, b"one would")))
        assert (refused.code, refused.detail) == (Code.NO_SPACE, ", ".join(why))


@pytest.mark.trio
async def test_a_server_that_hears_no_leader_is_not_ready_and_lives() -> None:
    async with rig(3) as found:
        leader = await found.leader()
        others = [node for node in found.nodes if node is not leader]
        for node in others:
            node.stop()
        at = found.visited[leader.us.me.id - 1]
        with trio.fail_after(20):
            while (await visit(at, "/readyz")).status == 200:
                await trio.sleep(0.01)
        assert "leader: no leader was heard" in (await visit(at, "/readyz")).text
        assert (await visit(at, "/healthz")).status == 200


@pytest.mark.trio
@pytest.mark.parametrize("head", [
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    b"X: \xff\r\n",
])
async def test_what_a_visitor_would_like_is_not_done_and_the_answer_comes(head: bytes) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with rig() as found:
        assert (await sent(found.visited[0], one + last)).startswith(b"HTTP/1.1 200")
        tunnel = await sent(found.visited[0], b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + last)
        assert tunnel.startswith(b"HTTP/1.1 405")
        absolute = b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert (await sent(found.visited[0], absolute)).startswith(b"HTTP/1.1 404")


@pytest.mark.trio
async def test_a_page_that_cannot_be_made_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as found:
        def broken(*_: object, **__: object) -> str:
            raise KeyError("no such thing")

        monkeypatch.setattr(site, "render", broken)
        answer = await visit(found.visited[0], "/")
        assert (answer.status, answer.text) == (500, "this page cannot be made: see the server's log\n")
        assert found.nodes[0].driver.counters.events["page_failed"] == 1
        assert (await visit(found.visited[0], "/status")).status == 200


@pytest.mark.trio
async def test_requests_sent_at_once_are_answered_at_the_rate_that_all_visitors_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REQUESTS_PER_S", 20)
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with rig() as found:
        began_s = trio.current_time()
        answers = await sent(found.visited[0], one * 10 + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answers.count(b"HTTP/1.1 200") == 11
        assert trio.current_time() - began_s >= 10 / 20


@pytest.mark.trio
async def test_an_address_that_is_none_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as found:
        node = found.nodes[0]
        strange = SimpleNamespace(address="no address")
        latest = SimpleNamespace(members=[strange])
        fake = SimpleNamespace(members=SimpleNamespace(latest=latest), cfg=node.replica.cfg)
        monkeypatch.setattr(type(node.report), "replica", property(lambda self: fake))
        assert (await visit(found.visited[0], "/page.js", host="alpo.example.org")).status == 421
        assert (await visit(found.visited[0], "/healthz")).status == 200


@pytest.mark.trio
async def test_visitors_that_take_no_answer_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUESTS_PER_S", 0)
    one = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    made: list[server.HttpServer] = []

    class Kept(server.HttpServer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(server, "HttpServer", Kept)
    async with rig(limits=Limits(visitor_connections_max=4)) as found, trio.open_nursery() as nursery:
        async def unread() -> None:
            stream = await trio.open_tcp_stream(*_split(found.visited[0]))
            try:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(one * 5000)
                    await trio.sleep_forever()
            finally:
                stream.socket.close()

        for _ in range(4):
            nursery.start_soon(unread)
        connections = made[0]._open
        await until(lambda: len(connections) == 4 and all(one.link.queued_bytes for one in connections))
        with trio.fail_after(server.ANSWER_S / 2):
            assert (await visit(found.visited[0], "/healthz")).status == 200
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_visitors_that_wait_for_a_store_that_hangs_do_not_keep_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "ANSWER_S", 0.3)
    async with rig(limits=Limits(visitor_connections_max=4)) as found:
        async def hangs(now_ms: int) -> dict[str, object]:
            await trio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(found.nodes[0].report, "status", hangs)
        one = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(sent, found.visited[0], one)
        assert (await visit(found.visited[0], "/healthz")).status == 200


@pytest.mark.trio
async def test_heads_are_small_and_bodies_are_none() -> None:
    big = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 2000 + b"\r\n"
    body = b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"
    async with rig() as found:
        assert (await sent(found.visited[0], big)).startswith(b"HTTP/1.1 431")
        answer = await sent(found.visited[0], body)
        assert answer.startswith(b"HTTP/1.1 413") and answer.endswith(b"\r\n\r\n")
        assert b"bytearray" not in await sent(found.visited[0], b"GET /\xff\xfe HTTP/1.1\r\n\r\n")
        assert (await visit(found.visited[0], "/readyz", host="balancer.example")).status == 503  # not founded; no 421


@pytest.mark.trio
async def test_a_store_that_fails_is_asked_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as found:
        asked = 0

        async def fails(now_ms: int) -> dict[str, object]:
            nonlocal asked
            asked += 1
            raise StoreError("the disk")

        monkeypatch.setattr(site, "KEPT_S", 60.0)
        monkeypatch.setattr(found.nodes[0].report, "status", fails)
        for _ in range(5):
            answer = await visit(found.visited[0], "/metrics")
            assert (answer.status, answer.text) == (503, "this server's store cannot be read: the disk\n")
        assert asked == 1


@pytest.mark.parametrize(("mode", "held", "status"), [
    ("accept", None, 403), ("dial", Rights("CN=a", frozenset({"append"})), 403),
    ("require", Rights("CN=b", peers=frozenset({2})), 403), ("require", Rights("CN=c", frozenset({"read/x"})), 403),
])
@pytest.mark.trio
async def test_payloads_take_a_role_whatever_the_pages_take(mode: str, held: Rights | None, status: int) -> None:
    """Payloads need the role read or admin even if the pages need none, and where plain connections are accepted."""
    report = SimpleNamespace(host=SimpleNamespace(security=SimpleNamespace(mode=mode)))
    visit = site.Visit(b"GET", b"/log?lsn=1", "localhost", held, secure=True)
    answer = await site.Site._payloads(cast(Any, SimpleNamespace(_report=report)), visit)
    assert answer.status == status and b"the role read or admin" in answer.body


@pytest.mark.parametrize(("role", "may"), [
    ("read", True), ("admin", True), ("append", False), ("read/default", True), ("read/billing", False),
    ("append/default", False),
])
def test_a_page_takes_a_role_in_its_log(role: str, may: bool) -> None:
    report = SimpleNamespace(host=SimpleNamespace(security=SimpleNamespace(mode="require")))
    visit = site.Visit(b"GET", b"/metrics", "localhost", Rights("CN=a", frozenset({role})), secure=True)
    refused = [
        site.Site._objection(cast(Any, SimpleNamespace(_report=report, auth="cert")), visit, log) is not None
        for log in ("default", "billing")
    ]
    assert refused == [not may, role not in ("read", "admin", "read/billing")]
