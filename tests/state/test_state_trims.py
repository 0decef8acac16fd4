"""Trims behind snapshots, which take nothing that anybody needs; and processes whose state is not the others'."""

from __future__ import annotations

import anyio
import pytest
from rsm_kit import first_of
from snapshot_rig import check_trims, fill, fresh, machine_of, truth, with_state, with_states

from alpo.rsm.snapshots import Keeper
from alpo.state import Diverged, Put, State, codec
from alpo.state.parts import Encoder
from alpo.testing import Cluster

# -- a state that differs -----------------------------------------------------------------------------------


def test_a_writer_whose_state_differs_is_told() -> None:
    async def work(states: list[State]) -> None:
        wrong, other = states
        await fill(wrong, 5)
        machine = await machine_of(wrong)
        cell = machine.cells["name/3"]
        machine.cells["name/3"] = cell._replace(value=b"turned")
        with pytest.raises(Diverged):
            await wrong.snapshot(trim=True)
        last = [codec.decode(record.payload) async for record in other.log.read(machine.lsn)]
        assert not any(isinstance(message, codec.End) for message in last)  # a newcomer would believe it
        with pytest.raises(Diverged):
            await wrong.fetch("name/1")
        await anyio.sleep(31)  # until the grant has lapsed
        assert (await other.fetch("name/3")).value == cell.value
        info = await other.snapshot(trim=True)
        assert info.first_lsn == 1

    with Cluster(seed=1) as cluster:
        with_states(cluster, 2, work)
        fresh(cluster)


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_process_that_refuses_what_others_accept_stops(before: int) -> None:
    """``before``: accepted snapshots before it; with 3 the beginning of the log is gone."""
    async def work(states: list[State]) -> None:
        writer, wrong, third = states
        for _ in range(before):
            await fill(writer, 5)
            await writer.snapshot(trim=True)
        await writer.put("a", b"1")
        machine = await machine_of(wrong)
        machine.digest ^= 1
        await writer.snapshot()
        with pytest.raises(Diverged, match="not the one that the log holds"):
            while True:
                await wrong.fetch("a")
                await anyio.sleep(0.1)
        assert (await third.fetch("a")).value == b"1"
        assert (await writer.fetch("a")).value == b"1"

    with Cluster(seed=1) as cluster:
        with_states(cluster, 3, work)
        fresh(cluster)


@pytest.mark.parametrize("gone", [False, True])
def test_an_end_that_is_wrong_stops_nobody_else(gone: bool) -> None:
    async def work(states: list[State]) -> None:
        for _ in range(3 if gone else 1):
            await fill(states[0], 5)
            await states[0].snapshot(trim=gone)
        sid = b"s" * 16
        await states[0].log.append(codec.begin(sid))
        await states[0].log.append(codec.end(sid, 0, b"c" * 16, b"d" * 16))
        await anyio.sleep(5)
        for state in states:
            await state.put("a", b"1")
            await state.snapshot(trim=True)

    with Cluster(seed=1) as cluster:
        with_states(cluster, 3, work)
        check_trims(cluster)
        fresh(cluster)


# -- trims --------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_back_is_never_trimmed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of an accepted snapshot do not decode: their writer has a defect that the digest does not show."""
    async def work(state: State) -> None:
        await fill(state, 5)
        await state.snapshot(trim=True)
        first = cursor = 0
        monkeypatch.setattr("alpo.state.parts.Encoder._note", note)
        for _ in range(2):
            await state.put("a", b"1")
            info = await state.snapshot(trim=True)
            first = info.first_lsn
        monkeypatch.undo()
        cursor = (await state.log.cursors())[0].lsn
        assert first == 1 and cursor < info.begin
        await state.snapshot(trim=True)

    def note(encoder: object, part: bytes) -> bytes:
        part = part[:-1] + b"!" if encoder.parts == 1 else part  # type: ignore[attr-defined]
        return real(encoder, part)  # type: ignore[arg-type]

    real = Encoder._note
    with Cluster(seed=1) as cluster:
        with_state(cluster, work)
        fresh(cluster)


def test_a_trim_that_is_refused_does_no_harm() -> None:
    async def work(state: State) -> None:
        await fill(state, 5)
        await state.log.set_cursor("somebody", 2)
        await state.snapshot(trim=True)
        with pytest.raises(Exception, match="somebody"):
            await state.snapshot(trim=True)
        assert (await state.put("a", b"1")).version
        keeper = Keeper(state._folder, True)
        with pytest.raises(Exception, match="somebody"):
            await keeper.tidy()
        await state.log.drop_cursor("somebody")
        await keeper.tidy()
        await keeper.tidy()

    with Cluster(seed=1) as cluster:
        with_state(cluster, work)
        check_trims(cluster)
        assert first_of(cluster) > 2
        fresh(cluster)


def test_late_trims_and_cursors_of_slow_processes() -> None:
    """A slow process repeats, late, each step of a trim that another process has made."""
    async def work(states: list[State]) -> None:
        infos = []
        for i in range(4):
            await fill(states[0], 3, 300, str(i))
            infos.append(await states[0].snapshot(trim=True))
        log = states[1].log
        for info in infos:
            await log.trim(info.begin) if info is not infos[3] else None
        with pytest.raises(Exception, match="not in the log"):
            await log.set_cursor("state", infos[0].begin)
        await log.set_cursor("state", infos[2].begin)

    with Cluster(seed=1) as cluster:
        with_states(cluster, 2, work)
        check_trims(cluster)
        fresh(cluster)


def test_a_foreign_payload_is_never_trimmed() -> None:
    """Mutation N: a foreign payload is kept though it is far behind the snapshots, or came between two of them."""
    async def work(state: State) -> None:
        for i in range(5):
            await state.commit([], [Put(f"a{i}", b"1" * 500)])
            if i == 2:
                await state.log.append(b"not ours")
            info = await state.snapshot(trim=True)
        assert info.first_lsn <= 8

    with Cluster(seed=1) as cluster:
        with_state(cluster, work)
        check_trims(cluster)
        right = truth(cluster)
        assert right.previous is not None and first_of(cluster) <= right.foreign_lsn < right.previous.begin
        fresh(cluster)
        # another process trims it, and then trims behind snapshots go on
        with cluster.connect_sync() as log:
            log.trim(right.foreign_lsn + 1)
        with_state(cluster, lambda state: state.snapshot(trim=True))
        assert right.snapshot is not None and first_of(cluster) == right.snapshot.begin
        fresh(cluster)
