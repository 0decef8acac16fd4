"""A disk that answers no reads, through the whole shell: readers are refused, the leader hands over, all else works."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from node_rig import Client, Rig, append, connect, founded, lone, memory_of, random_id, read, rig, until
from trio.testing import MockClock, wait_all_tasks_blocked
from visits import visit

from alpo.client import retry
from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.node import reads, report
from alpo.node.admission import Limits
from alpo.node.driver import Driver
from alpo.node.host import Host
from alpo.node.http import site
from alpo.node.reads import DiskReads
from alpo.storage.interface import Store, StoreError
from alpo.wire import requests as w


class Disk:
    """Disks of the servers, each of which may stop to answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._moves = threading.Event()
        self._moves.set()
        self.waiting = 0  # calls for pages; the watch of the disk's space asks it now and then, too

    def hang(self, node: Host) -> None:
        """Let the node's disk answer no reads of pages or for a status, and let servers wait only 0.2 s for a disk."""
        self._monkeypatch.setattr(reads, "PATIENCE_S_MIN", 0.2)
        self._moves.clear()
        store = memory_of(node)
        for name, of_a_page in [("read_entries", True), ("entry_head", True), ("find_lsn", True), ("volume", False),
                                ("live_bytes", False)]:
            self._monkeypatch.setattr(store, name, self._stuck(getattr(store, name), of_a_page))

    def _stuck(self, call: Callable[..., Any], of_a_page: bool) -> Callable[..., Any]:
        def stuck(*args: Any) -> Any:
            self.waiting += of_a_page
            self._moves.wait()
            return call(*args)

        return stuck

    def patience(self) -> None:
        """Let servers wait long for a disk: this machine may be busy."""
        self._monkeypatch.setattr(reads, "PATIENCE_S_MIN", 60.0)

    def move(self) -> None:
        self.patience()
        self._moves.set()


@asynccontextmanager
async def servers(disk: Disk, *args: Any, **given: Any) -> AsyncIterator[Rig]:
    """A rig whose disks move again before it ends: threads that hang would hold it, whatever has failed."""
    async with rig(*args, **given) as r:
        try:
            yield r
        finally:
            disk.move()


