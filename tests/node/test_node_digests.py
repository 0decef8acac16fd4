"""Requests for digests: how far an answer reaches, and which requests are refused (R31)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing
from node_rig import WAIT_S, Client, append, connect, founded, lone, memory_of, random_id, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.entries import Entry, Kind, seal
from alpo.core.requests import Code
from alpo.node import compare
from alpo.node.admission import Limits
from alpo.node.host import Host
from alpo.node.retention import Retention
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.scrub import Span, read_on
from alpo.wire import requests as w


async def filled(client: Client, node: Host, count: int, payload: bytes = b"payload") -> list[Entry]:
    """Make ``count`` more appends; return all entries of the server."""
    id = random_id()
    for serial in range(1, count + 1):
        assert isinstance(await client.ask(append(id, serial, (1, payload))), q.Appended)
    await until(lambda: node.replica.guaranteed_id == node.replica.last_id)
    return node.log.store.read_entries(1, 1 << 20, 1 << 40)


def answer(number: int, entries: list[Entry]) -> w.DigestIs:
    return w.DigestIs(number, *Span.before(entries[0].id).followed_by(entries)[:5])


@pytest.mark.trio
async def test_a_digest_is_of_what_was_asked_for_as_far_as_it_is_guaranteed() -> None:
    async with rig() as r:
        nobody = await connect(r.addresses[0])
        assert await nobody.ask(w.RangeDigest(1, 1, 10)) == w.DigestIs(1, 1, 0, 0, 0, bytes(16)), "not founded yet"
        client = await founded(r)
        entries = await filled(client, r.nodes[0], 20)
        end = entries[-1].id
        assert await client.ask(w.RangeDigest(2, 1, end)) == answer(2, entries)
        assert await client.ask(w.RangeDigest(3, 5, 9)) == answer(3, entries[4:9])
        assert await client.ask(w.RangeDigest(4, 5, 1 << 62)) == answer(4, entries[4:])
        assert await client.ask(w.RangeDigest(5, end + 7, end + 9)) == w.DigestIs(5, end + 7, end + 6, 0, 0, bytes(16))
        refused = await client.ask(w.RangeDigest(6, 9, 8))
        assert isinstance(refused, w.RequestRefused) and refused.code == Code.INVALID


@pytest.mark.trio
async def test_what_is_not_guaranteed_or_not_on_disk_is_left_out() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        entries = await filled(client, leader, 5)
        followers = [node for node in r.nodes if node is not leader]
        await until(lambda: all(node.replica.guaranteed_id == entries[-1].id for node in followers))
        for node in followers:
            writer_of(node).held = True
        await client.send(append(random_id(), 1, (1, b"on one disk only")))
        await until(lambda: leader.replica.log.stable_id == leader.replica.last_id > entries[-1].id)
        for node in r.nodes:
            asked = await connect(node.us.address)
            assert await asked.ask(w.RangeDigest(1, 1, 1 << 62)) == answer(1, entries)
        writer_of(followers[1]).release()
        slow = followers[0]
        await until(lambda: slow.replica.guaranteed_id > slow.replica.log.stable_id)
        old = entries[-1]
        memory_of(slow)._entries.append(seal(old.id + 1, old.term, Kind.LEADER, old.time_ms, old.lsn + 1, b"{}"))
        asked = await connect(slow.us.address)
        assert await asked.ask(w.RangeDigest(2, 1, 1 << 62)) == answer(2, entries), "what is to be expunged"


@pytest.mark.trio
async def test_what_was_cleaned_is_left_out() -> None:
    async with rig(retention=Retention(max_entries=10)) as r:
        client, node = await founded(r), r.nodes[0]
        await filled(client, node, 40)
        await until(lambda: node.replica.log.base_id >= 25)
        got = await client.ask(w.RangeDigest(1, 1, 1 << 62))
        base_id = node.replica.log.base_id
        kept = node.log.store.read_entries(base_id + 1, 1 << 20, 1 << 40)
        assert got == answer(1, kept) and got.first_id == base_id + 1
        assert await client.ask(w.RangeDigest(2, 3, base_id)) == w.DigestIs(2, base_id + 1, base_id, 0, 0, bytes(16))


@pytest.mark.trio
@pytest.mark.parametrize(("name", "most", "covers"), [("IDS_MAX", 7, 7), ("BYTES_MAX", 550, 6), ("SECONDS_MAX", 0, 1)])
async def test_one_request_costs_only_so_much(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int, covers: int
) -> None:
    monkeypatch.setattr(compare, name, most)
    monkeypatch.setattr(compare, "PIECE_BYTES", 1)

    async with lone() as (node, _, client):
        entries = await filled(client, node, 20, b"")
        got = await client.ask(w.RangeDigest(1, 3, 1 << 62))
        assert got == answer(1, entries[2 : 2 + covers])


@pytest.mark.trio
async def test_damage_is_an_error_that_names_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        entries = await filled(client, node, 20)
        read = node.log.store.read_entries
        failure: list[StoreError] = []

        def read_entries(first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
            if failure and first_id <= 9 <= last_id:
                raise failure[0]
            return read(first_id, last_id, bytes_max)

        def scrub(first_id: int, bytes_max: int) -> Any:
            return type("Found", (), {"damaged": [9]})

        monkeypatch.setattr(node.log.store, "read_entries", read_entries)
        monkeypatch.setattr(node.log.store, "scrub", scrub)
        failure.append(DamagedStore("alpo.db: entry 9 does not match its checksum"))
        for first in (1, 9):
            refused = await client.ask(w.RangeDigest(1, first, 20))
            assert isinstance(refused, w.RequestRefused)
            assert (refused.code, refused.number) == (Code.NOT_READY, 9) and "entry 9" in refused.detail
        assert await client.ask(w.RangeDigest(2, 1, 8)) == answer(2, entries[:8])
        failure[0] = StoreError("alpo.db: input/output error")
        refused = await client.ask(w.RangeDigest(3, 1, 20))
        assert (refused.code, refused.number) == (Code.NOT_READY, 0) and "input/output error" in refused.detail


@pytest.mark.trio
async def test_many_ask_at_once_and_one_digest_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(limits=Limits(connection_requests_max=30)) as r:
        client, node = await founded(r), r.nodes[0]
        entries = await filled(client, node, 5)
        go_on, under_way = threading.Event(), list[Any]()

        def held_up(*args: Any) -> Span:
            under_way.append(args)
            go_on.wait(WAIT_S)
            return read_on(*args)

        monkeypatch.setattr(compare, "read_on", held_up)
        clients = [await connect(r.addresses[0]) for _ in range(5)]
        async with trio.open_nursery() as nursery:
            for one in clients:
                nursery.start_soon(ask_often, one, entries)
            await until(lambda: bool(under_way))
            await trio.testing.wait_all_tasks_blocked(0.05)
            seen = len(under_way)
            go_on.set()
        assert seen == 1
        assert isinstance(await client.ask(append(random_id(), 1, b"still here")), q.Appended)


async def ask_often(client: Client, entries: list[Entry]) -> None:
    """Ask more than are accepted at once: each request is answered or refused, and none is lost."""
    await client.send(*(w.RangeDigest(number, 1, 5) for number in range(40)))
    got = [await client.receive() for _ in range(40)]
    digests_made = [reply for reply in got if isinstance(reply, w.DigestIs)]
    assert digests_made == [answer(reply.request, entries[:5]) for reply in digests_made] and len(digests_made) >= 30
    assert {reply.code for reply in got if isinstance(reply, w.RequestRefused)} <= {Code.OVERLOADED}
