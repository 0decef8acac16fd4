"""Loads, and what is measured of them: latencies in buckets 1 % apart, from 1 µs to 1,000 s, and the exact maximum.

The append load: a number of appends kept in flight on each of several connections; callbacks measure latencies.
The read load: the whole log, from its first payload to its end, again and again. The failovers: the leader stopped, the
appends meanwhile timed, the server started again; several rounds.

In the append load one wake-up serves all answers of one receive: the callbacks only count, and the refill happens
once for all of them.

In a failover one append after the other is made, from the signal on until one that began after the leader's process
had ended is guaranteed. A round's figure is the longest of them: after SIGKILL that is the first, from the signal until
another server leads; after SIGTERM it is whatever the handover cost. Other appends may be kept in flight meanwhile.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

import alpo
from alpo.client.handle import Handle
from alpo.storage.timings import Histogram

from ..exits import Failed
from ..local_cluster import LocalCluster, caught_up_within

#: Payloads that an empty log is filled with before it is read.
FILL_PAYLOADS = 20_000
LEVEL_WITHIN_S = 30.0
_SETTLE_S = 0.3
#: Upper ends of the buckets.
_BOUNDS_S = tuple(1e-6 * math.exp(bucket / 100) for bucket in range(int(math.log(1e9) * 100) + 2))


class Latencies(Histogram):
    """Histogram of operations' durations in seconds."""

    def __init__(self) -> None:
        super().__init__(_BOUNDS_S)

    @property
    def count(self) -> int:
        """The number of operations."""
        return sum(self.counts)

    def bars(self, bars_max: int) -> list[tuple[float, float, int]]:
        """(from_s, to_s, count) over the range that occurred, in at most ``bars_max`` equal steps of a log scale."""
        seen = [bucket for bucket, count in enumerate(self.counts) if count]
        if not seen:
            return []
        first, past, edges = seen[0], seen[-1] + 1, (_BOUNDS_S[0] / 1.01, *_BOUNDS_S, _BOUNDS_S[-1] * 1.01)
        step = max(1, math.ceil((past - first) / bars_max))
        return [
            (edges[at], edges[min(at + step, len(edges) - 1)], sum(self.counts[at : at + step]))
            for at in range(first, past, step)
        ]


@dataclass(slots=True)
class Result:
    """Result of a bench. An operation is one append (with ``--batch`` one batch) or one record read."""

    operations: int
    payload_bytes: int
    elapsed_s: float
    latencies: Latencies
    errors: int

    def fields(self) -> dict[str, float | int]:
        """The JSON keys that scripts rely on: rates per second, MB = 10^6 bytes of payload, latencies in ms."""
        def ms(seconds: float) -> float:
            return round(seconds * 1000, 3)

        at = self.latencies.percentile
        return {
            "ops_per_s": round(self.operations / self.elapsed_s, 1) if self.elapsed_s else 0.0,
            "mb_per_s": round(self.payload_bytes / self.elapsed_s / 1e6, 3) if self.elapsed_s else 0.0,
            "p50_ms": ms(at(0.5)), "p99_ms": ms(at(0.99)), "p999_ms": ms(at(0.999)), "max_ms": ms(self.latencies.most),
            "errors": self.errors,
        }


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


async def fill_if_empty(servers: str, payload_bytes: int, outstanding: int, batch: int, timeout_s: float) -> int:
    """Append payloads if the log is empty; returns how many. Raises `AlpoError`."""
    async with alpo.connect(servers, timeout_s=timeout_s) as log:
        async for _ in log.read(last=1):
            return 0
        payloads = [os.urandom(payload_bytes) for _ in range(batch)]
        under_way: deque[Handle] = deque()
        for _ in range(math.ceil(FILL_PAYLOADS / batch)):
            if len(under_way) == outstanding:
                await under_way.popleft()
            under_way.append(log.append_batch_nowait(payloads))
        for handle in under_way:
            await handle
    return math.ceil(FILL_PAYLOADS / batch) * batch


