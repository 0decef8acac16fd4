"""`alpo.testing`, as its users use it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import alpo
from alpo.client.sync import SyncLog
from alpo.core.entries import Entry
from alpo.testing import Broken, Cluster, Stuck
from alpo.testing.logs import SimulatedLog

BACKENDS = ("asyncio", "trio")


def payloads(cluster: Cluster) -> list[bytes]:
    return [record.payload for record in cluster.log()]


# -- an outbox ----------------------------------------------------------------------------------------------


def publish(connect: Callable[..., SyncLog], rows: list[bytes]) -> None:
    """Append every row once: the row's number is its serial."""
    while True:
        try:
            with connect(client="outbox", timeout_s=0.5) as log:
                log.opened()
                for number, row in enumerate(rows, 1):
                    if number > log.last_serial:
                        log.append(row, serial=number)
                return
        except (alpo.NotGuaranteed, alpo.Unavailable):
            pass  # start again, as the process would


def publish_naively(connect: Callable[..., SyncLog], rows: list[bytes]) -> None:
    for row in rows:
        while True:
            try:
                with connect(timeout_s=0.5) as log:
                    log.append(row)
                break
            except (alpo.NotGuaranteed, alpo.Unavailable):
                pass  # it failed, so do it again


def outbox(seed: int, publisher: Callable[[Callable[..., SyncLog], list[bytes]], None], **how: Any) -> bool:
    """Publish rows while leaders are killed; True if every row is in the log once, in order."""
    with Cluster(seed, **how) as cluster:
        for at_s in (0.05, 1.5):
            cluster.after(at_s, lambda: cluster.kill_leader(back_after_s=1))
        rows = [b"row %d" % n for n in range(20)]
        publisher(cluster.connect_sync, rows)
        return payloads(cluster) == rows


@pytest.mark.parametrize("seed", range(20))
def test_exactly_once_over_leader_kills(seed: int) -> None:
    assert outbox(seed, publish)


@pytest.mark.parametrize("seed", range(5))
def test_exactly_once_with_five_servers_under_all_faults(seed: int) -> None:
    assert outbox(seed, publish, servers=5, faults=True, fault_every_s=1.0)


def test_who_repeats_what_failed_is_caught() -> None:
    assert not all(outbox(seed, publish_naively) for seed in range(8))


# -- under an event loop ------------------------------------------------------------------------------------


async def count(cluster: Cluster, name: str, times: int, careful: bool) -> None:
    """Add to a number that is the log's last payload; the careful one appends what it adds."""
    async with cluster.connect(client=name) as log:
        for _ in range(times):
            last = [int(record.payload) async for record in log.read(last=1)] or [0]
            await log.append(b"1" if careful else b"%d" % (last[0] + 1))


async def counted(cluster: Cluster, careful: bool) -> int:
    async with anyio.create_task_group() as tasks:
        for name in ("one", "two"):
            tasks.start_soon(count, cluster, name, 5, careful)
    numbers = [int(payload) for payload in payloads(cluster)]
    return sum(numbers) if careful else numbers[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_counter_that_loses_updates_is_caught(backend: str) -> None:
    for careful in (True, False):
        with Cluster(1) as cluster:
            total = anyio.run(counted, cluster, careful, backend=backend)
        assert (total == 10) is careful


async def chat(cluster: Cluster) -> list[tuple[int, bytes, float]]:
    """A follower sees what two writers append, over the end of a leader."""
    seen: list[tuple[int, bytes, float]] = []
    async with cluster.connect(client="a") as a, cluster.connect() as b, anyio.create_task_group() as tasks:

        async def follow() -> None:
            async with b.follow() as records:
                async for record in records:
                    seen.append((record.lsn, record.payload, cluster.now_s))
                    if len(seen) == 21:
                        return

        async def write(log: SimulatedLog, name: bytes) -> None:
            for n in range(10):
                await log.append(b"%s %d" % (name, n))

        tasks.start_soon(follow)
        cluster.after(0.02, cluster.kill_leader)
        await cluster.sleep(0.01)
        tasks.start_soon(write, a, b"a")
        tasks.start_soon(write, b, b"b")
        await cluster.sleep(5)
        await a.append(b"last")
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_followers_have_no_gap_and_no_repeat(backend: str) -> None:
    with Cluster(7) as cluster:
        seen = anyio.run(chat, cluster, backend=backend)
        assert [(lsn, payload) for lsn, payload, _ in seen] == [(r.lsn, r.payload) for r in cluster.log()]
        assert [lsn for lsn, _, _ in seen] == list(range(1, 22))


async def handles(cluster: Cluster) -> None:
    async with cluster.connect(client="fast") as log:
        told: list[object] = []
        many = [log.append_nowait(b"%d" % n) for n in range(50)]
        many[0].add_done_callback(told.append)
        assert not many[0].done
        assert [await handle for handle in many] == list(range(1, 51))
        assert told == many[:1]
        assert await log.append_batch([b"x", b"y"], serial=60) == range(51, 53)
        assert (await log.append(b"again", timeout_s=3), log.epoch) == (53, many[0].epoch)
        assert [r.lsn async for r in log.read(start=50, stop=52)] == [50, 51, 52]
        with pytest.raises(alpo.Skipped):
            await log.append_batch([b"z"], serial=55)
        assert {row["id"]: row["reachable"] for row in await log.status()} == {1: True, 2: True, 3: True}


async def called_back(cluster: Cluster) -> None:
    """A callback runs in the loop of the program, and may wake its tasks; also if the append has failed."""
    async with cluster.connect() as log:
        await log.append(b"x")
        for server in cluster.servers:
            cluster.crash(server)
        heard = anyio.Event()
        handle = log.append_nowait(b"y", timeout_s=2)
        handle.add_done_callback(lambda handle: heard.set())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cluster.sleep, 5)
            with log.clock.move_on_after(4) as scope:
                await heard.wait()
            assert not scope.cancel_called and handle.error is not None
            handle.add_done_callback(lambda handle: tasks.cancel_scope.cancel())
            assert tasks.cancel_scope.cancel_called


