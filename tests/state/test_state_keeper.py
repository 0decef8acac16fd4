"""Snapshots and trims that processes make by themselves: when they are due, by one of them, and never too much."""

from __future__ import annotations

import anyio
import pytest
from rsm_kit import first_of, new_log
from snapshot_rig import check_trims, cursor_of, fill, fresh, small_payloads, truth, with_state, with_states

from alpo.errors import Unavailable
from alpo.rsm import snapshots
from alpo.state import State, codec
from alpo.state.codec import Limits
from alpo.testing import Cluster

HOUR = 3600


def kinds(cluster: Cluster, kind: type) -> list[int]:
    """LSNs of all payloads of this kind."""
    return [record.lsn for record in cluster.log() if isinstance(codec.decode(record.payload), kind)]


def held_bytes(cluster: Cluster) -> int:
    """Bytes of all payloads that the log still serves."""
    first = first_of(cluster)
    return sum(len(record.payload) for record in cluster.log() if record.lsn >= first)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are due after few bytes."""
    monkeypatch.setattr(snapshots, "DUE_BYTES", 40_000)


def test_several_processes_keep_the_log_short() -> None:
    async def work(states: list[State]) -> int:
        most = 0
        for i in range(400):
            await states[i % 3].put(f"name/{i % 7}", b"v" * 2000)
            await anyio.sleep(0.5)
            first = await states[0].log.trim(1)
            most = max(most, states[0].lsn - first)
        return most

    with Cluster(seed=1, servers=1) as cluster:
        small_payloads(cluster)
        most = with_states(cluster, 3, work, snapshots="auto")
        begins, ends = kinds(cluster, codec.Begin), kinds(cluster, codec.End)
        assert len(ends) >= 10 and len(begins) <= len(ends) + 4
        # two intervals, each 20 values and up to 5 s and a snapshot more
        assert most < 120
        assert cursor_of(cluster) == truth(cluster).snapshot[0]  # type: ignore[index]
        check_trims(cluster)
        fresh(cluster)


def test_a_large_snapshot_does_not_make_the_next_one_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short variables take more bytes in a snapshot than they count for."""
    monkeypatch.setattr(snapshots, "DUE_BYTES", 20_000)

    async def work(state: State) -> None:
        async with anyio.create_task_group() as tasks:
            for i in range(1500):
                tasks.start_soon(state.put, f"{i}", b"1")
        await anyio.sleep(60)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, snapshots="auto")
        right = truth(cluster)
        assert right.bytes < 10_000 and len(kinds(cluster, codec.End)) in (1, 2)
        assert sum(len(r.payload) for r in cluster.log() if isinstance(codec.decode(r.payload), codec.Part)) > 25_000


def test_off_writes_none() -> None:
    async def work(state: State) -> None:
        await fill(state, 50, 2000)
        await anyio.sleep(200)

    with Cluster(seed=1, servers=1, patience_s=2 * HOUR) as cluster:
        with_state(cluster, work, snapshots="off")
        assert kinds(cluster, codec.Begin) == [] and first_of(cluster) == 1


def test_snapshots_is_auto_or_off() -> None:
    with Cluster(seed=1, servers=1) as cluster, pytest.raises(ValueError, match="auto"):
        State(new_log(cluster), snapshots="on")  # type: ignore[arg-type]


