"""Judgements of how full a disk is, and how the node acts on them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from node_rig import connect, founded, lone, random_id, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.messages import Room
from alpo.core.requests import Code
from alpo.node import retention
from alpo.node.admission import DiskCare
from alpo.node.driver import Driver
from alpo.node.retention import DiskWatch, judge
from alpo.storage.interface import Store, StoreError, Volume
from alpo.storage.writer import WriterStats
from alpo.wire import requests as w

pytestmark = pytest.mark.usefixtures("patient")

LOW = 1000  # the reserve is 250, and there is room again at 1250 and 312


@pytest.mark.parametrize(
    ("before", "disk", "file", "found"),
    [
        (Room.PLENTY, 1000, 0, Room.PLENTY), (Room.PLENTY, 999, 0, Room.LOW), (Room.PLENTY, 400, 600, Room.PLENTY),
        (Room.PLENTY, 400, 599, Room.LOW), (Room.PLENTY, 250, 0, Room.LOW), (Room.PLENTY, 249, 10**9, Room.NONE),
        (Room.LOW, 1249, 0, Room.LOW), (Room.LOW, 1250, 0, Room.PLENTY), (Room.LOW, 300, 950, Room.PLENTY),
        (Room.LOW, 250, 0, Room.LOW), (Room.LOW, 249, 0, Room.NONE),
        (Room.NONE, 311, 10**9, Room.NONE), (Room.NONE, 312, 0, Room.LOW), (Room.NONE, 312, 900, Room.LOW),
        (Room.NONE, 1250, 0, Room.PLENTY),
    ],
)
def test_marks_are_crossed_back_well_above_them(before: Room, disk: int, file: int, found: Room) -> None:
    assert judge(before, LOW, disk, file) is found


def test_without_a_mark_there_is_always_room() -> None:
    for before in Room:
        assert judge(before, 0, 0, 0) is Room.PLENTY


@pytest.mark.trio
async def test_a_disk_fills_up_and_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SPACE_EVERY_S", 0.001)
    monkeypatch.setattr(retention, "SPACE_CLOSELY_S", 0.001)
    async with rig(care=DiskCare(LOW)) as r:
        node = r.nodes[0]
        free = 5000
        monkeypatch.setattr(node.log.store, "volume", lambda: Volume(10_000, free))
        client, id = await founded(r), random_id()
        assert isinstance(await client.ask(w.Append(id, 0, 1, False, False, [(1, b"one")])), q.Appended)
        free = 999
        await until(lambda: node.replica.disks.room is Room.LOW)
        refused = await client.ask(w.Append(id, 0, 2, False, False, [(1, b"two")]))
        assert isinstance(refused, w.AppendRefused) and refused.code == Code.NO_SPACE
        assert refused.detail == "server 1 is low on disk space: 999 B free"
        refused = await (await connect(r.addresses[0])).ask(q.OpenSession(7, "alice", 0, b"n" * 16))
        assert isinstance(refused, w.RequestRefused) and refused.code == Code.NO_SPACE
        fields = (await client.ask(w.Status(8))).fields
        assert (fields["room"], fields["free_bytes"], fields["low_water_bytes"]) == ("low", 999, LOW)
        assert fields["space"] == ["low on disk space: 999 B free, low-water mark 1000 B; it takes no appends"]
        free = 1250
        await until(lambda: node.replica.disks.room is Room.PLENTY)
        assert isinstance(await client.ask(w.Append(id, 0, 2, False, False, [(1, b"two")])), q.Appended)
        node.log.writer.stats.full = "alpo.db: database or disk is full"
        await until(lambda: node.replica.disks.room is Room.NONE)
        fields = (await client.ask(w.Status(9))).fields
        assert fields["room"] == "none" and "tried again" in fields["space"][0]
        node.log.writer.stats.full = ""
        await until(lambda: node.replica.disks.room is Room.PLENTY)
        assert (await client.ask(w.Status(10))).fields["space"] == []


@pytest.mark.trio
@pytest.mark.parametrize("what", ["a commit found it full", "a commit was slow"])
async def test_a_disk_with_room_for_long_is_looked_at_as_soon_as_a_commit_shows_otherwise(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(retention, "SPACE_SELDOM_S", 1e6)
    monkeypatch.setattr(retention, "SPACE_CLOSELY_S", 0.001)
    async with rig(care=DiskCare(LOW)) as r:
        node = r.nodes[0]
        free, looks = 1 << 40, 0

        def volume() -> Volume:
            nonlocal looks
            looks += 1
            return Volume(1 << 41, free)

        monkeypatch.setattr(node.log.store, "volume", volume)
        writer_of(node).slow("commit", 9.0, 1)
        await until(lambda: node.log.disk.fields()["free_bytes"] == free)
        for _ in range(3):
            free = 999
            if what == "a commit was slow":
                writer_of(node).slow("commit", 9.0, 1)
                await until(lambda: node.replica.disks.room is Room.LOW)
            else:
                node.log.writer.stats.full = "alpo.db: database or disk is full"
                writer_of(node).full()
                await until(lambda: node.replica.disks.room is Room.NONE)
                node.log.writer.stats.full = ""
            free = 1 << 40
            await until(lambda: node.replica.disks.room is Room.PLENTY)


def test_on_a_disk_that_is_slow_at_every_commit_looks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def volume() -> Volume:
        looks.append(trio.current_time())
        return Volume(1 << 41, 1 << 40)

    async def at_once(function: Callable[[], Any], **options: object) -> Any:
        return function()

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    store = SimpleNamespace(check_in_place=lambda: None, volume=volume, free_bytes=lambda: 0)
    watch = DiskWatch(cast(Driver, SimpleNamespace()), cast(Store, store), WriterStats(), LOW)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            for _ in range(1000):
                watch.look_soon()
                await trio.sleep(0.01)
            seen = len(looks)
            await trio.sleep(100)
            assert 20 <= len(looks) - seen <= 22, "and it is not looked at more often than before afterwards"
            nursery.cancel_scope.cancel()
        assert 90 <= seen <= 102

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.trio
async def test_a_status_without_the_sizes_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise StoreError("alpo.db: Input/output error")

    async with lone() as (node, at, _):
        monkeypatch.setattr(node.log.store, "size_bytes", fails)
        fields = (await (await connect(at)).ask(w.Status(1))).fields
        assert fields["reachable"] and "disk_bytes" not in fields
        assert fields["damage"] == ["the sizes of its data file cannot be read: alpo.db: Input/output error"]
