"""Large bodies that go to the members before their entries, over links that are slow (R17)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_rig import Client, Rig, append, connect, create, led, random_id, read, rig, until

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.node.client_connection import AHEAD_BYTES_MIN
from alpo.node.host import Host
from alpo.wire import requests as w

LARGE = b"x" * (4 * AHEAD_BYTES_MIN)


def slow(node: Host, bytes_per_s: float = 1000.0) -> None:
    """Let the server believe that its links are so slow."""
    for route in node.routes.dialled.values():
        route.link.long_bytes_per_s = bytes_per_s


def watch_blocks(node: Host) -> list[tuple[int, int]]:
    """(number, bytes) of each block that leaves the server."""
    sent: list[tuple[int, int]] = []
    for route in node.routes.dialled.values():
        def send(number: int, data: bytes, send: Callable[[int, bytes], None] = route.link.send_block) -> None:
            sent.append((number, len(data)))
            send(number, data)

        route.link.send_block = send  # type: ignore[method-assign]
    return sent


def logs_agree(r: Rig) -> bool:
    return len({(node.replica.last_id, node.replica.guaranteed_id) for node in r.nodes}) == 1


def bodies_of(node: Host) -> list[bytes]:
    log, bodies = node.replica.log, list[bytes]()
    while len(bodies) < log.last_id:
        found = log.slice(len(bodies) + 1, 1 << 30)
        assert found is not None
        bodies += [entry.body for entry in found[0]]
    return bodies


async def leading(r: Rig) -> tuple[Host, Client]:
    node = await r.leader()
    await until(lambda: len(node.routes.dialled) == len(r.nodes) - 1 and logs_agree(r))
    return node, await connect(r.addresses[node.us.me.id - 1])


@pytest.mark.parametrize("items", [
    [LARGE], [(3, join_payloads([b"a", LARGE, b"c"]))],
    [b"small", LARGE, b"small", LARGE[:-9], (2, join_payloads([b"y", LARGE]))],
])
@pytest.mark.trio
async def test_large_bodies_go_ahead_once_for_each_member_and_are_forgotten(items: list[Any]) -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        slow(node)
        blocks = watch_blocks(node)
        await client.send(append(random_id(), 1, *items))
        appended = 0
        while appended < len(items):
            appended += len((await client.receive()).lsns)
        sizes = [len(item) if isinstance(item, bytes) else len(item[1]) for item in items]
        large = [size for size in sizes if size >= AHEAD_BYTES_MIN]
        assert sorted(size for _, size in blocks) == sorted(2 * large)
        await until(lambda: logs_agree(r) and not node.routes.blocks)
        for other in r.nodes:
            for route in other.routes.accepted.values():
                await until(lambda route=route: not route.link._reader._blocks)  # type: ignore[misc]
        bodies = [bodies_of(other) for other in r.nodes]
        assert bodies[0] == bodies[1] == bodies[2] and len(bodies[0]) > len(large)
        traffic = node.driver.counters.traffic_with(next(iter(node.routes.dialled)))[0]
        assert sum(large) < traffic.sent_bytes < 1.5 * sum(large)


@pytest.mark.trio
async def test_quick_links_and_small_bodies_go_as_always() -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        blocks = watch_blocks(node)
        slow(node, 1e12)
        assert isinstance(await client.ask(append(random_id(), 1, LARGE)), q.Appended)
        slow(node)
        assert isinstance(await client.ask(append(random_id(), 1, LARGE[: AHEAD_BYTES_MIN - 1])), q.Appended)
        assert not blocks


@pytest.mark.trio
async def test_small_appends_pass_and_one_connection_s_stay_in_order() -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        slow(node)
        held: list[Any] = []
        for route in node.routes.dialled.values():
            link = route.link
            link.send_block = lambda number, data, link=link: held.append((link, number, data))  # type: ignore
        name = random_id()
        await client.send(append(name, 1, LARGE), append(name, 2, b"behind"))
        await until(lambda: len(held) == 2)
        other = await connect(r.addresses[node.us.me.id - 1])
        small = await other.ask(append(random_id(), 1, b"small"))
        assert isinstance(small, q.Appended)
        for link, number, data in held:
            type(link).send_block(link, number, data)
        first, second = await client.receive(), await client.receive()
        assert (first.serial, second.serial) == (1, 2) and small.lsns[0] < first.lsns[0] < second.lsns[0]


async def leading_bills(r: Rig) -> tuple[Host, Client, Client]:
    """Create a log; its leader, a client of it, and one of the first log's leader."""
    first = await connect((await r.leader()).us.address)
    assert isinstance(await first.ask(create("bills")), q.LogIs)
    node = await led(r, 2)
    await until(lambda: len(node.routes.dialled) == 2)
    return node, await connect(node.us.address, log="bills"), first


