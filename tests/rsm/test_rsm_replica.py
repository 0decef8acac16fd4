"""A user's machine over a simulated cluster: answers, reads, errors, snapshots, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from rsm_kit import Ledger, Refused, command, new_log, run, with_replicas

import alpo.rsm
from alpo.errors import TooLarge
from alpo.rsm import At, Diverged, NewerVersion, Replica, WrongMachine
from alpo.state import State
from alpo.testing import Cluster


def test_answers_reads_and_refusals() -> None:
    async def work(a: Replica[Ledger], b: Replica[Ledger]) -> None:
        assert await a.run(command("open", "x", 10)) == 10
        assert await b.read(lambda machine: machine.total) == 10
        assert await b.run(command("move", "x", "y", 4)) == [6, 4]
        with pytest.raises(Refused, match="x has 6"):
            await a.run(command("move", "x", "y", 7))
        with pytest.raises(ValueError, match="Expecting value"):
            await a.run(b"no json")
        with pytest.raises(RecursionError):
            await a.run(b"[" * 100_000)
        assert await b.run(command("sum")) == 10, "one bad command stops nobody"
        assert a.machine.accounts == {"x": 6, "y": 4}
        lsn, term, version = await a.run(command("at"))
        assert (lsn, version) == (a.lsn, 1) and term > 0
        status = await b.status()
        assert (status.name, status.version, status.lsn, status.snapshot) == ("ledger", 1, a.lsn, None)
        with pytest.raises(TooLarge):
            await a.run(bytes(2 << 20))

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, number=2)


def test_a_snapshot_and_a_late_starter() -> None:
    async def work(a: Replica[Ledger]) -> Any:
        for number in range(50):
            await a.run(command("open", f"account {number}", number))
        info = await a.snapshot()
        await a.run(command("move", "account 9", "account 1", 3))
        await a.log.set_cursor("machine", info.begin)
        await a.log.trim(info.begin)
        return info, a.machine.accounts

    async def late(b: Replica[Ledger]) -> Any:
        return await b.read(lambda machine: machine.accounts)

    with Cluster(seed=1) as cluster:
        info, accounts = with_replicas(cluster, work)
        assert info.begin == 52 and info.parts == 2
        assert with_replicas(cluster, late) == accounts


def test_large_and_many_items(tmp_path: Path) -> None:
    """Items of all sizes around that of a part; a machine of a megabyte, and an item of many parts."""
    async def work(a: Replica[Blobs]) -> Any:
        for size in (0, 1, 7000, 7100, 8192, 100_000):
            await a.run(b"%d" % size)
        info = await a.snapshot()
        return info, a.machine.blobs

    async def late(b: Replica[Blobs]) -> Any:
        return await b.read(lambda machine: machine.blobs)

    with Cluster(seed=1) as cluster:
        with cluster.connect_sync() as log:
            log.change_settings({"payload_bytes_max": 8192})
        info, blobs = with_replicas(cluster, work, Blobs)
        assert info.parts > 14
        with cluster.connect_sync() as log:
            log.set_cursor("machine", info.begin)
            log.trim(info.begin)
        assert with_replicas(cluster, late, Blobs, cache=tmp_path / "cache") == blobs
        assert with_replicas(cluster, late, Blobs, cache=tmp_path / "cache") == blobs, "from the cache"


class Blobs:
    """A list of zeros, of sizes as they are asked for."""

    def __init__(self, blobs: list[bytes] | None = None) -> None:
        self.blobs = blobs or []

    def apply(self, command: bytes, at: At) -> object:
        self.blobs.append(bytes(int(command)))
        return len(self.blobs)

    def items(self) -> Iterable[bytes]:
        return self.blobs

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return cls(list(items))

    def freeze(self) -> Self:
        return type(self)([*self.blobs])


class Wrong(Ledger):
    """A ledger that keeps a cent."""

    def apply(self, command: bytes, at: At) -> object:
        answer = super().apply(command, at)
        self.accounts["x"] -= 1
        return answer


def test_a_process_that_differs_stops_at_the_next_snapshot() -> None:
    async def work(right: Replica[Ledger], wrong: Replica[Wrong], other: Replica[Ledger]) -> None:
        for _ in range(5):
            await right.run(command("open", "x", 10))
        assert await other.read(lambda machine: machine.total) == 50
        assert await wrong.read(lambda machine: machine.total) == 45
        info = await right.snapshot()
        with pytest.raises(Diverged, match=rf"ended at LSN {info.end}; they agreed as of LSN 0"):
            await wrong.read(lambda machine: machine.total)
        with pytest.raises(Diverged):
            await wrong.snapshot()
        assert await other.run(command("sum")) == 50

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Ledger, Wrong, Ledger)


class Unloadable(Ledger):
    """A ledger that is never made of its items."""

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        next(iter(items))
        raise KeyError("no such account")


def test_a_load_that_fails_is_told() -> None:
    async def work(a: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 10))
        info = await a.snapshot()
        await a.log.set_cursor("machine", info.begin)
        await a.log.trim(info.begin)

    async def late(b: Replica[Any]) -> None:
        with pytest.raises(Diverged, match=r"load\(\) has failed on a whole snapshot: KeyError"):
            await b.read(lambda machine: machine)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work)
        with_replicas(cluster, late, Unloadable)


def test_another_machine_is_refused_by_name_before_anything_is_written() -> None:
    async def first(a: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 10))

    async def second(b: Replica[Blobs]) -> int:
        with pytest.raises(WrongMachine, match="this log holds the machine 'ledger', not 'blobs'"):
            await b.run(b"10")
        return await b.log.end()

    async def again(a: Replica[Ledger]) -> None:
        info = await a.snapshot()
        await a.log.set_cursor("machine", info.begin)
        await a.log.trim(info.begin)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, first)
        assert with_replicas(cluster, second, Blobs, name="blobs") == 3
        with_replicas(cluster, again)
        with_replicas(cluster, second, Blobs, name="blobs")  # from the snapshot


def test_answers_from_any_place() -> None:
    async def work(a: Replica[Ledger], b: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 10))
        await a.log.append(b"of somebody else")
        with pytest.raises(Refused):
            await a.run(command("move", "x", "y", 11))
        await a.run(command("move", "x", "y", 2))
        told: list[Any] = []
        async for at, answer in b.answers(start=3):
            told.append((at.lsn, answer if isinstance(answer, list) else type(answer)))
            if at.lsn == a.lsn:
                break
        assert told == [(4, Refused), (5, [8, 2])]

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, number=2)


@pytest.mark.parametrize("given", [{"name": ""}, {"name": "a b"}, {"version": 0}, {"version": 1 << 16}, {"name": 3}])
def test_wrong_arguments(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a machine's"):
        alpo.rsm.connect(Ledger, "127.0.0.1:1", **{"name": "ledger", **given})


def test_no_machine() -> None:
    with pytest.raises(TypeError, match="apply, items, load and freeze"):
        alpo.rsm.connect(dict, "127.0.0.1:1", name="x")  # type: ignore[type-var]


def test_a_newer_version_begins_once_older_code_is_silent() -> None:
    async def go() -> None:
        async with new_log(cluster, "old") as old_log, new_log(cluster, "new") as new_log_:
            old = Replica(old_log, Ledger, name="ledger", version=1)
            new = Replica(new_log_, Ledger, name="ledger", version=2)
            async with new:
                async with old:
                    for _ in range(100):
                        assert (await old.run(command("at")))[2] == 1
                        assert (await new.run(command("at")))[2] == 1
                        await anyio.sleep(1)
                began = new.time
                idle = Replica(old_log, Ledger, name="ledger", version=1)
                while (await new.run(command("at")))[2] == 1:
                    await anyio.sleep(1)
                assert (new.time - began).total_seconds() >= 59
                with pytest.raises(NewerVersion, match="is at version 2 as of LSN"):
                    await idle.read(lambda machine: machine.total)
                await idle.close()

    with Cluster(seed=1) as cluster:
        run(cluster, go)


def test_a_state_and_a_machine_need_logs_of_their_own() -> None:
    async def machine_first() -> None:
        async with new_log(cluster) as log, Replica(log, Ledger, name="ledger") as a:
            await a.run(command("open", "x", 10))
            async with State(log) as state:
                with pytest.raises(WrongMachine, match=r"a machine \(alpo.rsm\), founded at LSN 1: a state needs"):
                    await state.put("x", "1")
            assert await log.end() == 3

    async def state_first() -> None:
        async with new_log(cluster) as log, State(log) as state:
            await state.put("x", "1")
            async with Replica(log, Ledger, name="ledger") as a:
                with pytest.raises(WrongMachine, match=r"holds a state \(alpo.state\), founded at LSN 1: a machine"):
                    await a.run(command("open", "x", 10))
            assert await log.end() == 3

    for work in (machine_first, state_first):
        with Cluster(seed=1) as cluster:
            run(cluster, work)


class Drawn(Ledger):
    """A ledger that draws lots."""

    def apply(self, command: bytes, at: At) -> object:
        answer = super().apply(command, at)
        self.accounts["x"] += random.randrange(1 << 30)
        return answer


def test_a_machine_that_draws_lots_is_found_before_anything_is_trimmed() -> None:
    async def work(a: Replica[Drawn]) -> None:
        await a.run(command("open", "x", 10))
        with pytest.raises(Diverged, match="what the log gives if it is folded once more from LSN 1 on"):
            await a.snapshot(trim=True)
        with pytest.raises(Diverged):
            await a.run(command("sum"))
        assert all(cursor.lsn == 1 for cursor in await a.log.cursors())

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Drawn)


def test_trims_follow_on_snapshots() -> None:
    async def work(a: Replica[Ledger], b: Replica[Ledger]) -> None:
        begins = [0]
        for _ in range(4):
            for _ in range(10):
                await b.run(command("open", "x", 1))
            info = await a.snapshot(trim=True)
            assert info.first_lsn == max(1, begins[-1])
            begins.append(info.begin)
        await b.run(command("open", "x", 1))
        assert await a.read(lambda machine: machine.total) == 41

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, number=2)
        assert with_replicas(cluster, total_of) == 41


async def total_of(a: Replica[Ledger]) -> int:
    return await a.read(lambda machine: machine.total)
