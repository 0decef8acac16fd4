"""A world of processes that share a state, on a simulated cluster with faults, and what must hold of their reports.

Every process is a real client with a `State` of its own, in the cluster's own loop on virtual time. Whatever it is told
goes into `World.reports`, and is held against the whole log, from LSN 1 and past all trims.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup
from model_judge import Answer, Fetched, Fold, Folded, Report, Row, Write, Wrong, judge

from alpo.client.log import Log
from alpo.errors import Closed, NotGuaranteed, Overloaded, Unavailable
from alpo.registry import Admit, Deposed, NotInitialised, Readmit, Registry, Reject, Remove
from alpo.state import Busy, Changed, Expunge, If, LockLost, NotFounded, Put, State, Unsettled, Variable
from alpo.state.codec import Do, command
from alpo.state.recipes import Lock
from alpo.state.variable import Operation
from alpo.testing import Cluster

#: Errors after which a process goes on: nothing was done, or nobody knows.
PASSING = (Unavailable, Overloaded, NotGuaranteed, Unsettled)


Job: TypeAlias = Callable[["Process"], Awaitable[None]]


class World:
    """The processes of one run. ``told_lsn``: the highest LSN that anybody was told."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.reports: list[Report] = []
        self.added: list[int] = []
        self.add_attempts = 0
        self.told_lsn = 0
        self.marks = 0
        self.stats: Counter[str] = Counter()
        self.tasks: TaskGroup

    # -- processes ------------------------------------------------------------------------------------------

    async def run(self, jobs: list[list[Job]], kills: int) -> None:
        """Run a process for each list of jobs; kill ``kills`` of them somewhere."""
        async with anyio.create_task_group() as self.tasks:
            for each in jobs:
                self.tasks.start_soon(self._live, each, self.rng.uniform(0, 6) if kills > 0 else None)
                kills -= 1

    async def _live(self, jobs: list[Job], dies_after_s: float | None) -> None:
        with anyio.move_on_after(dies_after_s):
            log = self.cluster._new_log(None, 2.0, 10_000, 32 << 20)
            async with log, State(log, timeout_s=2.0) as state:
                process = Process(self, log, state, f"p{self.rng.randrange(1 << 30)}")
                for job in jobs:
                    try:
                        await job(process)
                    except PASSING as error:
                        self.stats[type(error).__name__] += 1
                    process.report_fold()
                    await process.pause(0.2)


class Process:
    """One process: its jobs' view of the world."""

    def __init__(self, world: World, log: Log, state: State, name: str) -> None:
        self.world = world
        self.log = log
        self.state = state
        self.folder = state._folder
        self.name = name

    async def pause(self, most_s: float) -> None:
        await self.log.clock.sleep(self.world.rng.uniform(0, most_s))

    async def fetch(self, name: str) -> Variable:
        since = self.world.told_lsn
        variable = await self.state.fetch(name)
        self.world.told_lsn = max(self.world.told_lsn, self.state.lsn)
        self.world.reports.append(Fetched(self.name, name, variable.version, self.state.lsn, since))
        return variable

    async def commit(self, guards: list[If], operations: list[Operation]) -> int:
        lsn = await self.state.commit(guards, operations)
        self.world.told_lsn = max(self.world.told_lsn, lsn)
        return lsn

    def report_fold(self) -> None:
        """Tell what has been folded so far."""
        machine = self.folder.machine
        if machine is not None:
            self.world.reports.append(Folded(self.name, machine.lsn, machine.digest))

    async def write(self, name: str, guards: list[If]) -> int | None:
        """Put a value that is in no other write; returns its LSN, or None if it was refused."""
        world = self.world
        world.marks += 1
        mark = f"{self.name}.{world.marks}".encode()
        since, lsn = world.told_lsn, -1
        absent = any(guard.version == 0 or guard.created == 0 for guard in guards)
        try:
            lsn = await self.commit(guards, [Put(name, mark)])
            return lsn
        except Changed:
            lsn = 0
            return None
        finally:
            told = lsn if lsn > 0 else None if lsn == 0 else -1
            world.reports.append(Write(self.name, name, mark, told, since, len(world.cluster.log()), absent))
            world.stats["unknown" if lsn < 0 else "refused" if lsn == 0 else "done"] += 1


# -- jobs -----------------------------------------------------------------------------------------------------


async def update(process: Process) -> None:
    """Write a variable only if it is as fetched, until that succeeds."""
    for _ in range(5):
        variable = await process.fetch("n")
        await process.pause(0.1)
        if await process.write("n", [If("n", version=variable.version)]) is not None:
            return


async def make(process: Process) -> None:
    """Make a variable if it is not there, without a look before."""
    await process.pause(0.05)
    await process.write("n", [If("n", version=0)])


