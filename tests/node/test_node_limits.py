"""What is bounded stays bounded, and whoever keeps within bounds is served meanwhile."""

from __future__ import annotations

import trio
from node_rig import append, connect, connect_raw, founded, in_trio, random_id, read, rig, until

from alpo.core.members import Identity, Settings
from alpo.core.ready import Code
from alpo.node.limits import Limits
from alpo.wire import requests as w
from alpo.wire.codec import encode

KIB = 1 << 10
MIB = 1 << 20


@in_trio
async def test_a_payload_over_the_limit_is_refused_and_nothing_of_its_frame_taken() -> None:
    async with rig(settings=Settings(payload_bytes_max=100, batch_bytes_max=150)) as r:
        client = await founded(r)
        id = random_id()
        refused = await client.ask(append(id, 1, b"fits", b"x" * 101))
        assert (refused.code, refused.number, refused.serial, refused.count) == (Code.TOO_LARGE, 100, 1, 2)
        batch = b"".join((80).to_bytes(4, "little") + b"y" * 80 for _ in range(2))
        refused = await client.ask(append(id, 1, (2, batch)))
        assert (refused.code, refused.number) == (Code.TOO_LARGE, 150)
        assert (await client.ask(append(id, 1, b"x" * 100))).lsns == [1]


@in_trio
async def test_a_flood_waits_outside_while_the_disk_does_not_answer() -> None:
    """Bytes taken and not guaranteed stop at the limit (and what one receive brings a connection); nothing is lost."""
    limit = 1 * MIB
    async with rig(limits=Limits(inflight_bytes_max=limit)) as r:
        await founded(r)
        node = r.nodes[0]
        clients = [await connect(r.addresses[0]) for _ in range(4)]
        ids = [random_id() for _ in clients]
        node.writer.held = True
        async with trio.open_nursery() as nursery:
            for client, id in zip(clients, ids, strict=True):
                flood = [append(id, serial, b"z" * 8 * KIB) for serial in range(1, 501)]
                nursery.start_soon(client.send, *flood)
            await until(lambda: node.driver.full)
            await until_quiet(lambda: node.driver.inputs)
            taken = node.replica.inflight_bytes
            assert limit < taken < limit + 5 * (256 * KIB + 8 * KIB)
            node.writer.release()
            for client in clients:
                done = 0
                while done < 500:
                    reply = await client.receive()
                    assert isinstance(reply, w.Appended), reply
                    done += len(reply.lsns)
        assert not node.driver.full


async def until_quiet(count: object) -> None:
    """Until nothing has happened for a good number of passes of the scheduler."""
    same, last = 0, None
    while same < 50:
        now = count()  # type: ignore[operator]
        same = same + 1 if now == last else 0
        last = now
        await trio.sleep(0.001)


@in_trio
async def test_a_connection_with_too_many_unanswered_is_not_read() -> None:
    async with rig(limits=Limits(connection_inflight_max=10)) as r:
        client = await founded(r)
        node = r.nodes[0]
        node.writer.held = True
        id = random_id()
        for serial in range(1, 11):
            await client.send(append(id, serial, b"x"))
        (served,) = node.listener.clients
        await until(lambda: served.appends == 10)
        await client.send(append(id, 11, b"x"))
        other = await connect(r.addresses[0])
        assert isinstance(await other.ask(w.Status(1)), w.StatusAnswer)
        assert served.appends == 10
        node.writer.release()
        done = 0
        while done < 11:
            done += len((await client.receive()).lsns)


