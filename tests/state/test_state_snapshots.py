"""Snapshots in the log: written beside other appends, by several processes, and by processes that crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from rsm_kit import first_of, new_log, run
from snapshot_rig import (
    Steps,
    check_trims,
    cursor_of,
    cut_off,
    fill,
    fresh,
    machine_of,
    plain,
    small_payloads,
    truth,
    with_state,
    with_states,
)

from alpo.rsm.machine import Outcome
from alpo.state import Busy, NotFounded, SnapshotInfo, State, codec
from alpo.testing import Cluster


def test_a_snapshot_and_a_late_starter() -> None:
    async def work(state: State) -> SnapshotInfo:
        await fill(state)
        info = await state.snapshot()
        await fill(state, 5, 200, "later")
        return info

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        info = with_state(cluster, work)
        assert info.begin == 32 and info.first_lsn == 1 and info.parts > 5
        assert info.end == info.begin + info.parts + 1
        right = truth(cluster)
        assert right.snapshot is not None and (right.snapshot.begin, right.snapshot.end) == info[:2]
        assert info.bytes == sum(len(p.data) for p in parts_in(cluster))
        with cluster.connect_sync() as log:
            log.set_cursor("state", info.begin)
            assert log.trim(info.begin) == info.begin
        assert fresh(cluster).lsn == right.lsn


def parts_in(cluster: Cluster) -> list[codec.Part]:
    return [m for m in (codec.decode(r.payload) for r in cluster.log()) if isinstance(m, codec.Part)]


def test_an_empty_state() -> None:
    async def work(state: State) -> SnapshotInfo:
        await state.expunge(await state.put("a", b""))
        return await state.snapshot()

    with Cluster(seed=1) as cluster:
        assert with_state(cluster, work).parts == 1
        with cluster.connect_sync() as log:
            log.trim(4, force=True)
        assert fresh(cluster).cells == {}


def test_without_a_state_there_is_no_snapshot() -> None:
    with Cluster(seed=1) as cluster:
        with pytest.raises(NotFounded):
            with_state(cluster, lambda state: state.snapshot())
        assert cluster.log() == []


def test_registers_come_with_it() -> None:
    """Mutation J: a register that is left out of the snapshot differs after a start from it."""
    async def work(state: State) -> None:
        await state.log.append(b"foreign")
        await state.log.append(codec.HEAD + b"damaged")
        await fill(state, 3)
        for _ in range(3):
            await state.snapshot(trim=True)
            await state.put("between", b"1", lease_s=3600)

    with Cluster(seed=1) as cluster:
        with_state(cluster, work)
        right = truth(cluster)
        assert right.foreign_lsn == 1 and right.invalid == 1 and right.previous is not None
        with cluster.connect_sync() as log:
            log.trim(right.previous.begin)
        assert plain(fresh(cluster)) == plain(right)


def test_two_snapshots_are_kept() -> None:
    """Mutation D: the log begins at the begin of the last but one snapshot, not at its end."""
    async def work(state: State) -> list[SnapshotInfo]:
        infos = []
        for i in range(4):
            await fill(state, 10, 500, str(i))
            infos.append(await state.snapshot(trim=True))
        return infos

    with Cluster(seed=1) as cluster:
        infos = with_state(cluster, work)
        assert [info.first_lsn for info in infos] == [1, *(info.begin for info in infos[:3])]
        assert first_of(cluster) == infos[2].begin and cursor_of(cluster) == infos[3].begin
        check_trims(cluster)
        fresh(cluster)


def test_appends_of_others_land_between_its_parts() -> None:
    """Mutation E: the snapshot is the state as of its begin, not as of now, and nothing between is lost."""
    async def work(states: list[State]) -> None:
        writer, other = states
        await fill(writer)

        async def write() -> None:
            for i in range(60):
                await other.put(f"name/{i % 40}", b"later %d" % i)
                await other.add("counter")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for _ in range(3):
                await writer.snapshot(trim=True)

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_states(cluster, 2, work)
        at = [r.lsn for r in cluster.log() if isinstance(codec.decode(r.payload), codec.Part)]
        assert at[-1] - at[0] >= len(at) + 10  # the appends did come between
        right = truth(cluster)
        assert right.previous is not None and right.cells["counter"].value == b"60"
        check_trims(cluster)
        fresh(cluster)


def test_two_snapshotters() -> None:
    """Mutation F: one snapshot is granted, the other is refused at once, and leaves no part behind."""
    outcomes: list[str] = []

    async def work(states: list[State]) -> None:
        await fill(states[0])

        async def try_it(state: State) -> None:
            try:
                await state.snapshot(trim=True)
                outcomes.append("written")
            except Busy:
                outcomes.append("busy")

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for state in states:
                    tasks.start_soon(try_it, state)

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_states(cluster, 3, work)
        assert outcomes.count("written") == 3 and outcomes.count("busy") == 6
        right = truth(cluster)
        assert right.previous is not None and right.upload is None
        check_trims(cluster)
        fresh(cluster)


def test_one_that_was_taken_over_does_nothing_more() -> None:
    """A writer that stops for 30 s of the log's time loses its grant: its later parts and end have no effect."""
    async def work(states: list[State]) -> None:
        zombie, other = states
        await fill(zombie)
        sent: list[bytes] = []
        enter = zombie._folder.enter

        def slow(payloads: list[bytes], **how: Any) -> object:
            sent.extend(payloads)
            return enter(payloads, **how)

        zombie._folder.enter = slow  # type: ignore[assignment, method-assign]
        stopped = Steps(zombie.snapshot(trim=True), 12)
        await stopped
        assert not stopped.ended and len(sent) > 2 and isinstance(codec.decode(sent[-1]), codec.Part)
        with pytest.raises(Busy):
            await other.snapshot()
        await anyio.sleep(31)
        machine = await machine_of(zombie)
        upload = machine.upload
        assert upload is not None
        info = await other.snapshot(trim=True)
        # now the zombie goes on with all that it has left, in the right order
        rest = [codec.part(upload.sid, upload.parts + i, b"late") for i in range(3)]
        end = codec.end(upload.sid, upload.parts, upload.chain, bytes(16))
        for payload in [*rest, end]:
            result = await zombie._folder.result_of(enter([payload], timeout_s=10))
            assert result is not None and result.outcome is Outcome.STALE
        machine = await machine_of(zombie)
        assert machine.snapshot is not None and machine.snapshot[:2] == info[:2]

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_states(cluster, 2, work)
        check_trims(cluster)
        fresh(cluster)


