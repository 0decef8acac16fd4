"""Trims, retention and what readers see of them, through the whole shell (R18-R20)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest
import trio
from node_rig import WAIT_S, Client, Rig, append, connect, founded, lone, random_id, read, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.core.requests import Code
from alpo.node import driver, retention
from alpo.node.host import Host
from alpo.node.retention import Retention
from alpo.storage.interface import DamagedStore, Store
from alpo.wire import requests as w


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test waits for a schedule."""
    monkeypatch.setattr(retention, "LOOK_EVERY_S", 0.005)
    monkeypatch.setattr(retention, "REST_S_MIN", 0.0)
    yield


async def fill(client: Client, number: int, each: int = 1) -> None:
    """Make ``number`` appends of ``each`` payloads."""
    id = random_id()
    for serial in range(1, number + 1):
        payloads = [b"%d.%d" % (serial, n) for n in range(each)]
        item = (each, join_payloads(payloads)) if each > 1 else payloads[0]
        assert isinstance(await client.ask(append(id, serial, item)), q.Appended)


def lsns(page: w.Page) -> list[int]:
    return [row[5] + n for row in page.entries for n in range(row[6])]


async def first_lsn(client: Client) -> int:
    answer = await client.ask(w.Status(1))
    return int(answer.fields["first_lsn"])


@pytest.mark.trio
async def test_nothing_below_a_trim_is_read_any_more_and_it_is_cleaned() -> None:
    async with lone() as (node, _, client):
        await fill(client, 20)
        assert await first_lsn(client) == 1
        assert await client.ask(q.Trim(7, 11, False)) == q.Trimmed(7, 11)
        for linearizable in (False, True):
            for start in (1, 10):
                refused = await client.ask(read(start=start, linearizable=linearizable))
                assert (refused.code, refused.detail) == (Code.OUT_OF_RANGE, "11,20")
            for ask in ({}, {"start": 11}, {"last": 15}, {"since_ms": 1}):
                page = await client.ask(read(**ask, linearizable=linearizable))
                assert (lsns(page), page.first_lsn, page.end_lsn) == (list(range(11, 21)), 11, 20)
        assert await first_lsn(client) == 11
        await until(lambda: node.replica.log.base_next_lsn == 11)
        assert node.log.store.read_entries(1, 99, 1 << 20) == []
        assert lsns(await client.ask(read())) == list(range(11, 21))


@pytest.mark.trio
async def test_a_trim_beyond_the_end_is_refused_with_the_extent() -> None:
    async with lone() as (_, _, client):
        refused = await client.ask(q.Trim(1, 2, False))
        assert (refused.request, refused.code, refused.detail) == (1, Code.OUT_OF_RANGE, "1,0")
        await fill(client, 3)
        for before in (0, 5, 2**63 - 1):
            refused = await client.ask(q.Trim(1, before, False))
            assert (refused.code, refused.detail) == (Code.OUT_OF_RANGE, "1,3")
        assert await client.ask(q.Trim(1, 4, False)) == q.Trimmed(1, 4)
        page = await client.ask(read())
        assert (page.entries, page.next_lsn, page.end_lsn, page.first_lsn) == ([], 4, 3, 4)
        await fill(client, 1)
        assert lsns(await client.ask(read())) == [4]


@pytest.mark.trio
async def test_an_earlier_trim_that_went_further_stands() -> None:
    async with lone() as (_, _, client):
        await fill(client, 9)
        assert await client.ask(q.Trim(1, 8, False)) == q.Trimmed(1, 8)
        assert await client.ask(q.Trim(2, 3, False)) == q.Trimmed(2, 8)
        assert await client.ask(q.Trim(3, 8, False)) == q.Trimmed(3, 8)


@pytest.mark.trio
async def test_only_the_leader_takes_a_trim_and_all_servers_heed_it() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        await fill(client, 12)
        other = next(node for node in r.nodes if node is not leader)
        refused = await (await connect(other.us.address)).ask(q.Trim(1, 2, False))
        assert (refused.code, refused.leader, refused.leader_address) == (
            Code.NOT_LEADER, leader.us.me.id, leader.us.address
        )
        assert await client.ask(q.Trim(1, 6, False)) == q.Trimmed(1, 6)
        await until(lambda: all(node.replica.log.base_next_lsn == 6 for node in r.nodes))
        for node in r.nodes:
            reader = await connect(node.us.address)
            assert lsns(await reader.ask(read())) == list(range(6, 13))


