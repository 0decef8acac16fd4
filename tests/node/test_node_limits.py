"""Limits hold, and clients that keep within them are served meanwhile."""

from __future__ import annotations

import socket

import pytest
import trio
from node_rig import append, connect, connect_raw, lone, random_id, read, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.core.members import Identity
from alpo.core.requests import Code
from alpo.core.settings import Settings
from alpo.node.admission import Limits
from alpo.node.link import Link
from alpo.wire import requests as w
from alpo.wire.codec import encode

KIB = 1 << 10
MIB = 1 << 20


@pytest.mark.trio
async def test_a_payload_over_the_limit_is_refused_and_nothing_of_its_frame_taken() -> None:
    async with lone(settings=Settings(payload_bytes_max=100, batch_bytes_max=150)) as (_, _, client):
        id = random_id()
        refused = await client.ask(append(id, 1, b"fits", b"x" * 101))
        assert (refused.code, refused.number, refused.serial, refused.count) == (Code.TOO_LARGE, 100, 1, 2)
        batch = b"".join((80).to_bytes(4, "little") + b"y" * 80 for _ in range(2))
        refused = await client.ask(append(id, 1, (2, batch)))
        assert (refused.code, refused.number) == (Code.TOO_LARGE, 150)
        assert list((await client.ask(append(id, 1, b"x" * 100))).lsns) == [1]


@pytest.mark.trio
async def test_a_frame_holds_the_largest_batch_whatever_the_cluster_says_that_is() -> None:
    """A batch travels from a client to the leader, to a peer, and to a reader of that peer. Heartbeats wait behind it:
    a busy machine must send it within an election timeout, or every leader is deposed."""
    settings = Settings(batch_bytes_max=20 * MIB)
    async with rig(2, settings=settings, heartbeat_s=0.2, election_timeout_s=3.0) as r:
        batch = join_payloads([bytes([n]) * MIB for n in range(19)])
        id, appended = random_id(), None
        while not isinstance(appended, q.Appended):  # a busy machine may depose a leader meanwhile
            leader = await r.leader()
            client = await connect(leader.us.address)
            appended = await client.ask(append(id, 1, (19, batch)))
        assert list(appended.lsns) == [1]
        other = next(node for node in r.nodes if node is not leader)
        reader = await connect(other.us.address)
        (row,) = (await reader.ask(read(start=1, wait_ms=10_000))).entries
        assert row[-1] == batch


@pytest.mark.trio
async def test_a_flood_waits_outside_while_the_disk_does_not_answer() -> None:
    """Bytes in flight stop at the limit, plus what one receive brings for each connection. No append is lost."""
    limit = 1 * MIB
    async with lone(limits=Limits(inflight_bytes_max=limit)) as (node, at, _):
        clients = [await connect(at) for _ in range(4)]
        ids = [random_id() for _ in clients]
        writer_of(node).held = True
        async with trio.open_nursery() as nursery:
            for client, id in zip(clients, ids, strict=True):
                flood = [append(id, serial, b"z" * 8 * KIB) for serial in range(1, 501)]
                nursery.start_soon(client.send, *flood)
            await until(lambda: len(node.driver.room) == len(clients) and not node.driver._runs)
            taken = node.replica.inflight_bytes
            assert limit < taken < limit + 5 * (256 * KIB + 8 * KIB)
            writer_of(node).release()
            for client in clients:
                done = 0
                while done < 500:
                    reply = await client.receive()
                    assert isinstance(reply, q.Appended), reply
                    done += len(reply.lsns)
        assert not node.driver.full


