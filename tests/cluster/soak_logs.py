"""Further logs in a soak: they are written and checked as the first one is, and besides:

* one of them is renamed again and again, under load;
* the store of one of them is lost, damaged or put back on a server that is down (`disk_faults`);
* another log is created, written and deleted all the while, under one name: each of them begins empty, with a number of
  its own; nothing that was acknowledged is missing while it lives; no append that began after the deletion was done is
  acknowledged, and none of its clients' appends comes into the next log of that name;
* in the end each server has the stores of the logs that there are, and no other, all of them sound, and about as many
  open files as in the beginning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import checkers
import trio
from checkers import Append, Logged, Outcome
from disk_faults import DiskFaults
from harness import Cluster
from probe import until
from workload import History

import alpo
from alpo.errors import AlpoError, NoSuchLog, NotGuaranteed
from alpo.offline import open_source, tell, verify

#: Seconds for a log to begin, or to go, under faults; those of one try.
WITHIN_S, TRY_S = 120.0, 5.0
#: Seconds between two renamings; of the life of a log that comes and goes.
RENAME_S, LIFE_S = (2.0, 8.0), (0.5, 5.0)
APPENDERS = 2
PACE_S = 0.02
PASSING = "passing"
#: Open files that a server may have more than in the beginning: connections of readers to its stores come and go.
FILES_MORE = 40


async def create(running: Cluster, count: int) -> list[History]:
    """Create logs; their histories."""
    found = []
    async with alpo.connect(running.addresses, timeout_s=WITHIN_S, log="") as log:
        for each in range(count):
            made = await log.create_log(f"log-{each}")
            found.append(History(made.name, made.number, f"{made.number}:"))
    for history in found:
        await running.level(WITHIN_S, history.log)
    return found


async def rename_on(running: Cluster, history: History, over: Callable[[], bool], seed: int) -> None:
    """Rename a log again and again."""
    rng, count = random.Random(f"{seed}/rename"), 0
    while not over():
        await trio.sleep(rng.uniform(*RENAME_S))
        count += 1
        new = f"renamed-{count}"
        while history.log != new:
            with suppress(AlpoError):  # the next look tells what became of it
                async with alpo.connect(running.addresses, timeout_s=TRY_S, log="") as log:
                    now = {each.number: each.name for each in await log.logs()}[history.number]
                    history.log = now if now == new else (await log.rename_log(now, new)).name


class Passing:
    """A log that is created, written and deleted again and again, under one name. ``problems``: violations."""

    def __init__(self, running: Cluster, seed: int, disks: DiskFaults) -> None:
        self.problems: list[str] = []
        self._running, self._disks = running, disks
        self._rng = random.Random(f"{seed}/{PASSING}")
        self._made = self._told = self._acknowledged = self._late = 0
        self._last_number = 0

    def __str__(self) -> str:
        return (
            f"{self._made} one after another, the deletion of {self._told} told as done, acknowledged"
            f" {self._acknowledged}, refused after the deletion {self._late}"
        )

    async def run(self, over: Callable[[], bool]) -> None:
        """Create and delete it until ``over()``. Clients of one stay until some while after the next one was made."""
        deleted: list[tuple[History, float]] = []
        async with trio.open_nursery() as nursery:
            before = trio.Event()
            while not over():
                history, ended = History(PASSING, prefix=f"{self._made}:"), trio.Event()
                self._disks.passing = history  # no harm is done to the disks while it begins
                await self._create(history)
                for number in range(APPENDERS):
                    await nursery.start(self._append_on, history, f"{PASSING}-{number}", ended.is_set)
                await trio.sleep(self._rng.uniform(*LIFE_S))
                before.set()
                await self._check(history)
                deleted.append((history, await self._delete()))
                self._disks.passing, before = None, ended
            before.set()
        for history, done_s in deleted:
            self._judge(history, done_s)

    async def _create(self, history: History) -> None:
        with trio.fail_after(WITHIN_S):
            while True:
                with suppress(AlpoError):
                    async with alpo.connect(self._running.addresses, timeout_s=TRY_S, log="") as log:
                        made = await log.create_log(PASSING, if_missing=True)
                    break
        if made.number <= self._last_number:
            self.problems.append(f"log {made.number} was made after log {self._last_number}")
        history.number = self._last_number = made.number
        self._made += 1

    async def _append_on(
        self, history: History, client: str, over: Callable[[], bool],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Append until ``over()``, by one `Log`, which has met this very log before it is deleted."""
        async with alpo.connect(self._running.addresses, client=client, timeout_s=TRY_S, log=PASSING) as log:
            with trio.fail_after(WITHIN_S):
                while True:
                    with suppress(AlpoError):
                        await log.end()
                        break
            task_status.started()
            number = 0
            while not over():
                number += 1
                append = Append(client, number, f"{history.prefix}{client}/{number}".encode(), trio.current_time())
                history.appends.append(append)
                try:
                    append.lsn = await log.append(append.payload)
                except NotGuaranteed:
                    pass
                except AlpoError as error:
                    append.outcome, append.error = Outcome.REFUSED, type(error).__name__
                else:
                    append.outcome, append.ended_s = Outcome.ACKNOWLEDGED, trio.current_time()
                await trio.sleep(PACE_S)

    async def _check(self, history: History) -> None:
        """Read the log before it goes: all that was acknowledged by now is there, once, and nothing else."""
        appends = [append for append in history.appends if append.outcome is Outcome.ACKNOWLEDGED]
        with suppress(AlpoError):
            async with alpo.connect(self._running.addresses, timeout_s=TRY_S, log=PASSING) as log:
                found = [Logged(r.lsn, r.client, r.serial, r.payload) async for r in log.read()]
            self._acknowledged += len(appends)
            for told in (
                checkers.gaps(found), checkers.lost(appends, found), checkers.doubled(found),
                checkers.refused(history.appends, found), checkers.foreign(history.appends, found),
                checkers.disordered(history.appends, found),
            ):
                self.problems += [f"log {history.number}: {each}" for each in told]

    async def _delete(self) -> float:
        """Delete the log. The time when that was told as done; infinite if it never was, though the log is gone."""
        with trio.fail_after(WITHIN_S):
            while True:
                with suppress(AlpoError):
                    async with alpo.connect(self._running.addresses, timeout_s=TRY_S, log="") as log:
                        try:
                            await log.delete_log(PASSING)
                        except NoSuchLog:
                            return float("inf")
                    self._told += 1
                    return trio.current_time()

    def _judge(self, history: History, done_s: float) -> None:
        """Look at what clients of a log were told after its deletion."""
        late = [append for append in history.appends if append.began_s > done_s]
        self._late += sum(append.outcome is Outcome.REFUSED for append in late)
        self.problems += [
            f"log {history.number}: {append.payload!r} was acknowledged at LSN {append.lsn}, though it began after the"
            " log's deletion was done" for append in late if append.outcome is Outcome.ACKNOWLEDGED
        ]