@in_trio
async def test_a_client_that_does_not_read_its_pages_costs_bounded_memory() -> None:
    async with rig(limits=Limits(client_outbox_bytes_high=64 * KIB, page_bytes_max=256 * KIB)) as r:
        client = await founded(r)
        node = r.nodes[0]
        id = random_id()
        for serial in range(1, 17):
            assert isinstance(await client.ask(append(id, serial, b"p" * 512 * KIB)), w.Appended)
        lazy = await connect(r.addresses[0])
        await lazy.send(*(read(n) for n in range(60)))
        await until(lambda: any(c.requests for c in node.listener.clients))
        served = next(c for c in node.listener.clients if c.requests)
        await until(lambda: served.link.queued_bytes > 0)
        await until_quiet(lambda: (served.link.queued_bytes, served.requests))
        assert served.requests > 0
        assert served.link.queued_bytes < 64 * KIB + 600 * KIB
        assert isinstance(await client.ask(append(id, 17, b"x")), w.Appended)
        pages = {(await lazy.receive()).request for _ in range(60)}
        assert pages == set(range(60))


@in_trio
async def test_a_client_that_does_not_read_its_answers_is_not_read_either() -> None:
    async with rig(limits=Limits(client_outbox_bytes_high=4 * KIB)) as r:
        client = await founded(r)
        node = r.nodes[0]
        (served,) = node.listener.clients
        async with trio.open_nursery() as nursery:

            async def ask_for_ever() -> None:
                while True:
                    await client.send(*(w.Status(n) for n in range(32)))

            nursery.start_soon(ask_for_ever)
            await until(lambda: served.link.queued_bytes > 4 * KIB)
            await until_quiet(lambda: served.link.queued_bytes)
            assert served.link.queued_bytes < 1 * MIB
            other = await connect(r.addresses[0])
            assert isinstance(await other.ask(append(random_id(), 1, b"x")), w.Appended)
            nursery.cancel_scope.cancel()


@in_trio
async def test_too_many_numbered_requests_are_refused() -> None:
    async with rig(limits=Limits(connection_requests_max=3)) as r:
        client = await founded(r)
        await client.send(*(read(n, start=1, wait_ms=60_000) for n in range(3)))
        refused = await client.ask(w.Status(9))
        assert (refused.request, refused.code) == (9, Code.OVERLOADED)


@in_trio
async def test_one_client_too_many_is_told_and_peers_have_their_own_slots() -> None:
    async with rig(limits=Limits(client_connections_max=2)) as r:
        first = await founded(r)
        await connect(r.addresses[0])
        third = await connect_raw(r.addresses[0])
        problem = await third.greet(w.ClientHello(w.VERSION, b"", "test"))
        assert isinstance(problem, w.Problem) and problem.code == Code.OVERLOADED
        node = r.nodes[0]
        peer = await connect_raw(r.addresses[0])
        hello = w.PeerHello(
            w.VERSION, node.replica.cluster, 2, b"p" * 16, "127.0.0.1:1", 1, node.us.me.incarnation, 1, 0, (1, 5, 1)
        )
        assert isinstance(await peer.greet(hello), w.PeerHello)
        assert Identity(2, b"p" * 16) in node.routes.accepted
        await trio.aclose_forcefully(first.stream)
        await until(lambda: len(node.listener.clients) == 1)
        await connect(r.addresses[0])


@in_trio
async def test_two_thousand_idle_connections_keep_nobody_out() -> None:
    """The oldest of the silent make room; what says hello is served."""
    async with rig(limits=Limits(silent_connections_max=100)) as r:
        client = await founded(r)
        id = random_id()
        for n in range(2000):
            await connect_raw(r.addresses[0])
            if n % 500 == 0:
                newcomer = await connect(r.addresses[0])
                assert isinstance(await newcomer.ask(w.Status(1)), w.StatusAnswer)
        assert isinstance(await client.ask(append(id, 1, b"x")), w.Appended)
        assert len(r.nodes[0].listener._silent) <= 100


@in_trio
async def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_nothing_behind() -> None:
    async with rig() as r:
        await founded(r)
        node = r.nodes[0]
        gone = await connect(r.addresses[0])
        await gone.stream.send_all(encode(append(random_id(), 1, b"x" * 1000))[:500])
        await trio.aclose_forcefully(gone.stream)
        await until(lambda: len(node.listener.clients) == 1)
        assert node.replica.last_id == 1
