"""Clients leave servers room for others: without a leader they ask the less often the longer servers take to answer,
and what a program has left, or cancelled, or does a thousand times at once, takes few connections."""

from __future__ import annotations

import gc
import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio.testing
from fake_cluster import FakeCluster, fake_cluster, until

import alpo
from alpo.client import servers as servers_module
from alpo.client.connection import Connection, Lost
from alpo.client.operator import status as status_module
from alpo.client.servers import BUSY_TIMES, IDLE_MAX, PAUSE_BUSY_MAX_S, PAUSE_ELECTION_S, RESTING_MAX, Servers
from alpo.dialling import Way
from alpo.errors import Unavailable

ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


class Crowd:
    """Servers that each take a time of their own to refuse; ``asked_s``: the times at which they were asked."""

    def __init__(self, **takes_s: float) -> None:
        self.takes_s = dict(zip(ADDRESSES, takes_s.values(), strict=True))
        self.asked_s: list[float] = []
        self.servers = Servers(ADDRESSES, self._open)

    async def _open(self, address: str, cluster: bytes, timeout_s: float, way: Way, log: str) -> Connection:
        self.asked_s.append(anyio.current_time())
        await anyio.sleep(self.takes_s[address])
        raise Lost(Unavailable("it does not lead"))

    async def asked_within(self, seconds: float) -> int:
        """Number of times that servers are asked while a leader is sought for so many seconds."""
        with anyio.move_on_after(seconds):
            await self.servers.leader()
        return len(self.asked_s)


@pytest.mark.trio
async def test_servers_that_take_long_are_asked_less_often(autojump_clock: trio.testing.MockClock) -> None:
    quick = await Crowd(a=0.001, b=0.001, c=0.001).asked_within(2)
    slow = await Crowd(a=0.5, b=0.5, c=0.5).asked_within(6)
    assert quick > 20 * len(ADDRESSES)
    assert slow <= 5 * len(ADDRESSES)


@pytest.mark.trio
async def test_one_server_that_is_gone_delays_nobody(autojump_clock: trio.testing.MockClock) -> None:
    crowd = Crowd(a=0.001, b=1.0, c=0.001)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s < PAUSE_ELECTION_S
    crowd.takes_s = dict.fromkeys(ADDRESSES, 0.1)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s == pytest.approx(0.1 * BUSY_TIMES)
    crowd.takes_s = dict.fromkeys(ADDRESSES, 1.0)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s == PAUSE_BUSY_MAX_S


def filled(c: FakeCluster, page: int = 2, upto: int = 10) -> FakeCluster:
    """A log of some pages."""
    c.page_entries_max = page
    while c.last_lsn < upto:
        c.append("w", c.next_lsn, 0, 1, b"%d" % c.next_lsn)
    return c


READS: dict[str, Callable[[alpo.Log], Any]] = {
    "read": lambda log: log.read(), "batches": lambda log: log.read_batches(),
    "local": lambda log: log.read(local=True), "follow": lambda log: log.follow(1),
    "follow_batches": lambda log: log.follow_batches(1),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", READS)
async def test_a_read_that_is_left_holds_no_connection(name: str) -> None:
    async with fake_cluster(1) as c, alpo.connect(filled(c).addresses) as log:
        for _ in range(20):
            async for _record in READS[name](log):
                break
        gc.collect()
        assert len(log._servers._open) <= IDLE_MAX and not log._servers._lent
        assert [r.lsn async for r in log.read()] == [*range(1, 11)]


@pytest.mark.anyio
async def test_one_that_was_read_to_its_end_gives_its_connection_back_at_once() -> None:
    async with fake_cluster(1) as c, alpo.connect(filled(c, page=10).addresses) as log:
        kept = [log.read() for _ in range(20)]
        for records in kept:
            await anext(records)
        assert c.servers[1].connections == 1
        assert [[r.lsn async for r in records] for records in kept] == [[*range(2, 11)]] * 20


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["read", "follow"])
async def test_those_that_were_left_and_are_kept_go_on_where_they_were(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "LEFT_S", 0.0)
    async with fake_cluster(1) as c, alpo.connect(filled(c).addresses) as log:
        kept = [READS[name](log) for _ in range(3 * RESTING_MAX)]
        for records in kept:
            assert (await anext(records)).lsn == 1
        assert len(log._servers._open) <= RESTING_MAX + IDLE_MAX
        for records in kept:
            assert [(await anext(records)).lsn for _ in range(9)] == [*range(2, 11)]
        assert len(log._servers._lent) <= RESTING_MAX + 1