def test_one_a_day_if_something_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of 240 s here."""
    assert snapshots.DUE_MS == 24 * 3600 * 1000
    monkeypatch.setattr(snapshots, "DUE_MS", 240_000)

    async def work(state: State) -> None:
        for _ in range(24 * 5 + 3):
            await state.put("a", b"1")
            await anyio.sleep(10)

    async def quiet(state: State) -> None:
        await state.fetch("a")
        await anyio.sleep(5 * 240)

    with Cluster(seed=1, servers=1, patience_s=2 * HOUR) as cluster:
        with_state(cluster, work, snapshots="auto")
        ends = len(kinds(cluster, codec.End))
        assert ends in (4, 5)
        assert truth(cluster).lsn - first_of(cluster) < 3 * 30
        with_state(cluster, quiet, snapshots="auto")
        assert len(kinds(cluster, codec.End)) == ends
        fresh(cluster)


def test_a_foreign_payload_stops_all_trims() -> None:
    """Mutation N, by itself: snapshots go on, newcomers begin at the last one, nothing is lost."""
    async def work(state: State) -> None:
        for i in range(200):
            await state.put("a", b"v" * 2000)
            if i == 30:
                await state.log.append(b"not ours")
            await anyio.sleep(1)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, snapshots="auto")
        right = truth(cluster)
        assert len(kinds(cluster, codec.End)) > 4 and right.previous is not None
        assert first_of(cluster) <= right.foreign_lsn < right.previous.begin
        assert cursor_of(cluster) == right.snapshot[0]  # type: ignore[index]
        check_trims(cluster)
        fresh(cluster)


def test_another_process_trims_if_the_writer_died() -> None:
    async def work(states: list[State]) -> None:
        writer, _ = states
        for i in range(3):
            await fill(writer, 2, 100, str(i))
            await writer.snapshot()  # neither cursor nor trim
        await anyio.sleep(70)

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work, snapshots="off")
        assert first_of(cluster) == 1 and cursor_of(cluster) == 1
        with_states(cluster, 1, lambda states: anyio.sleep(1), snapshots="auto")
        assert first_of(cluster) == 1
        with_states(cluster, 1, lambda states: anyio.sleep(70), snapshots="auto")
        right = truth(cluster)
        assert right.previous is not None and right.snapshot is not None
        assert first_of(cluster) == right.previous.begin and cursor_of(cluster) == right.snapshot.begin
        fresh(cluster)


def test_another_process_sets_the_cursor_if_the_founder_died() -> None:
    with Cluster(seed=1, servers=1) as cluster:
        with cluster.connect_sync() as log:
            log.append(codec.found(b"S" * 16, Limits()))
        assert cursor_of(cluster) == 0
        with_state(cluster, lambda state: anyio.sleep(70), snapshots="auto")
        assert cursor_of(cluster) == 1
        fresh(cluster)


def test_a_state_behind_payloads_of_others_gets_a_snapshot_at_once() -> None:
    """Else nobody could begin, once those payloads are trimmed away."""
    async def work(state: State) -> None:
        await state.log.append(b"others")
        await state.put("a", b"1")
        await anyio.sleep(10)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, snapshots="auto")
        assert len(kinds(cluster, codec.End)) == 1
        with cluster.connect_sync() as log:
            log.trim(2)
            log.trim(cursor_of(cluster))
        assert fresh(cluster).cells["a"].value == b"1"


def test_failures_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a snapshot, its check or its trim raises, the state goes on, and so does its keeping."""
    failed: list[str] = []

    async def work(state: State) -> None:
        log = state.log
        await state.put("a", b"1")
        for name in ("settings", "cursors", "set_cursor", "trim"):
            setattr(log, name, failing(name, getattr(log, name)))
        for _ in range(400):
            await state.put("a", b"v" * 2000)
            await anyio.sleep(1)

    def failing(name: str, real: object) -> object:
        async def call(*given: object) -> object:
            if failed.count(name) < 2:
                failed.append(name)
                raise Unavailable(f"no {name}")
            return await real(*given)  # type: ignore[operator]

        return call

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, snapshots="auto")
        assert {name: failed.count(name) for name in failed} == dict.fromkeys(
            ("settings", "cursors", "set_cursor", "trim"), 2
        )
        right = truth(cluster)
        assert right.snapshot is not None and first_of(cluster) > 1
        check_trims(cluster)
        fresh(cluster)


def test_a_writer_that_died_half_way_is_followed_by_another() -> None:
    async def work(state: State) -> None:
        await state.put("a", b"1")
        await state.log.append(codec.begin(b"dead" * 4))
        for _ in range(100):
            await state.put("a", b"v" * 2000)
            await anyio.sleep(1)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, snapshots="auto")
        assert truth(cluster).snapshot is not None
        begins = kinds(cluster, codec.Begin)
        assert truth(cluster).upload is None or len(begins) > 2
        fresh(cluster)


def test_under_random_faults() -> None:
    """Crashes, cuts and lost connections: the log stays short, and a start is right at any time."""
    async def work(states: list[State]) -> None:
        async def write(state: State, at: int) -> None:
            for i in range(120):
                try:
                    await state.put(f"name/{at}/{i % 5}", b"v" * 2000)
                except Exception as error:
                    assert "NotGuaranteed" in type(error).__name__ or "Unavailable" in type(error).__name__
                    await state.log.settle(60)
                await anyio.sleep(0.5)

        async with anyio.create_task_group() as tasks:
            for at, state in enumerate(states):
                tasks.start_soon(write, state, at)

    for seed in range(2):
        with Cluster(seed=seed, faults=True, fault_every_s=4) as cluster:
            small_payloads(cluster, 16_384)
            with_states(cluster, 3, work, snapshots="auto")
            cluster.heal()
            assert len(kinds(cluster, codec.End)) >= 3
            assert held_bytes(cluster) < 600_000
            check_trims(cluster)
            fresh(cluster)


@pytest.mark.parametrize("seconds", [HOUR // 6, pytest.param(HOUR, marks=pytest.mark.soak)])
def test_steady_writes(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """A value of 4 kB every second of virtual time, 14 MB in an hour: the log never holds more than two intervals.

    A day of virtual time takes minutes of a real one, since followers ask every second: so all is smaller here.
    """
    monkeypatch.setattr(snapshots, "DUE_BYTES", 400_000)
    most: list[int] = []

    async def work(state: State) -> None:
        for i in range(seconds):
            await state.put(f"name/{i % 20}", i.to_bytes(4, "big") * 1000)
            if i % 60 == 0:
                most.append(state.lsn + 1 - await state.log.trim(1))
            await anyio.sleep(1)

    with Cluster(seed=1, servers=1, patience_s=2 * seconds) as cluster:
        with_state(cluster, work, snapshots="auto")
        # an interval is 100 values, and up to 5 more until somebody begins
        assert len(kinds(cluster, codec.End)) >= seconds // 120 and max(most) < 2 * 110 + 20
        assert held_bytes(cluster) < 2 * 420_000 + 3 * 90_000
        check_trims(cluster)
        fresh(cluster)