async def read_load(
    servers: str, connections: int, seconds: float, local: bool, timeout_s: float,
    on_progress: Callable[[float, int], None],
) -> Result:
    """Read for ``seconds``. A latency is that of one page, from the request until it is there. Raises Failed for an
    empty log, `AlpoError`."""
    latencies = Latencies()
    records = moved = 0
    clock = time.perf_counter
    started_s = clock()

    async def one() -> None:
        nonlocal records, moved
        async with alpo.connect(servers, timeout_s=timeout_s) as log:
            while clock() - started_s < seconds:
                asked_s, found = clock(), 0
                async for page in log.read_batches(local=local):
                    latencies.add(clock() - asked_s)
                    found += len(page)
                    moved += sum(len(record.payload) for record in page)
                    on_progress(clock() - started_s, records + found)
                    if clock() - started_s >= seconds:
                        break
                    asked_s = clock()
                records += found
                if not found:
                    raise Failed("the log is empty: nothing to read")

    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(one)
    return Result(records, moved, clock() - started_s, latencies, 0)


@dataclass(slots=True)
class Rounds:
    """Measurements: the longest append of each round, in seconds."""

    waits_s: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        ordered = sorted(self.waits_s)
        middle = len(ordered) // 2
        median_s = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return round(median_s * 1000, 1)

    @property
    def max_ms(self) -> float:
        return round(max(self.waits_s) * 1000, 1)


async def failover(
    cluster: LocalCluster, rounds: int, signal_number: signal.Signals, load: Load,
    on_round: Callable[[int, float], None],
) -> tuple[Result, Rounds]:
    """Measure, while ``load`` is kept up beside the timed appends (``load.seconds``: longest time for a round).

    Raises Failed if the cluster does not come back, NotGuaranteed if a round takes too long.
    """
    tally, measured = Tally(), Rounds()
    payloads = [os.urandom(load.payload_bytes) for _ in range(load.batch)]
    started_s = time.perf_counter()
    async with alpo.connect(cluster.addresses, timeout_s=load.seconds) as log:
        async with trio.open_nursery() as beside:
            stop = trio.Event()
            for share in load.shares():
                beside.start_soon(_keep_up, cluster.addresses, load, payloads, share, tally, stop)
            for number in range(1, rounds + 1):
                leader = await caught_up_within(cluster, LEVEL_WITHIN_S, steady=load.outstanding == 0)
                await log.append_batch(payloads)
                # A server that has just come back counts only once it is connected to all others.
                await trio.sleep(_SETTLE_S)
                measured.waits_s.append(await _one_round(cluster, leader, signal_number, log, payloads, tally))
                on_round(number, measured.waits_s[-1])
            stop.set()
    await caught_up_within(cluster, LEVEL_WITHIN_S)
    elapsed_s = time.perf_counter() - started_s
    latencies = Latencies()
    for wait_s in measured.waits_s:
        latencies.add(wait_s)
    moved = tally.done * load.batch * load.payload_bytes
    return Result(tally.done, moved, elapsed_s, latencies, tally.errors), measured


async def _keep_up(servers: str, load: Load, payloads: list[bytes], share: int, tally: Tally, stop: trio.Event) -> None:
    async with alpo.connect(servers, timeout_s=load.seconds) as log:
        await Window(log, payloads, share, tally).run(stop.is_set)


async def _one_round(
    cluster: LocalCluster, leader: int, signal_number: signal.Signals, log: alpo.Log, payloads: list[bytes],
    tally: Tally,
) -> float:
    server = cluster.get(leader)
    longest_s, gone = 0.0, False
    server.send(signal_number)
    while not gone:
        gone = not server.running()
        begun_s = time.perf_counter()
        await log.append_batch(payloads)
        longest_s = max(longest_s, time.perf_counter() - begun_s)
        tally.done += 1
    cluster.spawn([server])
    return longest_s
