"""Starting from a log that was trimmed: by hand, before the start, and between any two pages of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from rsm_kit import first_of, new_log, run
from snapshot_rig import (
    Hooked,
    check_trims,
    fill,
    folded,
    fresh,
    machine_of,
    plain,
    small_payloads,
    truth,
    unrecoverable,
    with_state,
)

from alpo.errors import OutOfRange
from alpo.state import If, Put, State, Unrecoverable, WrongState, codec
from alpo.state.machine import Machine
from alpo.testing import Cluster


async def history(state: State) -> None:
    """Fill a log with all that it may hold: others' payloads, batches, leases, damage, uploads that come to nothing."""
    log = state.log
    await log.append(b"foreign")
    await fill(state, 3, 100)
    await state.commit([], [Put(f"many/{i}", b"m" * 3000) for i in range(5)])
    await state.snapshot()
    owner = await state.put("owner", b"me", lease_s=3600)
    await state.commit([If("owner", version=owner.version)], [Put("owner\0row", b"1")])
    await log.append(codec.HEAD + b"damaged")
    await log.append_batch([codec.begin(b"dead" * 4), codec.part(b"dead" * 4, 0, b"no part")])
    await log.append(codec.begin(b"busy" * 4))
    await anyio.sleep(31)
    await state.snapshot()
    await state.put("last", b"")
    await log.append(codec.end(b"dead" * 4, 1, bytes(16), bytes(16)))
    await state.add("counter", 5)


def accepted(cluster: Cluster) -> list[tuple[int, int]]:
    """(begin, end) of each accepted snapshot of the whole history."""
    found = []
    for upto in range(len(cluster.log())):
        snapshot = folded(cluster.log()[: upto + 1]).snapshot
        if snapshot is not None and snapshot[:2] not in found:
            found.append(snapshot[:2])
    return found


@pytest.mark.parametrize("cursor", [False, True])
def test_a_trim_by_hand_at_every_lsn(cursor: bool) -> None:
    """Mutation H: a start is right or `Unrecoverable`; a log whose beginning is gone never counts as empty."""
    with Cluster(seed=1, servers=1) as cluster:
        small_payloads(cluster)
        with_state(cluster, history)
        begins = [begin for begin, _ in accepted(cluster)]
        assert len(begins) == 2
        last = truth(cluster).lsn
        right = wrong = 0
        for lsn in range(2, last + 2):
            with cluster.connect_sync() as log:
                log.trim(lsn, force=True)
                if cursor:
                    log.set_cursor("state", max(lsn, begins[-1]))
            with unrecoverable():
                assert fresh(cluster).lsn == last
                right += 1
                assert lsn <= begins[-1]
                continue
            wrong += 1
            assert lsn > begins[-1]
        assert right == begins[-1] - 1 and wrong == last + 1 - begins[-1]


def test_an_emptied_log_is_not_an_empty_one() -> None:
    """No writer founds a second state in an emptied log, and the error names the log's LSNs."""
    async def write(state: State) -> None:
        await state.put("a", b"second")

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, history)
        last = truth(cluster).lsn
        with cluster.connect_sync() as log:
            log.trim(last + 1, force=True)
        for work in (write, machine_of, State.snapshot):
            with pytest.raises(Unrecoverable) as caught:
                with_state(cluster, work)
            assert (caught.value.first_lsn, caught.value.last_lsn) == (last + 1, last)
            assert f"LSN {last + 1} to {last}" in str(caught.value)
        assert truth(cluster).lsn == last


def test_a_log_that_never_held_a_state() -> None:
    with Cluster(seed=1, servers=1) as cluster:
        with cluster.connect_sync() as log:
            for _ in range(5):
                log.append(b"plain")
            assert fresh(cluster).cells == {}
            log.trim(3)
        with pytest.raises(Unrecoverable):
            fresh(cluster)


def read_from(cluster: Cluster) -> tuple[list[int], Machine]:
    """First LSNs of all reads of a start, and its machine."""
    starts: list[int] = []

    async def go() -> Machine:
        async with new_log(cluster) as log:
            for name in ("read_batches", "follow_batches"):
                setattr(log, name, spied(getattr(log, name)))
            async with State(log, snapshots="off") as state:
                return await machine_of(state)

    def spied(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(start: int, *rest: Any, **named: Any) -> Any:
            starts.append(start)
            return real(start, *rest, **named)

        return call

    machine: Machine = run(cluster, go)
    return starts, machine


def test_it_begins_at_the_cursor() -> None:
    async def work(state: State) -> int:
        await fill(state, 3)
        return (await state.snapshot(trim=True)).begin

    with Cluster(seed=1, servers=1) as cluster:
        begin = with_state(cluster, work)
        starts, machine = read_from(cluster)
        assert starts == [1, begin, begin + 1]  # first LSNs of the log, the snapshot, the rest
        assert plain(machine) == plain(truth(cluster))


def test_a_state_that_was_founded_behind_other_payloads() -> None:
    """The cursor is behind the first LSN and there is no snapshot yet, so the start reads from the first LSN."""
    async def work(state: State) -> None:
        await state.log.append(b"foreign")
        await fill(state, 3)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work)
        starts, machine = read_from(cluster)
        assert starts == [1, 2, 1, 1]
        assert plain(machine) == plain(truth(cluster))


