"""Writers and readers that go on whatever happens to the cluster, and write down what they were told.

Laws:

* Every payload is one of its own: "NAME/NUMBER", the numbers of a name going up, behind the prefix of the log; a few
  are filled up with blanks.
* What is not known is written down as unknown: an append under way when its `Log` is abandoned, `NotGuaranteed` until
  `settle` says more.
* A name is opened again and again: after an orderly close, after the "process" was gone in the middle of
  everything, and while the one before still writes, which is then fenced.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import trio
from checkers import Append, Logged, Outcome, Read
from probe import until

import alpo
from alpo.client.handle import Handle
from alpo.errors import AlpoError, NotGuaranteed, OutOfRange

LIFE_S = (2.0, 12.0)
TIMEOUT_S = (0.5, 6.0)
IN_FLIGHT_MAX = 16
#: Appends of one writer a second, at most.
PACE = 60.0
READ_BACK = 20
#: One of so many payloads is large, so that slow links have much to carry; bytes of a large payload, at most.
LARGE_OF, LARGE_BYTES = 1000, 300_000
SETTLE_S = 5.0
FOLLOWER = "follower"
CURSOR_S = 0.5


class History:
    """Answers that all clients of a log received. ``problems``: events that must not happen, whatever the log holds.
    ``log``: its name at this moment, "": the first; ``prefix``: of its payloads."""

    def __init__(self, log: str = "", number: int = 1, prefix: str = "") -> None:
        self.log, self.number, self.prefix = log, number, prefix
        self.appends: list[Append] = []
        self.reads: list[Read] = []
        self.problems: list[str] = []
        self.errors: Counter[str] = Counter()
        self.fenced = 0
        #: All of the log, from LSN 1 on, whatever is trimmed or cleaned meanwhile: see `follow_on`.
        self.followed: list[Logged] = []
        #: LSN at which the follower's cursor is known to stand.
        self.cursor_lsn = 0
        #: First LSN that the last trim leaves.
        self.trimmed_lsn = 1

    def count(self, outcome: Outcome) -> int:
        return sum(append.outcome is outcome for append in self.appends)


class Writer:
    """The client, or clients, that append under one name."""

    def __init__(self, servers: str, name: str, seed: int, history: History) -> None:
        self._servers = servers
        self._name = name
        self._rng = random.Random(f"{seed}/{history.prefix}{name}")
        self._history = history
        self._number = 0
        self._over = False

    def finish(self) -> None:
        """Begin nothing new."""
        self._over = True

    async def run(self) -> None:
        """One session after another until `finish`."""
        while not self._over:
            with trio.CancelScope() as process:
                async with AsyncExitStack() as stack:
                    log, by_serial = await self._session(stack)
                    how = "close" if self._over else self._rng.choice(("close", "abandon", "take over", "take over"))
                    if how == "abandon":
                        process.cancel()  # like a killed process: nothing is waited for
                        await trio.lowlevel.checkpoint()
                    elif how == "close":
                        await self._settle(log, by_serial)
                    else:
                        await self._take_over(stack, log)

    async def _session(self, stack: AsyncExitStack) -> tuple[alpo.Log, dict[int, Append]]:
        """Open the name and append for a while. The appends by serial, once they have one."""
        rng, name = self._rng, self._history.log
        log = await stack.enter_async_context(
            alpo.connect(self._servers, client=self._name, timeout_s=rng.uniform(*TIMEOUT_S), log=name)
        )
        by_serial: dict[int, Append] = {}
        under_way: set[Append] = set()
        until_s = trio.current_time() + rng.uniform(*LIFE_S)
        in_flight_max = rng.choice((1, 4, IN_FLIGHT_MAX))
        while trio.current_time() < until_s and not self._over and name == self._history.log:
            if len(under_way) < in_flight_max and not self._append(log, by_serial, under_way):
                break
            await trio.sleep(rng.expovariate(PACE))
        return log, by_serial

    def _append(self, log: alpo.Log, by_serial: dict[int, Append], under_way: set[Append]) -> bool:
        """Start one append, the newest of the history. False: the session takes no more."""
        self._number += 1
        payload = f"{self._history.prefix}{self._name}/{self._number}".encode()
        if self._rng.randrange(LARGE_OF) == 0:
            payload = payload.ljust(self._rng.randrange(LARGE_BYTES))
        append = Append(self._name, self._number, payload, trio.current_time())
        self._history.appends.append(append)
        try:
            handle = log.append_nowait(append.payload)
        except AlpoError as error:
            self._refuse(append, error)
            return False
        under_way.add(append)

        def note(handle: Handle) -> None:
            under_way.discard(append)
            if handle.serial:
                by_serial[handle.serial] = append
            self._note(append, handle.lsn, handle.error)

        handle.add_done_callback(note)
        return True

    def _note(self, append: Append, lsn: int | None, error: AlpoError | None) -> None:
        """Record the append's outcome, as far as it is known now."""
        if isinstance(error, NotGuaranteed):
            self._history.errors["NotGuaranteed"] += 1
        elif error is not None:
            self._refuse(append, error)
        else:
            append.outcome, append.lsn, append.ended_s = Outcome.ACKNOWLEDGED, lsn or 0, trio.current_time()

    def _refuse(self, append: Append, error: AlpoError) -> None:
        self._history.errors[type(error).__name__] += 1
        append.outcome, append.error = Outcome.REFUSED, type(error).__name__

    async def _settle(self, log: alpo.Log, by_serial: dict[int, Append]) -> None:
        try:
            settled = await log.settle(SETTLE_S)
        except AlpoError:
            return
        for serial, what in settled.items():
            append = by_serial.get(serial)
            if append is not None and append.outcome is Outcome.UNKNOWN:
                error = what if isinstance(what, AlpoError) else None
                self._note(append, None if error is not None else what, error)  # type: ignore[arg-type]

    async def _take_over(self, stack: AsyncExitStack, older: alpo.Log) -> None:
        """Let a second process of the name append; the first one's later appends must be refused."""
        try:
            await older.opened()  # else it may well be the one that opens later
            newer = await stack.enter_async_context(
                alpo.connect(self._servers, client=self._name, log=self._history.log)
            )
            await newer.opened()
        except AlpoError:
            return
        under_way: set[Append] = set()
        self._append(newer, {}, under_way)
        self._append(older, {}, under_way)
        late = self._history.appends[-1]
        await until(lambda: not under_way, math.inf)
        if late.outcome is Outcome.ACKNOWLEDGED:
            self._history.problems.append(f"{late.payload!r} was appended by a fenced session")
        self._history.fenced += late.error == "Fenced"