def queued_from_now_on(link: Link, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of the bytes that wait for the other side after each `push` from now on."""
    seen: list[int] = []
    push = link.push

    def noted(data: bytes | bytearray) -> None:
        push(data)
        seen.append(link.queued_bytes)

    monkeypatch.setattr(link, "push", noted)
    return seen


async def until_waited_for(link: Link) -> None:
    """Wait until a task waits for the other side to read."""
    await until(lambda: len(link._sent) > 0)


@pytest.mark.trio
async def test_a_connection_with_too_many_unanswered_is_not_read() -> None:
    async with lone(limits=Limits(connection_inflight_max=10)) as (node, at, client):
        writer_of(node).held = True
        id = random_id()
        for serial in range(1, 11):
            await client.send(append(id, serial, b"x"))
        (served,) = node.listener.clients
        await until(lambda: served.appends == 10)
        await client.send(append(id, 11, b"x"))
        other = await connect(at)
        assert isinstance(await other.ask(w.Status(1)), w.StatusAnswer)
        assert served.appends == 10
        writer_of(node).release()
        done = 0
        while done < 11:
            done += len((await client.receive()).lsns)


@pytest.mark.trio
async def test_a_client_that_does_not_read_its_pages_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lone(limits=Limits(client_outbox_bytes_high=64 * KIB, page_bytes_max=256 * KIB)) as (node, at, client):
        id = random_id()
        for serial in range(1, 17):
            assert isinstance(await client.ask(append(id, serial, b"p" * 512 * KIB)), q.Appended)
        lazy = await connect(at)
        *_, served = node.listener.clients
        queued = queued_from_now_on(served.link, monkeypatch)
        await lazy.send(*(read(n) for n in range(60)))
        await until_waited_for(served.link)
        assert served.requests > 0
        assert isinstance(await client.ask(append(id, 17, b"x")), q.Appended)
        pages = {(await lazy.receive()).request for _ in range(60)}
        assert pages == set(range(60))
        assert max(queued) < 64 * KIB + 600 * KIB


@pytest.mark.trio
async def test_a_client_that_does_not_read_its_answers_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lone(limits=Limits(client_outbox_bytes_high=4 * KIB)) as (node, at, client):
        (served,) = node.listener.clients
        queued = queued_from_now_on(served.link, monkeypatch)
        async with trio.open_nursery() as nursery:

            async def ask_for_ever() -> None:
                while True:
                    await client.send(*(w.Status(n) for n in range(32)))

            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            served.link._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
            nursery.start_soon(ask_for_ever)
            await until_waited_for(served.link)
            other = await connect(at)
            assert isinstance(await other.ask(append(random_id(), 1, b"x")), q.Appended)
            assert 4 * KIB < max(queued) < 1 * MIB
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_too_many_numbered_requests_are_refused() -> None:
    async with lone(limits=Limits(connection_requests_max=3)) as (_, _, client):
        await client.send(*(read(n, start=1, wait_ms=60_000) for n in range(3)))
        refused = await client.ask(w.Status(9))
        assert (refused.request, refused.code) == (9, Code.OVERLOADED)


@pytest.mark.trio
async def test_one_client_too_many_is_told_and_peers_have_their_own_slots() -> None:
    async with lone(limits=Limits(client_connections_max=2)) as (node, at, first):
        await connect(at)
        third = await connect_raw(at)
        problem = await third.greet(w.ClientHello(w.VERSION, b"", "test"))
        assert isinstance(problem, w.Problem) and problem.code == Code.OVERLOADED
        peer = await connect_raw(at)
        hello = w.PeerHello(
            w.VERSION, node.replica.cluster, 2, b"p" * 16, "127.0.0.1:1", 1, node.us.me.incarnation, 1, 0, (1, 5, 1)
        )
        assert isinstance(await peer.greet(hello), w.PeerHello)
        assert Identity(2, b"p" * 16) in node.routes.accepted
        await trio.aclose_forcefully(first.stream)
        await until(lambda: len(node.listener.clients) == 1)
        await connect(at)


@pytest.mark.trio
async def test_made_up_servers_keep_no_member_out() -> None:
    """Few connections are kept of unknown ids, and few of a member's id with other incarnations."""
    async with rig(2) as r:
        leader = await r.leader()
        other = next(node for node in r.nodes if node is not leader)
        made_up = [(100 + n, b"p" * 16) for n in range(100)]
        made_up += [(other.us.me.id, bytes([100 + n]) * 16) for n in range(50)]
        for id, incarnation in made_up:
            hello = w.PeerHello(
                w.VERSION, b"", id, incarnation, "127.0.0.1:1", leader.us.me.id, b"", 1, 0, leader.us.timers_ms
            )
            assert isinstance(await (await connect_raw(leader.us.address)).greet(hello), w.PeerHello)
        accepted = leader.routes.accepted
        assert other.us.me in accepted
        assert len(accepted) == 1 + 16 + 4
        before = accepted[other.us.me]
        before.link.close("for the test")
        await until(lambda: accepted.get(other.us.me) not in (None, before))
        assert len(accepted) == 1 + 16 + 4


@pytest.mark.trio
async def test_two_thousand_idle_connections_keep_nobody_out() -> None:
    """The oldest silent connections are closed for new ones; a connection that says hello is served."""
    async with lone(limits=Limits(silent_connections_max=100)) as (node, at, client):
        id = random_id()
        for n in range(2000):
            await connect_raw(at)
            if n % 500 == 0:
                newcomer = await connect(at)
                assert isinstance(await newcomer.ask(w.Status(1)), w.StatusAnswer)
        assert isinstance(await client.ask(append(id, 1, b"x")), q.Appended)
        assert len(node.listener._silent) <= 100


@pytest.mark.trio
async def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_nothing_behind() -> None:
    async with lone() as (node, at, _):
        gone = await connect(at)
        await gone.stream.send_all(encode(append(random_id(), 1, b"x" * 1000))[:500])
        await trio.aclose_forcefully(gone.stream)
        await until(lambda: len(node.listener.clients) == 1)
        assert node.replica.last_id == 1