@pytest.mark.anyio
async def test_a_reader_that_is_collected_in_another_thread_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "CONNECTIONS_MAX", 1)
    async with fake_cluster(1) as c, alpo.connect(filled(c).addresses) as log:
        kept = [log.read()]
        await anext(kept[0])
        log._servers._resting.clear()  # the reader now counts as waiting for a page
        ends: list[int] = []
        async with anyio.create_task_group() as tasks:
            async def ask() -> None:
                ends.append(await log.end())

            tasks.start_soon(ask)
            await until(lambda: log._servers.crowded)
            await anyio.to_thread.run_sync(kept.clear)
        assert ends == [11]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["follow", "read", "sessions", "status", "events"])
async def test_many_at_once_wait_for_their_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "CONNECTIONS_MAX", 4)
    most, done = 0, 0

    async def work() -> None:
        nonlocal most, done
        if name in READS:
            lsn = 0
            async for record in READS[name](log):
                lsn += 1
                assert record.lsn == lsn
                most = max(most, len(log._servers._open))
                if lsn == 10:
                    break
            assert lsn == 10
        else:
            call: Callable[[], Awaitable[object]] = getattr(log, name)
            await call()
        most, done = max(most, len(log._servers._lent)), done + 1

    async with fake_cluster(1) as c, alpo.connect(filled(c).addresses, timeout_s=60) as log:
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(work)
        assert done == 30 and most <= 4 + IDLE_MAX
        assert not log._servers._lent and not log._servers._turns


@pytest.mark.anyio
async def test_whose_turn_does_not_come_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "CONNECTIONS_MAX", 1)
    async with fake_cluster(1) as c, alpo.connect(filled(c).addresses, timeout_s=60) as log:
        await log.end()
        async with anyio.create_task_group() as tasks:
            c.servers[1].frozen = True
            tasks.start_soon(log.sessions)
            await until(lambda: log._servers._lent)
            for call in (log.last, log.cursors):
                with pytest.raises(alpo.Overloaded, match="all 1 connections of this log are in use"):
                    await call(timeout_s=0.05)
            assert len(log._servers._lent) == 1 and not log._servers._turns
            c.servers[1].frozen = False
        assert await log.end() == 11
        await log.append(b"x")


@pytest.mark.anyio
async def test_what_is_cancelled_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_cluster(2) as c, alpo.connect(filled(c).addresses, timeout_s=60) as log:
        await log.end()
        for server in c.servers.values():
            server.frozen = True
        calls: list[Callable[[], Awaitable[object]]] = [
            log.status, log.events, log.sessions, log.last, lambda: anext(log.follow(1)), lambda: anext(log.read()),
        ]
        for call in calls:
            for seconds in (0.0, 0.02):
                with anyio.move_on_after(seconds):
                    await call()
        assert len(log._servers._open) <= IDLE_MAX and not log._servers._lent and not log._servers._turns
        for server in c.servers.values():
            server.frozen = False
        waits = anyio.Event()

        async def never(*given: object) -> None:
            waits.set()
            await anyio.sleep_forever()

        monkeypatch.setattr(status_module, "account", never)
        monkeypatch.setattr(status_module, "_read_events", never)
        for call in (log.status, log.events):
            async with anyio.create_task_group() as tasks:
                waits = anyio.Event()
                tasks.start_soon(call)
                await waits.wait()
                tasks.cancel_scope.cancel()
        assert not log._servers._lent
        assert [r.lsn async for r in log.read()] == [*range(1, 11)]


@pytest.mark.anyio
async def test_a_quick_reader_gives_its_turn_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "CONNECTIONS_MAX", 1)
    ends: list[tuple[int, int]] = []
    async with fake_cluster(1) as c, alpo.connect(filled(c, page=1, upto=100).addresses, timeout_s=60) as log:
        lsn = 0

        async def ask() -> None:
            ends.append((lsn, await log.end()))

        async with anyio.create_task_group() as tasks:
            async for record in log.read():
                if not lsn:
                    tasks.start_soon(ask)
                lsn = record.lsn
                if ends:
                    break
    assert ends == [(1, 101)] and lsn < 100


@pytest.mark.anyio
async def test_closing_ends_the_wait_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "CONNECTIONS_MAX", 1)
    ended: list[type[BaseException]] = []
    async with fake_cluster(1) as c:
        log = alpo.connect(filled(c).addresses, timeout_s=math.inf)
        await log.end()
        c.servers[1].frozen = True

        async def ask() -> None:
            try:
                await log.end()
            except alpo.AlpoError as error:
                ended.append(type(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
            await until(lambda: len(log._servers._turns) == 2)
            await log.close()
        assert ended == [alpo.Closed] * 3