async def read_on(servers: str, history: History, over: Callable[[], bool], seed: int) -> None:
    """Read the end of the log by linearizable reads, one after another."""
    rng = random.Random(seed)
    while not over():
        name = history.log
        async with alpo.connect(servers, log=name) as log:
            for _ in range(rng.randint(1, 100)):
                if over() or name != history.log:
                    break
                began_s = trio.current_time()
                try:
                    records = [record async for record in log.read(last=READ_BACK, timeout_s=rng.uniform(*TIMEOUT_S))]
                except AlpoError as error:
                    history.errors[f"read: {type(error).__name__}"] += 1
                else:
                    end_lsn = records[-1].lsn if records else 0
                    payloads = {record.lsn: record.payload for record in records}
                    history.reads.append(Read(began_s, trio.current_time(), end_lsn, payloads))
                await trio.sleep(rng.expovariate(20))


async def follow_on(servers: str, history: History) -> None:
    """Follow the log from the first LSN on, for ever: no gap, no repeat, whichever server answers."""
    while True:
        name = history.log
        async with alpo.connect(servers, log=name) as log:
            while name == history.log:
                try:
                    async for record in log.follow(start=len(history.followed) + 1):
                        if record.lsn != len(history.followed) + 1:
                            history.problems.append(f"follow: LSN {record.lsn} after {len(history.followed)}")
                            return
                        history.followed.append(Logged(record.lsn, record.client, record.serial, record.payload))
                except OutOfRange as error:
                    history.problems.append(f"follow: {error}, although a cursor kept it")
                    return
                except AlpoError as error:
                    history.errors[f"follow: {type(error).__name__}"] += 1


async def keep_place(
    servers: str, history: History, over: Callable[[], bool],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep payloads that `follow_on` has yet to read, whatever retention says. Started once its cursor is set."""
    while not over():
        name = history.log
        async with alpo.connect(servers, log=name) as log:
            while not over() and name == history.log:
                lsn = len(history.followed) + 1
                try:
                    await log.set_cursor(FOLLOWER, lsn)
                    if not history.cursor_lsn:
                        task_status.started()
                    history.cursor_lsn = lsn
                except AlpoError as error:
                    history.errors[f"cursor: {type(error).__name__}"] += 1
                await trio.sleep(CURSOR_S)