@pytest.mark.trio
async def test_a_batch_is_trimmed_in_the_middle() -> None:
    async with lone() as (node, _, client):
        await fill(client, 3, each=4)
        await client.ask(q.Trim(1, 7, False))
        page = await client.ask(read())
        assert lsns(page) == list(range(7, 13)) and [row[6] for row in page.entries] == [2, 4]
        await until(lambda: node.replica.log.base_next_lsn == 5)
        assert await first_lsn(client) == 7
        assert await client.ask(read()) == page


@pytest.mark.trio
async def test_a_follower_that_is_trimmed_past_is_told() -> None:
    """A reader below the trim is refused; a reader that waits at the log's end is not, as it has missed nothing."""
    async with lone() as (node, at, client):
        await fill(client, 5)
        behind, level = await connect(at), await connect(at)
        await level.send(read(start=6, wait_ms=60_000))
        await until(lambda: len(node.log.reads._pollers) == 1)
        await client.ask(q.Trim(1, 6, False))
        refused = await behind.ask(read(start=3, wait_ms=60_000))
        assert (refused.code, refused.detail) == (Code.OUT_OF_RANGE, "6,5")
        await fill(client, 1)
        assert lsns(await level.receive()) == [6]


@pytest.mark.trio
async def test_a_read_under_way_ends_with_out_of_range_when_cleaning_overtakes_it() -> None:
    async with lone() as (node, _, client):
        await fill(client, 30)
        page = await client.ask(read(linearizable=True, bytes_max=1))
        assert lsns(page) == [1]
        await client.ask(q.Trim(1, 21, False))
        await until(lambda: node.replica.log.base_next_lsn == 21)
        refused = await client.ask(read(start=page.next_lsn, end=page.end_lsn, wait_ms=1000))
        assert (refused.code, refused.detail) == (Code.OUT_OF_RANGE, "21,30")