async def cancelled(cluster: Cluster) -> None:
    async with cluster.connect(client="cancels") as log:
        cluster.isolate(1)
        cluster.isolate(2)
        cluster.isolate(3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.append, b"never")
            await cluster.sleep(0.5)
            tasks.cancel_scope.cancel()
        cluster.heal()
        await log.append(b"later")


async def waits(cluster: Cluster) -> None:
    """A wait for a payload that never comes ends: by a timer of the event loop, or by `Stuck`."""
    async with cluster.connect() as log:
        with anyio.move_on_after(0.05) as scope:
            async for _ in log.follow():
                raise AssertionError
        assert scope.cancelled_caught
        cluster._engine.patience_us = 5_000_000  # type: ignore[union-attr]
        with pytest.raises(Stuck):
            async for _ in log.follow():
                raise AssertionError
        assert await log.append(b"goes on") == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [handles, called_back, cancelled, waits])
def test_the_async_twin(backend: str, program: Callable[[Cluster], Any]) -> None:
    with Cluster(2) as cluster:
        anyio.run(program, cluster, backend=backend)


@pytest.mark.anyio
@pytest.mark.alpo(seed=3)
async def test_under_anyios_own_plugin(alpo_cluster: Cluster) -> None:
    async with alpo_cluster.connect() as log:
        assert await log.append(b"x") == 1


@pytest.mark.alpo(seed=5)
def test_what_the_real_logs_offer(alpo_cluster: Cluster) -> None:
    log = alpo_cluster.connect_sync()
    assert (log.last(), log.end()) == (None, 1)
    assert [log.append_text("ä"), log.append_json({"a": [1]})] == [1, 2]
    last = log.last()
    assert last is not None and (last.json(), log.end()) == ({"a": [1]}, 3)
    stop = threading.Event()
    alpo_cluster.after(1, stop.set)
    assert [record.payload for record in log.follow(stop=stop)] == ["ä".encode(), b'{"a":[1]}']
    log.close()
    with pytest.raises(alpo.Closed):
        log.append(b"x")


@pytest.mark.anyio
@pytest.mark.alpo(seed=6)
async def test_what_the_real_logs_offer_async(alpo_cluster: Cluster) -> None:
    log = alpo_cluster.connect()
    handle = log.append_nowait(b"x")
    assert (await handle, handle.lsn, handle.done) == (1, 1, True)
    stop = anyio.Event()
    alpo_cluster.after(1, log._at_once, partial(log._log.append_nowait, b"y"))
    async for record in log.follow("end", stop=stop):
        assert record.payload == b"y"
        stop.set()
    await log.close()
    with pytest.raises(alpo.Closed):
        await log.append(b"x")


# -- what goes wrong ----------------------------------------------------------------------------------------


def test_a_twin_is_fenced() -> None:
    with Cluster(3) as cluster, cluster.connect_sync(client="billing") as one:
        one.append(b"1")
        with cluster.connect_sync(client="billing") as two:
            assert (two.last_serial, two.append(b"2")) == (1, 2)
            with pytest.raises(alpo.Fenced):
                one.append(b"3")
        assert payloads(cluster) == [b"1", b"2"]


def test_deadlines_are_in_virtual_time() -> None:
    with Cluster(4) as cluster, cluster.connect_sync(client="x", timeout_s=30) as log:
        log.append(b"a")
        for id in cluster.servers:
            if id != cluster.leader:
                cluster.crash(id)
        began_s = cluster.now_s
        with pytest.raises(alpo.NotGuaranteed) as unknown:
            log.append(b"b")
        assert 30 <= cluster.now_s - began_s < 31
        with pytest.raises(alpo.Unavailable):
            log.append(b"c", timeout_s=5)
        with pytest.raises(alpo.Unavailable):
            list(log.read(timeout_s=1))
        with pytest.raises(alpo.Unavailable):
            log.settle(timeout_s=1)
        cluster.heal()
        assert log.settle() == {unknown.value.serial: 2}
        assert payloads(cluster) == [b"a", b"b"]