def test_the_writer_gives_up_when_it_was_taken_over() -> None:
    async def work(states: list[State]) -> None:
        slow, other = states
        await fill(slow)
        enter, parts = slow._folder.enter, 0

        def send(payloads: list[bytes], **how: Any) -> object:
            nonlocal parts
            parts += 1
            return enter(payloads, **how)

        slow._folder.enter = send  # type: ignore[assignment, method-assign]
        wait_room = slow.log.wait_room

        async def stopped() -> None:
            if parts == 4:
                await anyio.sleep(31)
                await other.snapshot()
            await wait_room()

        slow.log.wait_room = stopped  # type: ignore[method-assign]
        with pytest.raises(Busy, match="taken over"):
            await slow.snapshot()

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_states(cluster, 2, work)
        fresh(cluster)


# -- crashes ------------------------------------------------------------------------------------------------


def crashed(stop: int, crash: Callable[[Cluster], object], servers: int = 1) -> bool:
    """Crash a process at wait ``stop`` of its third snapshot and trim; True if that came to its end before. A process
    that starts then finds the whole state, and can write the next snapshot."""
    async def work(state: State) -> bool:
        for i in range(2):
            await fill(state, 4, 600, str(i))
            await state.snapshot(trim=True)
        await fill(state, 4, 600, "last")
        steps = Steps(state.snapshot(trim=True), stop, lambda: crash(cluster))
        await steps
        return steps.ended

    async def go_on(state: State) -> SnapshotInfo:
        await state.put("after", b"1")
        return await state.snapshot(trim=True)

    with Cluster(seed=1, servers=servers) as cluster:
        small_payloads(cluster)
        ended = with_state(cluster, work, "program")
        check_trims(cluster)
        fresh(cluster)
        cluster.heal()
        cluster.advance(31)
        check_trims(cluster)
        fresh(cluster)
        before = truth(cluster).snapshot
        info = with_state(cluster, go_on)
        assert before is not None and info.first_lsn == before.begin
        check_trims(cluster)
        fresh(cluster)
    return ended


@pytest.mark.parametrize("crash", [cut_off, lambda cluster: None], ids=["dies", "stops"])
def test_a_crash_at_every_wait(crash: Callable[[Cluster], object]) -> None:
    """Mutation C: a trim before the end is known to be accepted loses the state."""
    stop = 0
    while not crashed(stop, crash):
        stop += 1
    assert stop > 20, stop


def test_the_leader_dies_meanwhile() -> None:
    stop = 0
    while not crashed(stop, Cluster.kill_leader, 3):
        stop += 4


# -- beside others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_under_either_event_loop(backend: str, tmp_path: Path) -> None:
    async def go() -> None:
        for _ in range(2):
            async with cluster.connect() as log, State(log, cache=tmp_path / "cache") as state:
                await fill(state, 5)
                for _ in range(3):
                    info = await state.snapshot(trim=True)
                assert info.first_lsn == truth(cluster).previous[0]  # type: ignore[index]
            (tmp_path / "cache").unlink()
        async with cluster.connect() as log, State(log) as state:
            assert plain(await machine_of(state)) == plain(truth(cluster))

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        anyio.run(go, backend=backend)


def test_a_snapshot_in_a_small_window_of_appends() -> None:
    """Parts wait for room in the local queue like everything else."""
    async def go() -> SnapshotInfo:
        log = cluster._new_log(None, 10.0, 3, 20_000)
        async with log, State(log, snapshots="off") as state:
            await fill(state)
            return await state.snapshot()

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        assert run(cluster, go).parts > 4
        fresh(cluster)


def test_two_states_over_one_log_know_their_own() -> None:
    """Both states have one client, and neither takes the other's grant for its own."""
    async def go() -> None:
        async with new_log(cluster) as log, State(log, snapshots="off") as one, State(log, snapshots="off") as two:
            await fill(one, 5)
            await one.snapshot()
            await two.snapshot()

    with Cluster(seed=3) as cluster:
        run(cluster, go)
        right = truth(cluster)
        assert right.previous is not None
        fresh(cluster)