async def take_away(process: Process) -> None:
    """Take a variable away if it is as fetched, so that its versions go up and down between LSNs and none."""
    variable = await process.fetch("n")
    if variable.version:
        with suppress(Changed):
            await process.commit([If("n", version=variable.version)], [Expunge("n")])


async def add(process: Process) -> None:
    """Count one."""
    process.world.add_attempts += 1
    process.world.added.append(await process.state.add("count", 1))


async def lock(process: Process) -> None:
    """Hold a lock for a while, and write rows under its token."""
    held = Lock(process.state, "lock", ttl_s=1.5, value=process.name)
    try:
        await held.acquire(timeout_s=5)
        token = held.token
        rows = process.state.rows("lock", fence=token)
        try:
            for _ in range(3):
                await process.pause(1.0)
                process.world.marks += 1
                lsn = await rows.put("row", str(process.world.marks))
                process.world.reports.append(Row(token, lsn))
                process.world.stats["row"] += 1
        finally:
            if process.world.rng.random() < 0.7:
                await held.release()
    except (Changed, LockLost):
        process.world.stats["lock lost"] += 1


async def careless(process: Process) -> None:
    """Write a row of the lock's without holding it, past the library's own check."""
    (payload,) = command([], [(int(Do.PUT), "lock\0row", b"careless", 0)], 1 << 20)
    await process.state._need_founded([], process.state._folder.until_s())
    await process.folder.result_of(process.folder.enter([payload], timeout_s=10))


async def snapshot(process: Process) -> None:
    """Write a snapshot, and trim what it makes superfluous."""
    with suppress(Busy, NotFounded):
        await process.state.snapshot(trim=True)
        process.world.stats["snapshot"] += 1


async def registrar(process: Process) -> None:
    """Lead a registry for a while; report what is told of one agent that others admit and remove as well."""
    world = process.world
    try:
        async with Registry(process.state, "reg", recover_timeout_s=5, write_timeout_s=3) as registry:
            for _ in range(4):
                operation = world.rng.choice((Admit, Readmit, Remove))
                since = world.told_lsn
                try:
                    told = await registry.apply(operation("x"))
                except Reject:
                    told = False
                world.told_lsn = max(world.told_lsn, process.state.lsn)
                world.reports.append(Answer(operation.__name__, told, registry.token, since, process.state.lsn))
                world.stats["answer"] += 1
                await process.pause(0.3)
    except (Deposed, Closed, NotInitialised):
        world.stats["deposed"] += 1


async def fresh_start(cluster: Cluster) -> None:
    """A new process starts, and has what the whole log says. Raises `Wrong`."""
    log = cluster._new_log(None, 5.0, 10_000, 32 << 20)
    async with log, State(log, timeout_s=10.0) as state:
        machine = await state._folder.now()
        fold = Fold(cluster.log(), set())
        if machine.lsn == fold.machine.lsn and machine.freeze() != fold.machine.freeze():
            raise Wrong(f"a fresh start at {machine.lsn} is not the fold of the whole log")


def one_run(seed: int, jobs: list[list[Job]], *, kills: int, faults: bool) -> Counter[str]:
    """Run a world, and judge it; returns counts of what happened. Raises `Wrong`, and what the cluster finds."""
    with Cluster(seed=seed, faults=faults, fault_every_s=0.7) as cluster:
        world = World(cluster, seed)
        cluster._running().spawn(partial(world.run, jobs, kills)).result()
        cluster.heal()
        cluster._running().spawn(partial(fresh_start, cluster)).result()
        judge(world.reports, cluster.log(), world.added, world.add_attempts)
        return world.stats


class Scene(NamedTuple):
    """The jobs of each process, processes that are killed somewhere, and whether the cluster has faults."""

    jobs: list[list[Job]]
    kills: int = 0
    faults: bool = True

    def run(self, seed: int) -> Counter[str]:
        """Run it once, and judge it; returns counts of what happened. Raises `Wrong`, and what the cluster finds."""
        return one_run(seed, self.jobs, kills=self.kills, faults=self.faults)


SCENES = {
    "update": Scene([[update, update], [update, update], [update]], kills=1),
    "add": Scene([[add, add, update], [add, update], [add, add]], kills=1),
    "churn": Scene([[make] * 6, [take_away] * 8, [make, take_away, make, take_away]]),
    "careless": Scene([[lock], [careless, lock], [careless]]),
    "snapshot": Scene(
        [[add, snapshot, update, snapshot, add, snapshot], [update, snapshot, add, snapshot], [add, update, snapshot]],
        kills=1,
    ),
    "registry": Scene([[registrar, registrar], [registrar, registrar], [registrar, snapshot, snapshot]], kills=1),
    "lock": Scene([[lock, lock], [lock, lock], [lock]], kills=1),
}