def open_files(running: Cluster) -> dict[int, int]:
    """The number of each server's open files, by its id."""
    return {id: server.count("fd") for id, server in running.servers.items()}


async def left_over(running: Cluster, others: Sequence[History], files: dict[int, int]) -> list[str]:
    """Stores of logs that are gone, those that are missing of logs that are there, and files that stay open."""
    wanted, found = [history.number for history in others], []

    def stores() -> dict[int, list[int]]:
        return {
            id: sorted(int(path.parent.name) for path in server.data.glob("logs/*/alpo.db"))
            for id, server in running.servers.items()
        }

    with suppress(trio.TooSlowError):
        await until(lambda: all(numbers == wanted for numbers in stores().values()), WITHIN_S)
    found += [f"server {id} has stores of logs {has}, not {wanted}" for id, has in stores().items() if has != wanted]
    for id, server in running.servers.items():
        moved = [path.name for path in server.data.glob("deleted/*") if not path.name.endswith("-retired")]
        found += [f"server {id} has moved {name}" for name in moved if int(name.partition("-")[0]) in wanted]

    def more() -> dict[int, int]:
        return {id: now - files[id] for id, now in open_files(running).items()}

    with suppress(trio.TooSlowError):
        await until(lambda: all(count <= FILES_MORE for count in more().values()), WITHIN_S)
    return found + [f"server {id} has {count} more open files" for id, count in more().items() if count > FILES_MORE]


def unsound(running: Cluster, histories: Sequence[History]) -> list[str]:
    """Faults that `alpo log verify` finds in the stores of servers that are stopped."""
    found = []
    for id, server in running.servers.items():
        for history in histories:
            with open_source(server.folder(history.number)) as source:
                verdict = verify(source)
            found += [f"server {id}, log {history.number}: {tell(fault)}" for fault in verdict.faults]
    return found