def test_the_whole_history_is_folded_if_it_is_there_and_nothing_else() -> None:
    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, lambda state: fill(state, 3))
        assert read_from(cluster)[0] == [1, 1]
        with cluster.connect_sync() as log:
            log.drop_cursor("state")
        assert read_from(cluster)[0] == [1, 1]
        fresh(cluster)


# -- trims meanwhile ----------------------------------------------------------------------------------------


def start_with(cluster: Cluster, at_page: int, trim: Callable[[State], Awaitable[Any]]) -> tuple[int, Machine]:
    """A start before whose page ``at_page`` another process trims; returns the number of pages and the machine."""
    async def go() -> tuple[int, Machine]:
        async with new_log(cluster) as log, new_log(cluster) as other:
            async with State(other, snapshots="off") as trimmer:
                await trimmer.fetch("a")
                hooked = Hooked(log, lambda page: trim_at(page, trimmer))
                async with State(log, snapshots="off", timeout_s=60) as state:
                    return hooked.pages, await machine_of(state)

    async def trim_at(page: int, trimmer: State) -> None:
        if page == at_page:
            await trim(trimmer)

    found: tuple[int, Machine] = run(cluster, go)
    return found


async def two_snapshots(state: State) -> None:
    """Let others write the next two snapshots, and trim."""
    for i in range(2):
        await state.put(f"meanwhile/{i}", b"1")
        await state.snapshot(trim=True)


async def one_snapshot(state: State) -> None:
    await state.put("meanwhile", b"1")
    await state.snapshot(trim=True)


@pytest.mark.parametrize("trim", [one_snapshot, two_snapshots])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_trim_between_every_two_pages(
    trim: Callable[[State], Awaitable[None]], before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that a trim overtakes, in either pass, begins anew and ends right. ``before``: snapshots so far."""
    monkeypatch.setattr("alpo.client.pages.PAGE_BYTES_MAX", 2500)

    async def work(state: State) -> None:
        for i in range(before):
            await fill(state, 4, 600, str(i))
            await state.snapshot(trim=True)
        await fill(state, 8, 600, "later")

    page = 0
    while True:
        with Cluster(seed=1, servers=1) as cluster:
            small_payloads(cluster)
            with_state(cluster, work)
            pages_before = truth(cluster).lsn
            _, machine = start_with(cluster, page, trim)
            assert plain(machine) == plain(folded(cluster.log()[: machine.lsn])) and machine.lsn >= pages_before
            check_trims(cluster)
            if "meanwhile" not in str(machine.cells.keys()):
                break
        page += 1
    assert page > 6


def test_a_trim_by_hand_during_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim that takes the only snapshot away ends the start with `Unrecoverable`, or right if all had been read."""
    monkeypatch.setattr("alpo.client.pages.PAGE_BYTES_MAX", 2500)

    async def work(state: State) -> None:
        await fill(state, 4, 600)
        await state.snapshot(trim=True)
        await fill(state, 8, 600, "later")

    async def trim(state: State) -> None:
        await state.log.trim(truth(cluster).lsn, force=True)

    outcomes = []
    for page in range(12):
        with Cluster(seed=1, servers=1) as cluster:
            small_payloads(cluster)
            with_state(cluster, work)
            with unrecoverable():
                _, machine = start_with(cluster, page, trim)
                assert plain(machine) == plain(truth(cluster))
                outcomes.append("right")
                continue
            outcomes.append("unrecoverable")
    assert outcomes[0] == "unrecoverable" and outcomes[-1] == "right"


def test_a_server_that_keeps_less_does_not_decide() -> None:
    """A server whose retention is shorter answers `OutOfRange`: the leader is asked, and nothing is loaded anew."""
    lies = 0

    async def lie(page: int) -> None:
        nonlocal lies
        if page % 4 == 1:
            lies += 1
            raise OutOfRange("LSN 1 is not in the log, which holds 90 to 99", first_lsn=90, last_lsn=99)

    async def go() -> None:
        async with new_log(cluster) as log:
            Hooked(log, lie)
            async with State(log, snapshots="off") as state:
                await fill(state, 3)
                machine = await machine_of(state)
                for i in range(5):
                    await state.put("a", b"%d" % i)
                assert await machine_of(state) is machine
                assert plain(machine) == plain(truth(cluster))

    with Cluster(seed=1, servers=1) as cluster:
        run(cluster, go)
        assert lies >= 4, lies


def test_a_lie_while_loading() -> None:
    async def lie(page: int) -> None:
        if page in (1, 2, 4):
            raise OutOfRange("LSN 1 is not in the log", first_lsn=90, last_lsn=99)

    async def go() -> Machine:
        async with new_log(cluster) as log:
            Hooked(log, lie)
            async with State(log, snapshots="off") as state:
                return await machine_of(state)

    async def work(state: State) -> None:
        await fill(state, 3)
        for _ in range(3):
            await state.snapshot(trim=True)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work)
        assert first_of(cluster) > 1
        assert plain(run(cluster, go)) == plain(truth(cluster))


def test_expect_is_checked_after_a_snapshot() -> None:
    async def work(state: State) -> str:
        await fill(state, 3)
        await state.snapshot(trim=True)
        return (await state.status()).state

    with Cluster(seed=1, servers=1) as cluster:
        id = with_state(cluster, work)
        assert with_state(cluster, machine_of, expect=id).lsn == truth(cluster).lsn
        with pytest.raises(WrongState):
            with_state(cluster, machine_of, expect="00" * 16)
