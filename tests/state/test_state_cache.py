"""The cache beside the log: used when it fits, ignored when it does not, and never in anybody's way."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from rsm_kit import new_log, run
from snapshot_rig import fill, folded, machine_of, plain, truth, with_state

from alpo.rsm import loading
from alpo.state import State, WrongState, codec
from alpo.state.codec import Limits
from alpo.state.folder import KIND
from alpo.testing import Cluster


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def start(cluster: Cluster, path: Path, **how: Any) -> int:
    """The LSN from which a start with this cache folds the log on; its state is compared with the whole history."""
    starts: list[int] = []

    async def go() -> None:
        async with new_log(cluster) as log:
            follow = log.follow_batches

            def spied(start: int, **named: Any) -> Any:
                starts.append(start)
                return follow(start, **named)

            log.follow_batches = spied  # type: ignore[assignment, method-assign]
            async with State(log, snapshots="off", cache=path, **how) as state:
                machine = await machine_of(state)
                assert plain(machine) == plain(truth(cluster))

    run(cluster, go)
    return starts[0]


def written(cluster: Cluster, path: Path) -> bytes:
    """A cache of some variables, as a state that is closed leaves it."""
    with_state(cluster, lambda state: fill(state, 20, 600), cache=path)
    return path.read_bytes()


def test_it_saves_reading_the_log(path: Path) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        data = written(cluster, path)
        assert start(cluster, path) == truth(cluster).lsn + 1
        with_state(cluster, lambda state: fill(state, 3, 60, "later"))
        assert start(cluster, path) == truth(cluster).lsn + 1 - 3
        assert path.read_bytes() == data  # few new payloads are not worth a new file
        assert path.stat().st_mode & 0o777 == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["cache"]


def test_it_is_written_anew_when_much_was_folded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        written(cluster, path)
        with_state(cluster, lambda state: fill(state, 30, 600, "later"))
        for name, value in (("_MUCH_BYTES", 5000), ("_MUCH_PAYLOADS", 10)):
            before = truth(cluster).lsn
            with_state(cluster, lambda state: fill(state, 15, 600, "again"))
            with monkeypatch.context() as patch:
                patch.setattr(loading, name, value)
                assert start(cluster, path) <= before + 1
            assert start(cluster, path) == before + 15 + 1


def test_it_is_damaged(path: Path) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        data = written(cluster, path)
        last = truth(cluster).lsn
        rng = random.Random(1)
        places = [*range(60), *(rng.randrange(len(data)) for _ in range(40)), *range(len(data) - 60, len(data), 3)]
        for at in places:
            for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]):
                path.write_bytes(damaged)
                assert start(cluster, path) == 1, at
                assert path.read_bytes()[: len(KIND.cache_magic)] == KIND.cache_magic
        for damaged in (b"", b"x" * 5000, data + b"more", data[:-1] + b"\xff\xff\xff\xff\xff"):
            path.write_bytes(damaged)
            assert start(cluster, path) in (1, last + 1)
        assert start(cluster, path) == last + 1  # mended each time


def test_it_is_of_another_cluster(path: Path) -> None:
    """A restored backup has a new cluster id, and another history from then on."""
    with Cluster(seed=1, servers=1) as cluster:
        written(cluster, path)
    with Cluster(seed=2, servers=1) as other:
        with_state(other, lambda state: fill(state, 30, 60, "other"))
        assert start(other, path) == 1
        assert start(other, path) == truth(other).lsn + 1


def test_it_is_of_another_state(path: Path) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        written(cluster, path)
        id = truth(cluster).state_id.hex()
        assert start(cluster, path, expect=id) == truth(cluster).lsn + 1
        with pytest.raises(WrongState):
            with_state(cluster, machine_of, cache=path, expect="00" * 16)
        assert start(cluster, path) == truth(cluster).lsn + 1


def test_it_is_older_than_the_log(path: Path) -> None:
    async def two_snapshots(state: State) -> None:
        for _ in range(3):
            await state.put("a", b"1")
            await state.snapshot(trim=True)

    with Cluster(seed=1, servers=1) as cluster:
        written(cluster, path)
        with cluster.connect_sync() as log:
            log.trim(truth(cluster).lsn + 1, force=True)
            log.append(b"next")
        assert start(cluster, path) == truth(cluster).lsn  # the cache ends just where the log begins
        with_state(cluster, two_snapshots, cache=path)
        data = path.read_bytes()
        assert start(cluster, path) < truth(cluster).lsn
        with cluster.connect_sync() as log:
            log.trim(truth(cluster).snapshot[0], force=True)  # type: ignore[index]
        assert start(cluster, path) == truth(cluster).snapshot[0] + 1  # type: ignore[index]
        assert path.read_bytes() != data
        assert start(cluster, path) == truth(cluster).lsn + 1


def test_it_is_ahead_of_the_log(path: Path) -> None:
    """The cache belongs to another history than the log: no log of the cache's history is so short."""
    with Cluster(seed=1, servers=1) as cluster:
        written(cluster, path)
        long = path.read_bytes()
        id = cluster._world.replicas()[0].cluster
    with Cluster(seed=1, servers=1) as again:
        assert again._world.replicas()[0].cluster == id
        with_state(again, lambda state: fill(state, 3, 60))
        path.write_bytes(long)
        assert start(again, path) == 1


@pytest.mark.parametrize("where", ["missing/cache", "directory", "file/cache"])
def test_it_cannot_be_written_or_read(tmp_path: Path, where: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, lambda state: fill(state, 3), cache=tmp_path / where)
        assert start(cluster, tmp_path / where) == 1
        assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]


def test_the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError("no space left on device")

    with Cluster(seed=1, servers=1) as cluster:
        data = written(cluster, path)
        monkeypatch.setattr(os, "fsync", full)
        monkeypatch.setattr(loading, "_MUCH_PAYLOADS", 0)
        with_state(cluster, lambda state: fill(state, 3), cache=path)
        assert path.read_bytes() == data and len(list(path.parent.iterdir())) == 1


def test_it_is_not_written_in_the_middle_of_a_command(path: Path) -> None:
    """A frozen machine lacks a command that waits for its values: payloads behind it would be folded wrongly."""
    async def work(state: State) -> None:
        await fill(state, 3)
        machine = await machine_of(state)
        payloads = codec.command([], [(int(codec.Do.PUT), "a", b"z" * 3000, 0)], 2048)
        assert len(payloads) > 2
        machine.apply(machine.lsn + 1, machine.time_ms, payloads[0])

    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, work, cache=path)
        assert not path.exists()


def test_nothing_is_written_of_a_log_without_a_state(path: Path) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, machine_of, cache=path)
        assert not path.exists()
        with cluster.connect_sync() as log:
            log.append(codec.found(b"S" * 16, Limits()))
        assert start(cluster, str(path)) == 1  # type: ignore[arg-type]
        assert start(cluster, path) == 2


def test_a_state_whose_start_was_wrong_is_not_kept(path: Path) -> None:
    with Cluster(seed=1, servers=1) as cluster:
        with_state(cluster, lambda state: fill(state, 3))
        with pytest.raises(WrongState):
            with_state(cluster, machine_of, cache=path, expect="11" * 16)
        assert not path.exists()
        assert plain(folded(cluster.log())) == plain(truth(cluster))
