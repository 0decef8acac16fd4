"""The append load: a number of appends kept in flight on each of several connections; callbacks measure latencies.

One wake-up serves all answers of one receive: the callbacks only count, and the refill happens once for all of them.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

import alpo
from alpo.client.handle import Handle

from .stats import Latencies, Result


@dataclass(frozen=True, slots=True)
class Load:
    """A load of ``outstanding`` appends in flight in all, over ``connections``; each append of ``batch`` payloads."""

    payload_bytes: int
    outstanding: int
    connections: int
    batch: int
    seconds: float

    def shares(self) -> list[int]:
        """Number of appends in flight on each connection, for those that have any."""
        each, more = divmod(self.outstanding, self.connections)
        return [share for n in range(self.connections) if (share := each + (n < more))]


@dataclass(slots=True)
class Tally:
    """Totals of all connections."""

    latencies: Latencies = field(default_factory=Latencies)
    done: int = 0
    errors: int = 0
    first_error: str = ""


async def last_lsn(servers: str, timeout_s: float) -> int:
    """The LSN of the last payload ever appended, including trimmed ones; 0 for none. Raises `AlpoError`."""
    async with alpo.connect(servers, timeout_s=timeout_s) as log:
        try:
            async for record in log.read(last=1):
                return record.lsn
            async for _ in log.read(1, 1):
                pass
        except alpo.OutOfRange as error:
            return error.first_lsn - 1
    return 0


class Group:
    """Appends sent together: they have one start time, and one callback that only counts."""

    def __init__(self, answered: Callable[[], None]) -> None:
        self.started_s = time.perf_counter()
        self.done = 0
        self.failed: list[Handle] = []
        self._answered = answered

    def count(self, handle: Handle) -> None:
        """Count an answered append."""
        if handle.lsn is None:
            self.failed.append(handle)
        self.done += 1
        if self.done == 1:
            self._answered()


class Window:
    """One connection's share: ``room`` appends kept in flight until told to stop."""

    def __init__(self, log: alpo.Log, payloads: list[bytes], room: int, tally: Tally) -> None:
        self._log = log
        self._payloads = payloads
        self._room = room
        self._tally = tally
        self._groups: list[tuple[Group, int]] = []  # with number in flight
        self._in_flight = 0
        self._answers = trio.Event()

    async def run(self, over: Callable[[], bool]) -> None:
        """Keep the appends in flight until ``over()``, then wait for the rest."""
        while not over():
            if self._room == 1:
                await self._one_after_another()
                continue
            self._fill(self._room - self._in_flight)
            await self._next_answers()
        while self._in_flight:
            await self._next_answers()

    def _fill(self, room: int) -> None:
        group = Group(self._answered)
        for _ in range(room):
            self._send().add_done_callback(group.count)
        self._groups.append((group, room))
        self._in_flight += room

    async def _one_after_another(self) -> None:
        """Make one append and wait for its answer, as a program would: there is no group to count."""
        tally, started_s = self._tally, time.perf_counter()
        try:
            if len(self._payloads) == 1:
                await self._log.append(self._payloads[0])
            else:
                await self._log.append_batch(self._payloads)
        except alpo.AlpoError as error:
            tally.errors += 1
            tally.first_error = tally.first_error or str(error)
        else:
            tally.done += 1
            tally.latencies.add(time.perf_counter() - started_s)

    def _send(self) -> Handle:
        if len(self._payloads) == 1:
            return self._log.append_nowait(self._payloads[0])
        return self._log.append_batch_nowait(self._payloads)

    def _answered(self) -> None:
        self._answers.set()

    async def _next_answers(self) -> None:
        await self._answers.wait()
        self._answers = trio.Event()
        self._count()

    def _count(self) -> None:
        """Count what has been answered since the last time."""
        now_s, tally = time.perf_counter(), self._tally
        open_groups = []
        for group, in_flight in self._groups:
            done, failed = group.done, group.failed
            group.done, group.failed = 0, []
            if done > len(failed):
                tally.latencies.add(now_s - group.started_s, done - len(failed))
            tally.done += done - len(failed)
            tally.errors += len(failed)
            for handle in failed:
                tally.first_error = tally.first_error or str(handle.error)
            self._in_flight -= done
            if in_flight > done:
                open_groups.append((group, in_flight - done))
        self._groups = open_groups


async def append_load(
    servers: str, load: Load, timeout_s: float, on_progress: Callable[[float, Tally], None]
) -> tuple[Result, str]:
    """Run the load. The clock starts once every connection has had its first append guaranteed.

    Returns the measurements and the first error's text ("" if none). Raises the errors of that first append.
    """
    # Thousands of handles are in flight at any time: no garbage to look for after every 700 objects.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    tally = Tally()
    payloads = [os.urandom(load.payload_bytes) for _ in range(load.batch)]
    shares = load.shares()
    ready = 0
    all_ready = trio.Event()
    started_s = 0.0

    async def one(share: int) -> None:
        nonlocal ready, started_s
        async with alpo.connect(servers, timeout_s=timeout_s) as log:
            await log.append(payloads[0])
            ready += 1
            if ready == len(shares):
                started_s = time.perf_counter()
                all_ready.set()
            await all_ready.wait()
            await Window(log, payloads, share, tally).run(lambda: time.perf_counter() >= started_s + load.seconds)

    async def report() -> None:
        await all_ready.wait()
        while True:
            await trio.sleep(0.2)
            on_progress(time.perf_counter() - started_s, tally)

    async with trio.open_nursery() as reporting:
        reporting.start_soon(report)
        async with trio.open_nursery() as connections:
            for share in shares:
                connections.start_soon(one, share)
        elapsed_s = time.perf_counter() - started_s
        reporting.cancel_scope.cancel()
    moved = tally.done * load.batch * load.payload_bytes
    return Result(tally.done, moved, elapsed_s, tally.latencies, tally.errors), tally.first_error