class Slow:
    """A store whose reader thread lets ``meanwhile`` happen before one of its reads."""

    def __init__(self, node: Host, method: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._store, self._method, self._meanwhile = node.log.store, method, meanwhile
        node.log.reads._store = cast(Store, self)
        self.seen = 0

    def __getattr__(self, name: str) -> object:
        if name == self._method:
            self.seen += 1
            if self.seen == 1:
                trio.from_thread.run(self._meanwhile)
        return getattr(self._store, name)


@pytest.mark.trio
@pytest.mark.parametrize("linearizable", [False, True])
@pytest.mark.parametrize("method", ["find_lsn", "read_columns"])
async def test_a_page_in_the_making_is_overtaken(method: str, linearizable: bool) -> None:
    async with rig() as r:
        client, other = await founded(r), await connect(r.addresses[0])
        await fill(client, 30)
        node = r.nodes[0]

        async def clean() -> None:
            await other.ask(q.Trim(1, node.replica.cleaning.first_lsn + 5, False))
            await until(lambda: node.replica.log.base_next_lsn == node.replica.cleaning.first_lsn)

        slow = Slow(node, method, clean)
        refused = await client.ask(read(start=2, linearizable=linearizable))
        assert (slow.seen, refused.code, refused.detail) == (1, Code.OUT_OF_RANGE, "6,30")
        slow = Slow(node, method, clean)
        page = await client.ask(read(linearizable=linearizable))
        assert slow.seen == 2 and lsns(page) == list(range(11, 31))
        assert node.driver.failure is None


@pytest.mark.trio
@pytest.mark.parametrize("policy", [
    Retention(max_entries=10), Retention(max_bytes=100), Retention(max_age_s=60), Retention(max_entries=10**9),
])
async def test_retention(policy: Retention, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_ms = 0
    monkeypatch.setattr(retention, "wall_ms", lambda: driver.wall_ms() + ahead_ms)

    async with rig(retention=policy) as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 300)
        log = node.replica.log
        if policy.max_entries == 10:
            await until(lambda: log.base_id == log.last_id - 10)
            assert lsns(await client.ask(read())) == list(range(291, 301))
        elif policy.max_bytes is not None:
            await until(lambda: node.log.store.live_bytes() <= 100)
            assert 0 < log.base_id <= log.last_id
        elif policy.max_age_s is not None:
            looks = Looks(node, monkeypatch)
            await looks.more()
            assert log.base_id == 0
            ahead_ms = 61_000
            await until(lambda: log.base_id == log.last_id)
            page = await client.ask(read())
            assert (page.entries, page.first_lsn, page.end_lsn) == ([], 301, 300)
            ahead_ms = 0
        else:
            await Looks(node, monkeypatch).more()
            assert log.base_id == 0
        lsn = (await client.ask(append(random_id(), 1, b"goes on"))).lsns[0]
        assert lsn == 301
        with trio.fail_after(WAIT_S):  # the append lets more go: between the two a cleaning may come
            while await first_lsn(client) != log.base_next_lsn:
                pass


class Looks:
    """Counts the cleaner's looks at what may go."""

    def __init__(self, node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        find = node.log.cleaner._find

        def counted(*args: int) -> int:
            self.number += 1
            return find(*args)

        monkeypatch.setattr(node.log.cleaner, "_find", counted)

    async def more(self) -> None:
        wanted = self.number + 3
        await until(lambda: self.number >= wanted)


async def _settled(r: Rig) -> tuple[Host, Client, Host]:
    leader = await r.leader()
    client = await connect(leader.us.address)
    await fill(client, 12)
    await until(lambda: all(node.replica.guaranteed_id == leader.replica.last_id for node in r.nodes))
    return leader, client, next(node for node in r.nodes if node is not leader)


@pytest.mark.trio
async def test_a_member_that_lags_holds_cleaning_back_and_status_says_which() -> None:
    async with rig(3) as r:
        leader, client, slow = await _settled(r)
        upto_id = leader.replica.last_id
        writer_of(slow).held = True
        await fill(client, 12)
        assert await client.ask(q.Trim(1, 25, False)) == q.Trimmed(1, 25)
        await until(lambda: leader.log.cleaner.waits != [])
        fields = (await client.ask(w.Status(1))).fields
        assert fields["cleaning_waits"] == [
            f"cleaning waits at entry {upto_id}: server {slow.us.me.id} is not known to hold more than {upto_id}"
        ]
        assert (fields["cleaned_id"], fields["cleanable_id"], fields["first_lsn"]) == (upto_id, upto_id, 25)
        passive = next(node for node in r.nodes if node not in (leader, slow))
        await until(lambda: passive.log.cleaner.waits != [])
        assert f"server {leader.us.me.id} leads and knows which" in passive.log.cleaner.waits[0]
        writer_of(slow).release()
        await until(lambda: all(node.replica.log.base_next_lsn == 25 for node in r.nodes))
        await until(lambda: not any(node.log.cleaner.waits for node in r.nodes))


@pytest.mark.trio
async def test_a_chunk_waits_until_the_one_before_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        cleaner, log, find = node.log.cleaner, node.replica.log, node.log.cleaner._find
        await fill(client, 300)
        monkeypatch.setattr(cleaner, "_find", lambda *_: 0)
        await client.ask(q.Trim(1, 301, False))
        writer_of(node).held = True
        cleaner._chunk = 64
        monkeypatch.setattr(cleaner, "_find", find)
        await until(lambda: log.base_id == 64)
        for _ in range(100):
            await first_lsn(client)
        assert log.base_id == 64 and node.log.store.entry_head(1) is not None
        writer_of(node).release()
        await until(lambda: log.base_next_lsn == 301 and node.log.store.entry_head(log.base_id) is None)


@pytest.mark.trio
async def test_a_store_that_cannot_be_read_cleans_nothing_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 5)

        def damaged(lsn: int, last_id: int) -> int:
            raise DamagedStore("entry 2: it does not match its checksum")

        store = node.log.cleaner._store
        node.log.cleaner._store = type("Damaged", (), {"find_lsn": staticmethod(damaged)})()
        await client.ask(q.Trim(1, 4, False))
        looks = Looks(node, monkeypatch)
        await looks.more()
        assert node.replica.log.base_id == 0 and await first_lsn(client) == 4
        node.log.cleaner._store = store
        await until(lambda: node.replica.log.base_next_lsn == 4)
