"""Snapshots of wrong machines: none that its own process can find to be wrong is ended; where two sides differ, both
stop before harm is done, the log is kept, and an operator's word lets the right side go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from journal import fresh, journal
from rsm_kit import Ledger, command, first_of, new_log, run, with_replicas
from snapshot_rig import small_payloads

from alpo.errors import AlpoError, Unavailable
from alpo.rsm import At, Diverged, Replica, SnapshotInfo, loading, set_aside
from alpo.rsm.hosted import PAYLOADS
from alpo.rsm.payloads import End
from alpo.testing import Cluster

AGREED = "machine-agreed"


class Wrong(Ledger):
    """A ledger that keeps a cent of each "open" after the first ``right`` ones: alike in all its processes."""

    right = 1

    def apply(self, command: bytes, at: At) -> object:
        answer = super().apply(command, at)
        if self.accounts.get("x", 0) > 10 * self.right and command.startswith(b'["open"'):
            self.accounts["x"] -= 1
        return answer


class Mended(Wrong):
    """A ledger of the same program without the defect."""

    right = 1 << 60


def ends_in(cluster: Cluster) -> list[int]:
    """LSN of the ends of snapshots."""
    return [record.lsn for record in cluster.log() if isinstance(PAYLOADS.snapshot_message(record.payload), End)]


async def cursors_of(replica: Replica[Any]) -> dict[str, int]:
    return {cursor.name: cursor.lsn for cursor in await replica.log.cursors()}


async def opened(a: Replica[Any], times: int) -> None:
    for _ in range(times):
        await a.run(command("open", "x", 10))


async def total_of(a: Replica[Any]) -> int:
    total: int = await a.read(lambda machine: machine.total)
    return total


async def decided(a: Replica[Any], end_lsn: int, undo: bool = False) -> int:
    return await set_aside(a.log, end_lsn, undo=undo)


# -- proof before the end ------------------------------------------------------------------------------------


class Drawn(Ledger):
    """A ledger that draws lots."""

    def apply(self, command: bytes, at: At) -> object:
        self.accounts["drawn"] = random.randrange(1 << 60)
        return super().apply(command, at)


def test_no_snapshot_is_ended_that_the_log_does_not_give() -> None:
    """The next one of right machines is."""
    async def drawn(a: Replica[Drawn]) -> None:
        await opened(a, 1)
        with pytest.raises(Diverged, match="what the log gives if it is folded once more from LSN 1 on"):
            await a.snapshot()
        await stopped(a)

    async def right(a: Replica[Ledger], b: Replica[Ledger]) -> None:
        await a.log.clock.sleep(31)  # the grant lapses
        await opened(a, 1)
        await b.snapshot(trim=True)
        assert await total_of(a) == 20

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, drawn, Drawn)
        assert not ends_in(cluster)
        with_replicas(cluster, right, number=2)
        assert len(ends_in(cluster)) == 1


class Short(Ledger):
    """A ledger for which memory is ``short`` now and then: of a machine of its own, or of its items."""

    short = ""

    def apply(self, command: bytes, at: At) -> object:
        if Short.short == "apply":
            raise MemoryError
        return super().apply(command, at)

    def items(self) -> Iterator[bytes]:
        if Short.short == "items":
            raise MemoryError
        return super().items()


def test_short_memory_ends_a_snapshot_and_not_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(a: Replica[Short], b: Replica[Ledger]) -> None:
        await opened(a, 1)
        for short in ("apply", "items"):
            monkeypatch.setattr(Short, "short", short)
            with pytest.raises(Unavailable, match="memory was short while the snapshot of LSN"):
                await a.snapshot()
            monkeypatch.setattr(Short, "short", "")
            assert not ends_in(cluster)
            await a.log.clock.sleep(31)  # the grant lapses
        async with new_log(cluster) as log, Replica(log, Short, name="ledger") as c:  # proves what others have written
            await total_of(c)
            monkeypatch.setattr(Short, "short", "apply")
            info = await b.snapshot()
            await a.log.clock.sleep(150)
            assert await cursors_of(a) == {"machine": 1}
            monkeypatch.setattr(Short, "short", "")
            await a.log.clock.sleep(150)
            assert await cursors_of(a) == {"machine": info.begin}
            assert await total_of(c) == 10

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Short, Ledger)


async def unproved(*given: Any) -> None: ...


class Started(Ledger):
    """A ledger that draws lots once, when it begins."""

    def __init__(self, accounts: dict[str, int] | None = None) -> None:
        super().__init__({"drawn": random.randrange(1 << 60)} if accounts is None else accounts)


def test_nothing_is_trimmed_behind_what_nobody_has_proved() -> None:
    """A snapshot that was ended without a proof is proved before the next one lets anything go."""
    async def work(a: Replica[Started]) -> None:
        await opened(a, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("alpo.rsm.snapshots.prove", unproved)
            await a.snapshot()
        await opened(a, 1)
        with pytest.raises(Diverged, match="if it is folded once more from LSN 1 on"):
            await a.snapshot(trim=True)
        assert await cursors_of(a) == {"machine": 1}

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Started)


def test_a_slow_proof_keeps_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose proof takes minutes is not taken over, and its snapshot is whole."""
    tried: list[float] = []

    async def slowly(kind: Any, log: Any, lsn: int, digest: bytes, since: int, pause: Any) -> None:
        for _ in range(20):
            await log.clock.sleep(9.0)
            await pause()
        await loading.prove(kind, log, lsn, digest, since, pause)

    async def go() -> SnapshotInfo:
        async with new_log(cluster) as log, new_log(cluster, "another") as others:
            async with journal(log) as a, journal(others) as b:
                for number in range(30):
                    await a.run(b"%d".ljust(1000) % number)

                async def beside() -> None:
                    for _ in range(5):
                        await log.clock.sleep(31)
                        with pytest.raises(AlpoError, match="another process is writing a snapshot"):
                            await b.snapshot()
                        tried.append(log.clock.now_s())

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(beside)
                    return await a.snapshot(trim=True)
        raise AssertionError("never")

    monkeypatch.setattr("alpo.rsm.snapshots.prove", slowly)
    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        info = run(cluster, go)
        assert ends_in(cluster) == [info.end]
        assert len(tried) == 5
        assert fresh(cluster).snapshot is not None


