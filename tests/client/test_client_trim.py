"""Trims, cursors, and reading a log that was trimmed, through a fake cluster, under trio and asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from fake_cluster import FakeCluster, fake_cluster

import alpo

pytestmark = pytest.mark.anyio


def fill(c: FakeCluster, upto: int) -> None:
    while c.last_lsn < upto:
        c.append("w", c.next_lsn, 0, 1, b"%d" % c.next_lsn)


async def test_a_trim_gives_the_first_lsn() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        assert await log.trim(before=4) == 4
        assert await log.trim(2) == 4
        assert [r.lsn async for r in log.read()] == list(range(4, 11))
        assert [r.lsn async for r in log.read(last=9)] == list(range(4, 11))
        assert await log.trim(11) == 11
        assert [r.lsn async for r in log.read()] == []


async def test_beyond_the_end() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        with pytest.raises(alpo.OutOfRange, match=r"LSN 2 is not in the log, which holds nothing$"):
            await log.trim(2)
        fill(c, 10)
        await log.trim(4)
        with pytest.raises(alpo.OutOfRange, match=r"LSN 12 is not in the log, which holds 4 to 10$") as caught:
            await log.trim(12)
        assert (caught.value.first_lsn, caught.value.last_lsn) == (4, 10)
        await log.trim(11)
        with pytest.raises(alpo.OutOfRange, match=r"LSN 7 is not in the log, which holds nothing; its next LSN is 11$"):
            [r async for r in log.read(start=7)]


async def test_arguments() -> None:
    log = alpo.connect("127.0.0.1:1")
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            await log.trim(wrong)


async def test_the_leader_is_found() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        c.servers[1].kill()
        c.lead(3)
        assert await log.trim(4) == 4
        assert {id for id, _ in c.trims} == {3}


async def test_a_leader_that_was_deposed_without_noticing_gives_no_verdict() -> None:
    """The old leader knows no LSN so high and refuses; only a linearizable read shows that it leads no more."""
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        c.stale_trims = 1
        assert await log.trim(9) == 9
        assert len(c.trims) == 2 and c.reads[-1][1].linearizable


async def test_a_deposed_leader_that_answers_no_read_gives_no_verdict_either() -> None:
    class Overtaken(list[Any]):
        def append(self, trim: object) -> None:
            super().append(trim)
            if len(self) == 1:
                c.lead(3)

    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        c.stale_trims, c.trims = 1, Overtaken()
        assert await log.trim(9) == 9
        assert [id for id, _ in c.trims] == [1, 3]


async def test_nobody_there() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, timeout_s=0.2) as log:
            c.lead(0)
            with pytest.raises(alpo.Unavailable):
                await log.trim(1)
        assert c.trims == []


async def test_a_read_under_way_and_a_follower_are_overtaken() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 60)
        c.page_entries_max = 10
        for records in (log.read(), log.follow(1), log.read(local=True)):
            c.first_lsn = 1
            seen = []
            with pytest.raises(alpo.OutOfRange) as caught:
                async for record in records:
                    seen.append(record.lsn)
                    if record.lsn == 5:
                        c.first_lsn = 51
            assert seen == list(range(1, len(seen) + 1)) and len(seen) <= 30
            assert (caught.value.first_lsn, caught.value.last_lsn) == (51, 60)


async def test_sync() -> None:
    async with fake_cluster() as c:
        fill(c, 5)

        def blocking() -> list[int]:
            with alpo.connect_sync(c.addresses) as log:
                assert log.trim(before=3) == 3
                return [record.lsn for record in log.read()]

        assert await anyio.to_thread.run_sync(blocking) == [3, 4, 5]


async def test_cursors_are_set_listed_and_dropped() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        assert await log.cursors() == []
        await log.set_cursor("tail", 9)
        await log.set_cursor("nightly", 3)
        c.lead(2)
        assert await log.cursors() == [("nightly", 3, 30, 1.5), ("tail", 9, 90, 1.5)]
        assert (await log.cursors())[0].lag_s == 1.5
        assert await log.drop_cursor("nightly") == 3
        with pytest.raises(alpo.Refused, match="no cursor nightly"):
            await log.drop_cursor("nightly")
        assert [cursor.name for cursor in await log.cursors()] == ["tail"]
