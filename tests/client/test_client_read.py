"""Reading through a fake cluster, under trio and asyncio."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from fake_cluster import FakeCluster, fake_cluster, until

import alpo
from alpo.client.servers import Servers
from alpo.dialling import Way

pytestmark = pytest.mark.anyio


def fill(c: FakeCluster, upto: int) -> None:
    while c.last_lsn < upto:
        c.append("w", c.next_lsn, 0, 1, b"%d" % c.next_lsn)


def fill_pages(c: FakeCluster, upto: int) -> list[int]:
    """Pages of ten, and a list for the LSNs that are seen."""
    fill(c, upto)
    c.page_entries_max = 10
    return []


def fill_batches(c: FakeCluster, batches: int, size: int) -> None:
    from alpo.core.entries import join_payloads

    for _ in range(batches):
        parts = [b"%d" % (c.next_lsn + n) for n in range(size)]
        c.append("b", c.next_lsn, 0, size, join_payloads(parts))


async def test_records() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"a")
        await log.append_batch([b"b", b"c"])
        records = [record async for record in log.read()]
    assert [(r.lsn, r.id, r.payload) for r in records] == [(1, 1, b"a"), (2, 2, b"b"), (3, 2, b"c")]
    first = records[0]
    assert (first.term, first.client, first.serial) == (1, log.client, 1)
    assert first.time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=c.time_ms)


async def test_empty_log_and_one_past_the_end() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert [r async for r in log.read()] == []
        fill(c, 3)
        assert [r async for r in log.read(start=4)] == []
        with pytest.raises(alpo.OutOfRange) as caught:
            [r async for r in log.read(start=5)]
        assert (caught.value.first_lsn, caught.value.last_lsn) == (1, 3)


@pytest.mark.parametrize(("start", "stop", "lsns"), [
    (None, None, range(1, 25)), (5, 5, range(5, 6)), (7, 18, range(7, 19)), (20, 90, range(20, 25)), (9, 8, range(0)),
])
async def test_ends_are_inclusive_and_cut_batches(start: int | None, stop: int | None, lsns: range) -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill_batches(c, 8, 3)
        c.page_entries_max = 2
        records = [r async for r in log.read(start, stop)]
        assert [(r.lsn, r.payload) for r in records] == [(n, b"%d" % n) for n in lsns]


async def test_last_and_client() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill_batches(c, 4, 3)
        fill(c, 20)
        fill_batches(c, 2, 3)
        c.page_entries_max = 3
        assert [r.lsn async for r in log.read(last=4)] == [23, 24, 25, 26]
        assert [r.lsn async for r in log.read(last=4, client="w")] == []
        assert [r.lsn async for r in log.read(last=8, client="b")] == [21, 22, 23, 24, 25, 26]
        assert [r.lsn async for r in log.read(client="b", start=11)] == [11, 12, *range(21, 27)]


async def test_wrong_arguments() -> None:
    log = alpo.connect("127.0.0.1:1")
    wrongs: list[dict[str, Any]] = [
        {"start": 0}, {"last": 0}, {"start": 1, "last": 1}, {"stop": 1, "last": 1}, {"server": 1},
        {"since": datetime(2020, 1, 1)},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            log.read(**wrong)


async def test_the_end_is_fixed_by_the_first_page() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        seen = fill_pages(c, 50)
        async for record in log.read():
            seen.append(record.lsn)
            fill(c, c.last_lsn + 1)
        assert seen == list(range(1, 51))
        assert [ask.linearizable for _, ask in c.reads] == [True] + [False] * 4


async def test_a_read_goes_on_at_another_server() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        seen = fill_pages(c, 50)
        async for record in log.read():
            seen.append(record.lsn)
            if record.lsn == 15:
                c.servers[1].kill()
                c.lead(0)
        assert seen == list(range(1, 51))


async def test_a_server_that_is_behind_is_left() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        seen = fill_pages(c, 30)
        async for record in log.read():
            seen.append(record.lsn)
            if record.lsn == 5:
                c.servers[1].kill()
                c.servers[2].local_lsn = 12
        assert seen == list(range(1, 31))


class Patient(Servers):
    """Dials for ever: whoever waits for a frozen server first never comes to the next."""

    def way(self, address: str) -> Way:
        return Way(address)


@pytest.mark.parametrize("known", [{1, 2, 3}, {1, 3}], ids=["listed", "told by another"])
async def test_nobody_waits_for_a_frozen_server_that_he_does_not_need(known: set[int]) -> None:
    async with fake_cluster() as c:
        c.servers[1].frozen = True
        for wanted in (2, None):
            servers = Patient([c.servers[id].address for id in sorted(known)])
            with anyio.fail_after(30):
                connection = await servers.any(wanted)
            assert connection.hello.id in ({2} if wanted else {2, 3})
            servers.close()


async def test_who_is_avoided_is_asked_last() -> None:
    async with fake_cluster() as c:
        servers = Servers([server.address for server in c.servers.values()])
        for id in (1, 3):
            c.servers[id].kill()
        connection = await servers.any(None, avoid=c.servers[2].address)
        assert connection.hello.id == 2
        servers.close()


async def test_why_nobody_answered_a_read_is_said() -> None:
    async with fake_cluster(1) as c, alpo.connect(c.addresses, timeout_s=0.3) as log:
        for options, why in (({}, "knows no leader"), ({"local": True, "server": 9}, "no server 9")):
            c.lead(0)
            with pytest.raises(alpo.Unavailable, match=why):
                [r async for r in log.read(**options)]  # type: ignore[arg-type]
        c.lead(1)
        assert [r async for r in log.read()] == []
        c.servers[1].frozen = True
        with pytest.raises(alpo.Unavailable, match=f"{c.addresses}( does not answer|: connected, but no hello within)"):
            [r async for r in log.read()]
        with pytest.raises(alpo.Unavailable, match=f"{c.addresses}( does not answer|: connected, but no hello within)"):
            [r async for r in log.read(local=True, server=1, timeout_s=1.5)]
        c.servers[1].kill()
        for local in (False, True):
            with pytest.raises(alpo.Unavailable, match=f"{c.addresses}: connection refused"):
                [r async for r in log.read(local=local)]


async def test_unavailable_midway() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, timeout_s=0.3) as log:
        fill(c, 50)
        c.page_entries_max = 10
        with pytest.raises(alpo.Unavailable):
            async for record in log.read():
                if record.lsn == 10:
                    for server in c.servers.values():
                        server.kill()
        c.lead(0)
        with pytest.raises(alpo.Unavailable):
            [r async for r in log.read()]


async def test_linearizable_reads_follow_the_leader() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 1)
        assert len([r async for r in log.read()]) == 1
        c.lead(3)
        assert len([r async for r in log.read()]) == 1
        assert {server for server, ask in c.reads if ask.linearizable} == {1, 3}


async def test_local_reads() -> None:
    async with fake_cluster() as c:
        c.lead(0)
        fill(c, 10)
        c.servers[2].local_lsn = 4
        async with alpo.connect(c.servers[1].address) as log:
            assert [r.lsn async for r in log.read(local=True, server=2)] == [1, 2, 3, 4]
            assert len([r async for r in log.read(local=True, server=1)]) == 10
            assert len([r async for r in log.read(local=True)]) in (4, 10)
            with pytest.raises(alpo.Unavailable, match="no server 9"):
                [r async for r in log.read(local=True, server=9, timeout_s=0.1)]
        assert not any(ask.linearizable for _, ask in c.reads)


async def test_follow_waits_for_more() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log, anyio.create_task_group() as tasks:
        seen: list[int] = []

        async def follow() -> None:
            async for record in log.follow():
                seen.append(record.lsn)

        tasks.start_soon(follow)
        for upto in (1, 5, 40):
            fill(c, upto)
            await until(lambda: seen == list(range(1, upto + 1)))
        tasks.cancel_scope.cancel()


async def test_follow_survives_failovers_without_gap_or_repeat() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log, anyio.create_task_group() as tasks:
        seen: list[int] = []

        async def follow() -> None:
            async for record in log.follow(start=3):
                seen.append(record.lsn)

        fill(c, 10)
        tasks.start_soon(follow)
        leader = 1
        for upto in range(20, 100, 10):
            await until(lambda: seen == list(range(3, upto - 9)))
            after = leader % 3 + 1
            c.lead(after)
            c.servers[leader].kill()
            fill(c, upto)
            await until(lambda: seen == list(range(3, upto + 1)))
            await c.servers[leader].revive()
            leader = after
        tasks.cancel_scope.cancel()


async def test_a_follower_leaves_a_leader_that_is_none_any_more() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log, anyio.create_task_group() as tasks:
        seen: list[int] = []

        async def follow() -> None:
            async for record in log.follow():
                seen.append(record.lsn)

        fill(c, 3)
        tasks.start_soon(follow)
        await until(lambda: len(seen) == 3)
        c.servers[1].local_lsn = 3
        c.lead(2)
        fill(c, 6)
        await until(lambda: seen == [1, 2, 3, 4, 5, 6])
        tasks.cancel_scope.cancel()


async def test_follow_is_told_what_was_trimmed() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        fill(c, 10)
        c.first_lsn = 5
        with pytest.raises(alpo.OutOfRange) as caught:
            async for _ in log.follow(start=3):
                pass
        assert (caught.value.first_lsn, caught.value.last_lsn) == (5, 10)


async def test_leaving_early_and_reusing_connections() -> None:
    async with fake_cluster() as c, alpo.connect(c.servers[1].address) as log:
        fill(c, 100)
        c.page_entries_max = 10
        for _ in range(5):
            assert [r.lsn async for r in log.read(last=1)] == [100]
        assert c.servers[1].connections == 1
        async with log.read() as records:
            async for record in records:
                if record.lsn == 3:
                    break
        assert [r.lsn async for r in log.read(last=1)] == [100]


async def test_a_closed_log_asks_nobody() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, timeout_s=60) as log:
            await log.append(b"a")
            following, reading = log.follow(), log.read()
            assert (await anext(following)).payload == b"a"
        connections = sum(server.connections for server in c.servers.values())
        with pytest.raises(StopAsyncIteration):  # a follower's normal end
            await anext(following)
        with pytest.raises(alpo.Closed, match="closed"):
            await anext(reading)
        for call in (log.status, log.sessions, log.init, log.last, log.settle, log.wait_room, log.opened):
            with pytest.raises(alpo.Closed, match="closed"):
                await call()
        for begin in (log.read, log.follow, log.read_batches, log.follow_batches):
            with pytest.raises(alpo.Closed, match="closed"):
                begin()
        assert sum(server.connections for server in c.servers.values()) == connections