# -- two sides -------------------------------------------------------------------------------------------------


def test_whoever_differs_keeps_the_log_from_where_it_agreed() -> None:
    """However long the wrong side goes on with snapshots and trims, the right side finds its own beginning."""
    async def both(wrong: Replica[Wrong], right: Replica[Ledger]) -> list[SnapshotInfo]:
        await opened(wrong, 1)
        infos = [await wrong.snapshot(trim=True)]
        await opened(wrong, 3)
        infos.append(await wrong.snapshot(trim=True))
        agreed = f"they agreed as of LSN {infos[0].begin}, and the log is kept from there on by the cursor {AGREED}"
        with pytest.raises(Diverged, match=f"ended at LSN {infos[1].end}; {agreed}"):
            await total_of(right)
        assert (await cursors_of(wrong)).get(AGREED) == infos[0].begin
        await opened(wrong, 3)
        infos.append(await wrong.snapshot())
        with pytest.raises(AlpoError, match=AGREED):
            await wrong.snapshot(trim=True)
        return infos

    with Cluster(seed=1) as cluster:
        infos = with_replicas(cluster, both, Wrong, Ledger)
        assert first_of(cluster) <= infos[0].begin
        with_replicas(cluster, stopped, Ledger)  # and again
        for end_lsn in ends_in(cluster)[1:]:
            with_replicas(cluster, lambda a, end=end_lsn: decided(a, end), Mended)
        assert with_replicas(cluster, total_of, Mended) == 70
        assert with_replicas(cluster, total_of, Ledger) == 70


async def stopped(a: Replica[Any]) -> None:
    with pytest.raises(Diverged):
        await a.read(lambda machine: machine.total)