def test_an_old_leader_serves_nothing_stale() -> None:
    with Cluster(5) as cluster, cluster.connect_sync(client="x") as log:
        log.append(b"a")
        old = cluster.leader
        assert old is not None
        cluster.isolate(old, clients=False)
        assert log.append(b"b") == 2
        assert cluster.leader != old
        assert [r.payload for r in log.read()] == [b"a", b"b"]
        assert [r.payload for r in log.read(local=True, server=old)] == [b"a"]


def test_pauses_and_cuts() -> None:
    with Cluster(6) as cluster, cluster.connect_sync(client="x") as log:
        log.append(b"a")
        first = cluster.leader
        assert first is not None
        cluster.pause(first)
        assert log.append(b"b") == 2
        assert cluster.leader != first
        cluster.resume(first)
        for id in cluster.servers:
            cluster.cut("x", id)
        with pytest.raises(alpo.NotGuaranteed):
            log.append(b"c", timeout_s=1)
        cluster.heal()
        assert list(log.settle().values()) == [3]
        cluster.crash(1)
        assert not cluster.up(1)
        cluster.restart(1)
        assert log.append(b"d") == 4
        told = [line.split("s  ")[1] for line in cluster.faults()]
        pauses, cuts = [f"pause {first}", f"resume {first}"], ["cut x 1", "cut x 2", "cut x 3"]
        assert told == [*pauses, *cuts, "heal", "crash 1", "restart 1"]


def test_one_server_and_plain_threads_api() -> None:
    with Cluster(servers=1) as cluster, cluster.connect_sync() as log:
        futures = [log.append_nowait(b"%d" % n) for n in range(5)]
        assert [future.result().lsn for future in futures] == [1, 2, 3, 4, 5]
        assert log.append_batch([b"x", b"y"]) == range(6, 8)
        records = log.follow(last=2)
        assert [next(records).payload for _ in range(2)] == [b"x", b"y"]
        with pytest.raises(alpo.TooLarge):
            log.append(bytes(2 << 20))
        with pytest.raises(alpo.OutOfRange):
            list(log.read(start=100))
        with pytest.raises(alpo.SerialExpected):
            log.append(b"z", serial=50)


def test_several_threads() -> None:
    with Cluster(1) as cluster:
        with cluster.connect_sync() as log:

            def append(name: str) -> None:
                for n in range(10):
                    log.append(f"{name} {n}".encode())

            threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(payloads(cluster)) == [b"%c %d" % (name, n) for name in b"abcd" for n in range(10)]


def test_nothing_waits_for_ever() -> None:
    with Cluster(patience_s=20) as cluster, cluster.connect_sync() as log:
        with pytest.raises(Stuck, match=r"20 s .*Cluster\(seed=0, patience_s=20\)"):
            next(log.follow())
        with pytest.raises(Stuck):
            cluster.until(lambda: False, timeout_s=3)
        assert log.append(b"goes on") == 1


def test_what_breaks_is_told_with_the_seed() -> None:
    def broken(log: list[Entry]) -> None:
        raise Broken("exactly once", "twice")

    with pytest.raises(Broken, match=r"exactly once: twice \[alpo.testing.Cluster\(seed=8\)\]"):
        with Cluster(8) as cluster:
            cluster._ledgers["default"].check = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError) as error:
        with Cluster(9, servers=5) as cluster:
            cluster.after(1, lambda: 1 // 0)
            cluster.advance(2)
    assert error.value.__notes__ == ["alpo.testing.Cluster(seed=9, servers=5)"]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="no such fault: meteor"):
        Cluster(faults=["meteor"])
    with pytest.raises(ValueError, match="1 to 9 servers"):
        Cluster(servers=10)
    with pytest.raises(RuntimeError, match="in a `with`"):
        Cluster().connect_sync()
    with Cluster() as cluster, pytest.raises(ValueError, match="no server 4, only 1, 2, 3"):
        cluster.crash(4)


# -- the same again -----------------------------------------------------------------------------------------


def trace(seed: int, backend: str) -> str:
    with Cluster(seed, faults=True, fault_every_s=0.5) as cluster:
        outcomes: list[object] = [anyio.run(chat, cluster, backend=backend)]
        with cluster.connect_sync() as log:
            for n in range(10):
                try:
                    outcomes.append((log.append(b"%d" % n, timeout_s=0.3), log.client))
                except alpo.AlpoError as error:
                    outcomes.append(str(error))
        outcomes += [cluster.log(), cluster.faults(), cluster.now_s]
    return hashlib.sha256(repr(outcomes).encode()).hexdigest()


def test_equal_seeds_are_equal_runs_in_every_process() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n" \
           "import test_sim_testing as t; print(t.trace(11, 'asyncio'))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert runs == [trace(11, "asyncio")] * 2
    assert trace(12, "asyncio") != runs[0]
