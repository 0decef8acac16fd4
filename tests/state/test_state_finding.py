"""Finding a whole snapshot among the payloads of a log: by its content alone, and in bounded memory."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import Any

import anyio
import pytest
from snapshot_rig import fill, folded, fresh, plain, small_payloads, truth, with_state, with_states

from alpo.errors import OutOfRange
from alpo.rsm import loading
from alpo.state import Corrupt, State, codec
from alpo.state.folder import KIND
from alpo.state.machine import Machine
from alpo.testing import Cluster

find = partial(loading.find, KIND)


def test_parts_spill_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled: list[bool] = []

    class Uploads(loading.Uploads[Machine]):
        def __exit__(self, *error: object) -> None:
            rolled.append(bool(self._file._rolled))  # type: ignore[attr-defined]
            super().__exit__(*error)

    monkeypatch.setattr(loading, "Uploads", Uploads)

    async def work(states: list[State]) -> None:
        await fill(states[0], 20, 1000)
        await states[0].snapshot(trim=True)

    for most, spilled in ((1 << 20, False), (5000, True)):
        monkeypatch.setattr(loading, "SPILLED_BYTES", most)
        with Cluster(seed=1, servers=1) as cluster:
            small_payloads(cluster)
            with_states(cluster, 1, work)
            fresh(cluster)
            assert rolled.pop() is spilled


def test_there_is_no_room_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BytesIO):
        def write(self, data: Any) -> int:
            raise OSError("no space left on device")

    async def work(state: State) -> None:
        await fill(state, 3)
        await state.snapshot(trim=True)

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work)
        with monkeypatch.context() as patch:
            patch.setattr(loading, "SpooledTemporaryFile", lambda size: Full())
            with pytest.raises(Corrupt, match="no space left"):
                fresh(cluster)
        fresh(cluster)


def test_a_snapshot_counts_by_its_content() -> None:
    """Wrong count, chain, digest, or LSN: passed over. Refused as late, and whole: taken."""
    async def work(state: State) -> dict[str, Machine | None]:
        log = state.log
        await fill(state, 3, 100)
        good = await state.snapshot()
        records = [record async for record in log.read(good.begin, good.end)]
        parts = [m for m in (codec.decode(r.payload) for r in records) if isinstance(m, codec.Part)]
        end = codec.decode(records[-1].payload)
        assert isinstance(end, codec.End)
        found: dict[str, Machine | None] = {}

        async def copy(name: str, datas: list[bytes], wanted: codec.End) -> None:
            sid = name.ljust(16).encode()
            at = await log.append(codec.begin(sid))
            for i, data in enumerate(datas):
                await log.append(codec.part(sid, i, data))
            await log.append(codec.end(sid, *wanted[1:]))
            found[name] = await find(log, at)

        datas = [part.data for part in parts]
        await copy("begin", datas, end)  # its registers are of another LSN
        await copy("count", datas, end._replace(parts=1))
        await copy("chain", datas, end._replace(chain=bytes(16)))
        await copy("digest", datas, end._replace(digest=bytes(16)))
        await copy("cut", datas[:1], end)
        await copy("none", [], end)
        found["good"] = await find(log, good.begin)
        found["late"] = await find(log, good.begin + 1)
        found["stop"] = await find(log, good.begin, good.end - 1)
        return found

    with Cluster(seed=1, servers=1) as cluster:
        found = with_state(cluster, work)
        assert [name for name, machine in found.items() if machine is not None] == ["good"]
        machine = found["good"]
        assert machine is not None and plain(machine) == plain(folded(cluster.log()[: machine.lsn]))


def test_an_end_that_was_refused_as_late_is_good_enough() -> None:
    async def work(states: list[State]) -> None:
        late, other = states
        await fill(late, 3, 100)
        enter = late._folder.enter
        held: list[bytes] = []

        def hold_the_end(payloads: list[bytes], **how: Any) -> Any:
            if isinstance(codec.decode(payloads[0]), codec.End):
                held.extend(payloads)
                raise OutOfRange("the process stops here", first_lsn=1, last_lsn=1)
            return enter(payloads, **how)

        late._folder.enter = hold_the_end  # type: ignore[assignment, method-assign]
        with pytest.raises(OutOfRange):
            await late.snapshot()
        await anyio.sleep(31)
        await late.log.append(codec.begin(b"other one" + bytes(7)))
        await other.log.append(held[0])

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work)
        right = truth(cluster)
        assert right.snapshot is None and right.upload is not None
        with cluster.connect_sync() as log:
            log.trim(3, force=True)
        assert plain(fresh(cluster)) == plain(right)
