"""Processes that share a journal under faults, held against a reading of the log that stands on nothing of `alpo.rsm`;
and mutations of the machinery's rules that this must catch.

Times are short here: a version is settled after 3 s of the log's clock, a grant lapses after 2 s, and a snapshot is due
after 3,000 bytes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.abc import TaskGroup
from journal import NO, Journal, Refused, Told, Truth, check_trims, fresh, journal

from alpo.errors import Closed, NotGuaranteed, OutOfRange, Overloaded, Unavailable
from alpo.rsm import Behind, Busy, NewerVersion, NotFounded, Replica, Unsettled
from alpo.testing import Cluster

#: Runs in the quick tests, and in the soak.
QUICK, LONG = 4, 1000
SETTLED_MS, STALE_MS = 3000, 2000
#: Errors after which a process goes on: nothing was done, or nobody knows.
PASSING = (Unavailable, Overloaded, NotGuaranteed, Unsettled)


class Wrong(AssertionError):
    """A report that the log contradicts."""


class Ran(NamedTuple):
    """A command that ended: with this answer, or None: nobody knows. ``since``: the number of entries that had been
    told to anybody before it began."""

    command: bytes
    answer: object
    since: int


class Saw(NamedTuple):
    """A read: all entries; ``since`` as of `Ran`."""

    entries: list[bytes]
    since: int


class World:
    """The processes of one run. ``told``: the most entries that anybody was told of."""

    def __init__(self, cluster: Cluster, seed: int, folder: Path) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.folder = folder
        self.ran: list[Ran] = []
        self.saw: list[Saw] = []
        self.outdated: list[tuple[bytes, NewerVersion]] = []
        self.settled: dict[str, tuple[bytes, object]] = {}
        self.answered: list[list[tuple[int, Any]]] = []
        self.told = 0
        self.marks = 0
        self.stats: Counter[str] = Counter()
        self.tasks: TaskGroup

    async def run(self, lives: list[list[int]]) -> None:
        """Run a process for each of ``lives``: one life after the other, each of code of that version."""
        async with anyio.create_task_group() as self.tasks:
            for number, versions in enumerate(lives):
                self.tasks.start_soon(self._live, number, versions)

    async def _live(self, number: int, versions: list[int]) -> None:
        cache = self.folder / f"cache{number}"
        for version in versions:
            dies_after_s = self.rng.uniform(0, 8) if self.rng.random() < 0.4 else None
            with anyio.move_on_after(dies_after_s), suppress(NewerVersion):
                log = self.cluster._new_log(None, 2.0, 10_000, 32 << 20)
                how: dict[str, Any] = {"snapshots": self.rng.choice(["auto", "off"])}
                if self.rng.random() < 0.7:
                    how["cache"] = cache
                async with log, journal(log, version=version, timeout_s=2.0, **how) as replica:
                    await Process(self, replica, version).live()


class Process:
    """One life of a process: what it does, and what it is told."""

    def __init__(self, world: World, replica: Replica[Journal], version: int) -> None:
        self.world = world
        self.replica = replica
        self.version = version
        self.unknown: list[bytes] = []

    async def live(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.3:
            self.world.tasks.start_soon(self.listen)
        for _ in range(10):
            job = rng.choices([self.command, self.read, self.snapshot, self.burst, self.settle], [6, 3, 1, 1, 1])[0]
            try:
                await job()
            except PASSING as error:
                self.world.stats[type(error).__name__] += 1
            await self.replica.log.clock.sleep(rng.uniform(0, 0.8))

    async def command(self) -> None:
        world = self.world
        world.marks += 1
        kind = NO if world.rng.random() < 0.2 else b""
        mark = b"%s%d.%d " % (kind, self.version, world.marks)
        if world.rng.random() < 0.3:
            mark = mark.ljust(world.rng.randrange(1500), b".")
        since, answer = world.told, None
        try:
            answer = await self.replica.run(mark)
        except Refused as error:
            answer = error.args
        except NewerVersion as error:
            world.outdated.append((mark, error))
            raise
        finally:
            world.ran.append(Ran(mark, answer, since))
            if isinstance(answer, tuple):
                world.told = max(world.told, answer[0] + (kind == b""))
                world.stats["ran"] += 1
            else:
                self.unknown.append(mark)

    async def burst(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(self._quietly, self.command)

    async def _quietly(self, job: Callable[[], Awaitable[None]]) -> None:
        with suppress(*PASSING, NewerVersion):
            await job()

    async def read(self) -> None:
        since = self.world.told
        entries = await self.replica.read(lambda machine: [*machine.entries])
        self.world.told = max(self.world.told, len(entries))
        self.world.saw.append(Saw(entries, since))

    async def snapshot(self) -> None:
        with suppress(Busy, NotFounded):
            await self.replica.snapshot(trim=self.world.rng.random() < 0.8)
            self.world.stats["snapshot"] += 1

    async def settle(self) -> None:
        for serial, outcome in (await self.replica.settle()).items():
            self.world.settled[f"{id(self)}/{serial}"] = b"", outcome
            self.world.stats["settled"] += 1

    async def listen(self) -> None:
        """Follow the answers, from the beginning or from now on."""
        got: list[tuple[int, Any]] = []
        self.world.answered.append(got)
        with suppress(OutOfRange, Behind, NewerVersion, Closed, *PASSING), anyio.move_on_after(5):
            async for at, answer in self.replica.answers(self.world.rng.choice([None, 1])):
                got.append((at.lsn, answer.args if isinstance(answer, Refused) else answer))


# -- judgement ------------------------------------------------------------------------------------------------


def judge(world: World, right: Truth) -> None:
    """Hold every report against the log. Raises `Wrong`."""
    for command, places in right.places.items():
        if len(places) > 1:
            raise Wrong(f"{command[:9]!r} is in the log {len(places)} times")
    told = {command: right.told[places[0]] for command, places in right.places.items()}
    for ran in world.ran:
        judge_answer(ran, told.get(ran.command))
    for command, error in world.outdated:
        where = told.get(command)
        if where is not None and where.answer is not None:
            raise Wrong(f"{command[:9]!r} was told as outdated at {error.lsn}, and was applied at {where}")
    for saw in world.saw:
        if saw.entries != right.entries[: len(saw.entries)]:
            raise Wrong(f"a read gave {saw.entries[-2:]}, and the log says otherwise")
        if len(saw.entries) < saw.since:
            raise Wrong(f"a read gave {len(saw.entries)} entries, after {saw.since} had been told")
    for _, outcome in world.settled.values():
        if isinstance(outcome, int) and (outcome not in right.told or right.told[outcome].answer is None):
            raise Wrong(f"settled at {outcome}, where nothing was done")
    for got in world.answered:
        wanted = [(lsn, each.answer) for lsn, each in right.told.items() if each.answer is not None]
        wanted = [each for each in wanted if got and got[0][0] <= each[0] <= got[-1][0]]
        if [(lsn, tuple(answer)) for lsn, answer in got] != wanted:
            raise Wrong(f"the answers are not those of the log: {got[:3]}, {wanted[:3]}")


def judge_answer(ran: Ran, told: Told | None) -> None:
    if ran.answer is None:
        return
    if told is None or told.answer != ran.answer:
        raise Wrong(f"{ran.command[:9]!r} was answered {ran.answer}, and the log says {told}")
    if told.answer is not None and told.answer[0] < ran.since:
        raise Wrong(f"{ran.command[:9]!r} is entry {told.answer[0]}, and {ran.since} had been told before")


LIVES = [[1, 1, 2, 2], [1, 2, 2], [2, 1, 2], [1, 1, 1]]


def one_run(seed: int, folder: Path, faults: bool = True) -> Counter[str]:
    """Run a world, and judge it; returns counts of what happened. Raises `Wrong`, and what the cluster finds."""
    folder.mkdir()
    with Cluster(seed=seed, faults=faults, fault_every_s=1.0) as cluster:
        world = World(cluster, seed, folder)
        cluster._running().spawn(partial(world.run, LIVES)).result()
        cluster.heal()
        right = Truth(cluster.log())
        judge(world, right)
        check_trims(cluster)
        if right.version:
            machine = fresh(cluster)
            world.stats["version"] = machine.version
            world.stats["invalid"] = machine.invalid
        return world.stats


def short_times(patch: pytest.MonkeyPatch) -> None:
    for name in ("hosted", "replica"):
        patch.setattr(f"alpo.rsm.{name}.SETTLED_MS", SETTLED_MS)
    for name in ("machine", "snapshots"):
        patch.setattr(f"alpo.rsm.{name}.UPLOAD_STALE_MS", STALE_MS)
    for name, value in {"DUE_BYTES": 3000, "WAIT_S": 0.5, "RETRY_S": 1.0, "IN_FLIGHT_BYTES": 1}.items():
        patch.setattr(f"alpo.rsm.snapshots.{name}", value)
    patch.setattr("alpo.rsm.replica._WAIT_S", 0.5)
    patch.setattr("alpo.rsm.snapshots.part_bytes_max", lambda payload_bytes_max: 2000)
    patch.setattr("journal.SETTLED_MS", SETTLED_MS)


def test_no_report_contradicts_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short_times(monkeypatch)
    stats: Counter[str] = Counter()
    for seed in range(QUICK):
        stats += one_run(seed, tmp_path / str(seed))
    print(stats)
    assert stats["ran"] > 20 * QUICK and stats["snapshot"] > QUICK, f"little happened: {stats}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_report_contradicts_the_log_in_many_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short_times(monkeypatch)
    for seed in range(QUICK, LONG):
        one_run(seed, tmp_path / str(seed))