def test_a_process_that_alone_is_damaged_keeps_nothing() -> None:
    """The log gives the others' snapshot, and nothing but a new start is needed."""
    async def work(a: Replica[Ledger], b: Replica[Ledger]) -> None:
        await opened(a, 3)
        await total_of(b)
        b.machine.accounts["x"] ^= 4  # a bit of its memory
        info = await a.snapshot()
        with pytest.raises(Diverged, match=rf"ended at LSN {info.end}.* gives that snapshot: start this process again"):
            await total_of(b)
        assert AGREED not in await cursors_of(a)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, number=2)
        assert with_replicas(cluster, total_of) == 30


def test_the_right_side_goes_on_once_wrong_snapshots_are_set_aside(tmp_path: Path) -> None:
    """The right side also writes the next snapshots, from which newcomers begin; the wrong one stops, and starts with
    the mended code, whatever its cache holds."""
    cache = tmp_path / "cache"

    async def wrong_alone(a: Replica[Wrong]) -> int:
        await opened(a, 1)
        await a.snapshot(trim=True)
        await opened(a, 3)
        return (await a.snapshot()).end

    async def wrong_goes_on(a: Replica[Wrong], right: Replica[Ledger]) -> None:
        await stopped(right)
        await set_aside(a.log, end_lsn)
        with pytest.raises(Diverged, match=rf"ended at LSN {end_lsn}, which was set aside as wrong"):
            await opened(a, 3)

    async def go_on(a: Replica[Ledger], b: Replica[Mended]) -> None:
        total = await total_of(a)
        assert total == await total_of(b)
        await opened(a, 2)
        info = await b.snapshot()
        assert info.begin > end_lsn
        assert await total_of(a) == total + 20
        await a.log.drop_cursor(AGREED)
        await a.snapshot(trim=True)
        assert (await cursors_of(a)).keys() == {"machine"}

    with Cluster(seed=1) as cluster:
        end_lsn = with_replicas(cluster, wrong_alone, Wrong, cache=cache)
        assert cache.exists()
        with_replicas(cluster, wrong_goes_on, Wrong, Ledger)
        assert with_replicas(cluster, total_of, Mended, cache=cache) % 10 == 0
        with_replicas(cluster, stopped, Wrong)
        with_replicas(cluster, go_on, Ledger, Mended)
        assert with_replicas(cluster, total_of, Mended) % 10 == 0


def test_one_release_was_wrong_everywhere() -> None:
    """The mended code begins before the snapshots that are set aside, though nobody had differed from them."""
    async def wrong_alone(a: Replica[Wrong]) -> list[int]:
        await opened(a, 1)
        await a.snapshot(trim=True)
        ends = []
        for trim in (True, False):
            await opened(a, 3)
            ends.append((await a.snapshot(trim=trim)).end)
        await set_aside(a.log, ends[1])
        await stopped(a)
        return ends

    async def mended(a: Replica[Mended]) -> None:
        await total_of(a)
        told = [answer async for _, answer in some(a.answers(6), 6)]
        assert told == [10 * number for number in range(2, 8)]
        await opened(a, 1)
        assert (await a.snapshot(trim=True)).begin > (await cursors_of(a))[AGREED]

    with Cluster(seed=1) as cluster:
        ends = with_replicas(cluster, wrong_alone, Wrong)
        with_replicas(cluster, lambda a: decided(a, ends[0]), Mended)
        with_replicas(cluster, mended, Mended)


def test_the_cursor_is_dropped_too_early() -> None:
    """A newcomer that began with what was set aside stops, and lets the next one begin before."""
    async def wrong_alone(a: Replica[Wrong]) -> None:
        await opened(a, 1)
        await a.snapshot(trim=True)
        await opened(a, 3)
        await set_aside(a.log, (await a.snapshot(trim=True)).end)
        await stopped(a)
        await a.log.drop_cursor(AGREED)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, wrong_alone, Wrong)
        with_replicas(cluster, stopped, Mended)
        assert with_replicas(cluster, total_of, Mended) == 40


async def some(answers: Any, number: int) -> Any:
    """Give the first ones."""
    async for each in answers:
        yield each
        number -= 1
        if not number:
            return