@pytest.mark.trio
async def test_each_log_s_go_ahead_unless_another_log_s_do(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        node, client, _ = await leading_bills(r)
        blocks = watch_blocks(node)
        slow(node)
        assert isinstance(await client.ask(append(random_id(), 1, LARGE)), q.Appended)
        assert blocks == [(1, len(LARGE))] * 2
        await until(lambda: not node.routes.blocks and not node.routes.blocks_of)
        node.routes.blocks_of = 77  # another log, whose appends get no further
        slow(node)
        assert isinstance(await client.ask(append(random_id(), 1, LARGE)), q.Appended)
        assert len(blocks) == 2
        for lsn in (1, 2):
            page = await client.ask(read(start=lsn, linearizable=True))
            assert page.entries[0][5:] == (lsn, 1, LARGE)


@pytest.mark.trio
async def test_a_log_that_is_deleted_meanwhile_keeps_no_client_and_no_block(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        node, client, first = await leading_bills(r)
        slow(node)
        for route in node.routes.dialled.values():
            route.link.send_block = lambda number, data: None  # type: ignore[method-assign]
        await client.send(append(random_id(), 1, LARGE))
        await until(lambda: bool(node.routes.blocks))
        assert isinstance(await first.ask(q.DeleteLog(1, "bills", b"d" * 16)), q.LogDeleted)
        await until(lambda: not node.routes.blocks and not node.routes.blocks_of)
        await until(lambda: all(front.number == 1 for front in node.listener.clients.values()))


@pytest.mark.trio
async def test_links_that_end_send_it_with_its_entry() -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        slow(node)
        for route in node.routes.dialled.values():
            route.link.send_block = lambda number, data: None  # type: ignore[method-assign]
        await client.send(append(random_id(), 1, LARGE))
        await until(lambda: bool(node.routes.blocks))
        for route in list(node.routes.dialled.values()):
            route.link.close("by the test")
        assert isinstance(await client.receive(), q.Appended)
        await until(lambda: not node.routes.blocks)


@pytest.mark.trio
async def test_what_is_sent_again_goes_ahead_once() -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        slow(node)
        blocks, name = watch_blocks(node), random_id()
        again = await connect(r.addresses[node.us.me.id - 1])
        await client.send(append(name, 1, LARGE))
        await again.send(append(name, 1, LARGE))
        answers = await client.receive(), await again.receive()
        assert list(answers[0].lsns) == list(answers[1].lsns)
        assert len(blocks) == 2
        assert isinstance(await again.ask(append(name, 1, LARGE)), q.Appended)
        assert len(blocks) == 2


@pytest.mark.trio
async def test_a_leader_that_is_deposed_meanwhile_says_so() -> None:
    async with rig(3) as r:
        node, client = await leading(r)
        slow(node)
        for route in node.routes.dialled.values():
            route.link.send_block = lambda number, data: None  # type: ignore[method-assign]
        await client.send(append(random_id(), 1, LARGE))
        await until(lambda: bool(node.routes.blocks))
        heir = next(other for other in r.nodes if other is not node)
        admin = await connect(r.addresses[node.us.me.id - 1])
        assert isinstance(await admin.ask(q.Transfer(1, heir.us.me.id)), q.HandedOver)
        refused = await client.receive()
        assert isinstance(refused, w.AppendRefused) and refused.code == q.Code.NOT_LEADER
        await until(lambda: not node.routes.blocks)