async def leader_with_a_payload(r: Rig) -> tuple[Host, Client]:
    """The leader, and a connection to it."""
    leader = await r.leader()
    client = await connect(r.addresses[leader.us.me.id - 1])
    assert isinstance(await client.ask(append(random_id(), 1, b"a")), q.Appended)
    return leader, client


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Pages are read from it, whatever is in memory."""
    monkeypatch.setattr(reads, "build_tail_page", lambda *args: None)
    monkeypatch.setattr(reads, "with_tail", lambda store, log, end_id: store)
    made = Disk(monkeypatch)
    try:
        yield made
    finally:
        made.move()


@pytest.mark.trio
async def test_a_leader_whose_disk_answers_no_reads_refuses_them_and_hands_over(disk: Disk) -> None:
    async with servers(disk, 3) as r:
        leader, client = await leader_with_a_payload(r)
        assert leader.replica.leadership is not None
        for peer in leader.replica.leadership.peers.values():
            peer.took_s = 60.0  # the last write was slow, and no write is under way
        disk.hang(leader)
        refused = await client.ask(read(1, linearizable=True))
        assert refused.code == Code.NOT_READY and "its disk has not answered a read" in refused.detail
        await until(lambda: any(node.replica.reign is not None for node in r.nodes if node is not leader))
        disk.patience()
        heir = next(node for node in r.nodes if node is not leader and node.replica.reign is not None)
        page = await (await connect(r.addresses[heir.us.me.id - 1])).ask(read(2, linearizable=True))
        assert [row[7] for row in page.entries] == [b"a"]
        names = leader.driver.counters.events
        assert names["read_failed"] == 1 and names["handing_over"] == 1
        disk.move()
        page = await client.ask(read(3))
        assert [row[7] for row in page.entries] == [b"a"]
        await until(lambda: leader.log.reads.disk.under_way_s == 0.0)


@pytest.mark.trio
async def test_reads_that_hang_hold_no_more_than_their_threads(disk: Disk) -> None:
    async with servers(disk, limits=Limits(read_threads=2)) as r:
        client = await founded(r)
        assert isinstance(await client.ask(append(random_id(), 1, b"a")), q.Appended)
        await client.ask(q.SetCursor(1, "reader", 1))
        disk.hang(r.nodes[0])
        others = [await connect(r.addresses[0]) for _ in range(6)]
        for n, other in enumerate(others):
            await other.send(read(n))
        for other in others:
            assert (await other.receive()).code == Code.NOT_READY
        assert (await client.ask(w.AwaitReplicated(8, 1, 60_000))).code == Code.NOT_READY
        assert (await client.ask(q.ListCursors(9))).code == Code.NOT_READY
        gone = await connect(r.addresses[0])  # a client that goes before its answer comes leaves nothing behind
        await gone.send(read(1))
        await trio.aclose_forcefully(gone.stream)
        await until(lambda: r.nodes[0].listener.count == 7)
        assert disk.waiting == 2 and r.nodes[0].log.reads.disk.hangs
        disk.move()
        await until(lambda: r.nodes[0].log.reads.disk.under_way_s == 0.0)
        assert [row[7] for row in (await client.ask(read(9))).entries] == [b"a"]


@pytest.mark.trio
async def test_a_leader_leads_on_if_nobody_else_could(disk: Disk) -> None:
    async with servers(disk, 3) as r:
        leader, client = await leader_with_a_payload(r)
        term, leadership = leader.replica.term, leader.replica.leadership
        assert leadership is not None
        next(node for node in r.nodes if node is not leader).stop()
        await until(lambda: len(leadership.heirs()) == 1)
        disk.hang(leader)
        assert (await client.ask(read(1, linearizable=True))).code == Code.NOT_READY
        assert leader.replica.term == term and not leader.driver.counters.events["handing_over"]


@pytest.mark.trio
async def test_an_error_of_a_read_is_raised_as_it_is() -> None:
    async with lone() as (node, _, _):

        def fail(store: Store) -> int:
            raise StoreError("as it is")

        with pytest.raises(StoreError, match="as it is"):
            await node.log.reads.disk.run(trio.CapacityLimiter(1), fail, memory_of(node))


@pytest.mark.trio
async def test_a_process_that_stood_waits_once_more_for_its_disk(mock_clock: MockClock) -> None:
    cfg = SimpleNamespace(disk_patience_s=4.0)
    driver = SimpleNamespace(replica=SimpleNamespace(cfg=cfg), clock_s=mock_clock.current_time)
    reads, moves, found = DiskReads(cast(Driver, driver)), threading.Event(), list[bool]()

    async def ask() -> None:
        found.append(await reads.run(trio.CapacityLimiter(1), moves.wait, 60.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not reads._begun:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(60)
        await wait_all_tasks_blocked()
        moves.set()
    assert found == [True]


@pytest.mark.trio
async def test_who_asks_for_an_account_is_answered_and_told_of_the_disk(disk: Disk) -> None:
    """Status, metrics and pages are served while a read hangs, with the last known answer if it is not old."""
    async with servers(disk) as r:
        client, at = await founded(r), r.visited[0]
        assert isinstance(await client.ask(append(random_id(), 1, b"a")), q.Appended)
        before = (await client.ask(w.Status(1))).fields
        assert before["read_under_way_ms"] < 1000 and (await visit(at, "/readyz")).status == 200
        disk.hang(r.nodes[0])
        await client.send(read(2))
        await until(lambda: r.nodes[0].log.reads.disk.hangs)
        told = (await client.ask(w.Status(3))) if (await client.receive()).request == 2 else None
        assert told is not None and told.fields["read_under_way_ms"] >= 200 and told.fields["damage"] == []
        assert told.fields["wal_bytes"] == before["wal_bytes"]
        for path in ("/metrics", "/status", "/", "/?part"):
            assert (await visit(at, path)).status == 200, path
        metrics = (await visit(at, "/metrics")).text.splitlines()
        (age,) = [line.rpartition(" ")[2] for line in metrics if line.startswith("alpo_read_under_way_seconds{")]
        assert float(age) >= 0.2
        assert not [line for line in metrics if line.startswith("alpo_cursor_lag")]
        assert json.loads((await visit(at, "/status")).text)["members"][0]["read_under_way_ms"] >= 200
        refused = await visit(at, "/readyz")
        assert refused.status == 503 and "its disk hangs" in refused.text
        disk.move()
        await until(lambda: r.nodes[0].log.reads.disk.under_way_s == 0.0)
        assert (await visit(at, "/readyz")).status == 200


def test_all_that_a_page_asks_of_a_disk_takes_less_than_others_wait_for_it() -> None:
    assert 2 * report.DISK_S < site.ANSWER_S and 2 * report.DISK_S < retry.ATTEMPT_S