def test_the_wrong_side_stops_whatever_it_has_written_since() -> None:
    async def work(a: Replica[Wrong], b: Replica[Wrong]) -> None:
        await opened(a, 1)
        await a.snapshot(trim=True)
        ends = []
        for _ in range(4):
            await opened(a, 2)
            ends.append((await a.snapshot()).end)
        await total_of(b)
        await set_aside(a.log, ends[0])
        await stopped(a)
        await stopped(b)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Wrong, Wrong)


def test_one_that_has_failed_keeps_nothing_of_others() -> None:
    """A process that its own proof has stopped, and that is not left, is no side."""
    async def work(a: Replica[Drawn], b: Replica[Ledger]) -> None:
        await opened(b, 1)
        await total_of(a)
        with pytest.raises(Diverged):
            await a.snapshot()
        await b.log.clock.sleep(31)
        await opened(b, 1)
        assert (await b.snapshot(trim=True)).end
        await b.log.clock.sleep(5)
        assert (await cursors_of(b)).keys() == {"machine"}

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Drawn, Ledger)


def test_a_cache_is_not_kept_by_one_that_differs(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    async def damaged(a: Replica[Ledger]) -> None:
        await opened(a, 3)
        a.machine.accounts["x"] ^= 4

    async def right(a: Replica[Ledger]) -> None:
        await opened(a, 1)
        await a.snapshot()

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, damaged, cache=cache)
        with_replicas(cluster, right)
        with_replicas(cluster, stopped, cache=cache)
        assert not cache.exists()
        assert with_replicas(cluster, total_of, cache=cache) == 40


def test_a_decision_is_taken_back() -> None:
    """The last word counts, for those that run and those that start."""
    async def both(a: Replica[Wrong], b: Replica[Wrong]) -> int:
        await opened(a, 1)
        await a.snapshot(trim=True)
        await opened(a, 3)
        end_lsn = (await a.snapshot()).end
        await total_of(b)
        await set_aside(a.log, end_lsn)
        await stopped(b)
        return end_lsn

    with Cluster(seed=1) as cluster:
        end_lsn = with_replicas(cluster, both, Wrong, Wrong)
        with_replicas(cluster, stopped, Wrong)
        assert with_replicas(cluster, total_of, Ledger) == 40  # it goes on, by the decision

        async def undone(right: Replica[Ledger]) -> None:
            await total_of(right)
            await set_aside(right.log, end_lsn, undo=True)
            await stopped(right)

        with_replicas(cluster, undone, Ledger)
        assert with_replicas(cluster, total_of, Wrong) == 37
        with_replicas(cluster, stopped, Ledger)


def test_what_all_rests_on_is_not_set_aside() -> None:
    async def work(a: Replica[Ledger]) -> None:
        await opened(a, 3)
        infos = [await a.snapshot(trim=True) for _ in range(2)]
        await a.log.trim(infos[1].begin, force=True)
        with pytest.raises(ValueError, match="nobody could tell the machine"):
            await set_aside(a.log, infos[1].end)
        assert AGREED not in await cursors_of(a)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work)


def test_a_decision_that_comes_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator decides while the right side still folds anew."""
    async def work(a: Replica[Wrong], b: Replica[Ledger]) -> None:
        gives = b._gives

        async def slowly(*given: Any) -> bool:
            await set_aside(a.log, ends[0])
            return await gives(*given)

        monkeypatch.setattr(b, "_gives", slowly)
        await opened(a, 3)
        ends = [(await a.snapshot()).end]
        assert await total_of(b) == 30

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Wrong, Ledger)


@pytest.mark.parametrize("lsn", [1, 2, 99, None, 0, True])
def test_only_what_ends_a_snapshot_is_set_aside(lsn: Any) -> None:
    async def work(a: Replica[Ledger]) -> None:
        await opened(a, 1)
        with pytest.raises(ValueError, match=rf"no snapshot of a machine ended at LSN {lsn}|an LSN, not at {lsn}"):
            await set_aside(a.log, lsn)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work)
