"""Reads through the whole shell: when they wait, when they are refused, and how far a page goes."""

from __future__ import annotations

import pytest
import trio
from next_version import NEXT, speak_next
from node_rig import append, connect, lone, random_id, read, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.wire.requests import OLDEST_VERSION, ReadColumns, unpack_page


@pytest.mark.trio
async def test_nothing_is_read_before_the_first_start() -> None:
    async with rig() as r:
        client = await connect(r.addresses[0])
        refused = await client.ask(read())
        assert refused.code == Code.NOT_READY and "EMPTY" in refused.detail
        refused = await client.ask(read(linearizable=True))
        assert refused.code == Code.NOT_LEADER


@pytest.mark.trio
async def test_a_read_beyond_the_end_is_refused_with_the_extent() -> None:
    async with lone() as (_, _, client):
        await client.ask(append(random_id(), 1, b"a", b"b"))
        for linearizable in (False, True):
            refused = await client.ask(read(start=4, linearizable=linearizable))
            assert (refused.code, refused.detail) == (Code.OUT_OF_RANGE, "1,2")
            page = await client.ask(read(start=3, linearizable=linearizable))
            assert (page.entries, page.next_lsn, page.end_lsn) == ([], 3, 2)


@pytest.mark.trio
async def test_a_long_poll_is_answered_when_there_is_something() -> None:
    async with lone() as (node, at, client):
        pollers = [await connect(at) for _ in range(20)]
        for n, poller in enumerate(pollers):
            await poller.send(read(n, start=2 if n % 2 else 1, wait_ms=30_000))
        id = random_id()
        await client.ask(append(id, 1, b"first"))
        for n, poller in enumerate(pollers):
            if n % 2 == 0:
                page = await poller.receive()
                assert [row[7] for row in page.entries] == [b"first"]
        await client.ask(append(id, 2, b"second"))
        for n, poller in enumerate(pollers):
            if n % 2:
                assert [row[7] for row in (await poller.receive()).entries] == [b"second"]
        assert not node.log.reads._pollers


@pytest.mark.trio
async def test_a_long_poll_ends_with_an_empty_page() -> None:
    """A poll far beyond the end gets an empty page, too: a server that is behind does not refuse such an LSN."""
    async with lone() as (_, _, client):
        page = await client.ask(read(start=1, wait_ms=10))
        assert (page.entries, page.next_lsn, page.end_lsn) == ([], 1, 0)
        page = await client.ask(read(start=9, wait_ms=10))
        assert (page.entries, page.next_lsn, page.end_lsn) == ([], 9, 0)


@pytest.mark.trio
async def test_a_poll_ends_with_its_connection() -> None:
    async with lone() as (node, at, _):
        poller = await connect(at)
        await poller.send(read(start=1, wait_ms=60_000))
        reads = node.log.reads
        await until(lambda: len(reads._pollers) == 1)
        await trio.aclose_forcefully(poller.stream)
        await until(lambda: not reads._pollers)


@pytest.mark.trio
async def test_a_page_shows_nothing_that_is_not_on_disk() -> None:
    async with lone() as (node, at, client):
        id = random_id()
        await client.ask(append(id, 1, b"durable"))
        writer_of(node).held = True
        await client.send(append(id, 2, b"not yet"))
        other = await connect(at)
        page = await other.ask(read())
        assert [row[7] for row in page.entries] == [b"durable"]
        writer_of(node).release()
        assert list((await client.receive()).lsns) == [2]
        page = await other.ask(read(linearizable=True))
        assert [row[7] for row in page.entries] == [b"durable", b"not yet"]


@pytest.mark.trio
async def test_every_server_of_three_serves_what_was_answered() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        assert isinstance(await client.ask(append(random_id(), 1, b"x", b"y")), q.Appended)
        for node in r.nodes:
            reader = await connect(node.us.address)
            page = await reader.ask(read(start=1, end=2, wait_ms=20_000))
            assert [row[7] for row in page.entries] == [b"x", b"y"]
            if node is not leader:
                refused = await reader.ask(read(linearizable=True))
                assert (refused.code, refused.leader) == (Code.NOT_LEADER, leader.us.me.id)
                assert refused.leader_address == leader.us.address


@pytest.mark.parametrize("version", range(OLDEST_VERSION, NEXT + 1))
@pytest.mark.trio
async def test_a_client_of_any_version_reads_runs(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    speak_next(monkeypatch)
    async with lone() as (_, at, _):
        client = await connect(at, version=version)
        empty = await client.ask(ReadColumns(*read()))
        assert unpack_page(empty).appends() == []
        id = random_id()
        told = await client.ask(append(id, 1, b"a", b"b", b"c"))
        assert isinstance(told, q.Appended) and list(told.lsns) == [1, 2, 3]
        rows = [(2, 1, "", id, lsn, lsn, 1, payload) for lsn, payload in enumerate([b"a", b"b", b"c"], 1)]
        page, columns = await client.ask(read()), await client.ask(ReadColumns(*read()))
        for found in (page.entries, unpack_page(columns).appends()):
            assert [(*row[:2], "", *row[3:]) for row in found] == rows
