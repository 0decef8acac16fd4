"""The writer: a thread that takes all queued writes, commits them at once, reports it, and tidies up when idle. A small
write that nothing else waits for may be committed in the thread that submits it, which saves two thread switches.

Laws:

* One thread uses the store at a time: the one that has the *turn*, a lock.
* `Writer.commit_here` commits only if every write before is on disk and the last commit was quick: a thread that must
  not wait is held up by one slow commit, and not by the next.
* Writes reach the store in the order they were submitted. After the commit that covers them ``after`` of each is
  called, in that order, then `done` once; never before.
* One commit holds at most `COMMIT_BYTES_MAX` of bodies and `COMMIT_ENTRIES_MAX` entries, plus one write.
* After the first failure nothing more is written, and `failed` has been called once.
* A full disk is no failure: the commit is retried until it succeeds or the writer is closed; no other write overtakes
  it.
* Events are written along with other writes, and by themselves only if nothing else was written for `IDLE_S`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TypeAlias

from alpo.core.disk import Write

from .events import PENDING_MAX, EventRow
from .interface import Rest, Store, StoreFull
from .timings import POWERS_OF_TWO, Histogram, Timings

#: Called once a write is on disk, by the thread that committed it; None for nothing.
After: TypeAlias = Callable[[], None] | None

#: Called after a slow commit or checkpoint with (which, seconds, entries).
Slow: TypeAlias = Callable[[str, float, int], None]

COMMIT_BYTES_MAX = 16 << 20
COMMIT_ENTRIES_MAX = 20_000
#: A commit of more entries is one of a series, even if the queue is empty at its end.
LULL_ENTRIES_MAX = 16
IDLE_S = 1.0
#: Commits by `Writer.commit_here` after which the thread sees whether a checkpoint is due.
TIDY_COMMITS = 64
#: Seconds between two attempts while the disk is full.
FULL_FIRST_S, FULL_MAX_S = 0.02, 0.5
_EWMA_WEIGHT = 0.1


@dataclass(slots=True)
class WriterStats:
    """Counters since the start, set by whoever has the writer's turn; any thread may read. ``bytes``: body sizes."""

    commits: int = 0
    entries: int = 0
    bytes: int = 0
    last_commit_ms: float = 0.0
    #: Moving average over about ten commits.
    mean_commit_ms: float = 0.0
    #: Reason why a commit waits for disk space; "" if none does.
    full: str = ""
    #: Durations of recent commits, each one fsync. Times are seconds of `time.perf_counter`.
    timings: Timings = field(default_factory=Timings)
    #: Counts since the start: of those durations; of the times from handing a write over until it was on disk (the
    #: first write of each commit); of the entries of each commit.
    fsync_s: Histogram = field(default_factory=Histogram)
    commit_s: Histogram = field(default_factory=Histogram)
    batch_entries: Histogram = field(default_factory=lambda: Histogram(POWERS_OF_TWO))

    @property
    def fsyncs(self) -> int:
        """Number of fsyncs: one a commit, without those of checkpoints."""
        return self.commits


def _tell_nobody(what: str, took_s: float, entries: int) -> None:
    pass


def _nothing() -> None:
    pass


class _Wake(Enum):
    """Queue items that wake the thread for housekeeping: once there is nothing to write for `IDLE_S`, or at once."""

    WHEN_IDLE = 1
    NOW = 2


class Writer:
    """Writer with its thread, started at once. It calls ``done(number)``, in the thread that committed, and
    ``failed(error)``, in its own; they must not raise. It uses ``store`` and does not close it.
    """

    def __init__(
        self, store: Store, done: Callable[[int], None], failed: Callable[[BaseException], None]
    ) -> None:
        self.stats = WriterStats()
        self._store = store
        self._done = done
        self._failed = failed
        self._queue: SimpleQueue[tuple[Write, After, float] | _Wake | None] = SimpleQueue()
        self._notes: deque[EventRow] = deque(maxlen=PENDING_MAX)
        self._slow_s = self._quick_s = math.inf
        self._slow: Slow = _tell_nobody
        self._full: Callable[[], None] = _nothing
        self._stopped = False
        self._turn = threading.Lock()
        self._submitted = self._committed = 0  # numbers of the last writes
        #: Since when `commit_here` has been committing, `time.perf_counter` seconds; infinity: it is not. Any thread.
        self.here_since_s = math.inf
        self._here, self._here_s = 0, -math.inf  # commits by `commit_here` since it woke the thread; time of the last
        self._resting = False  # True while the thread has nothing to do until it is woken
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alpo-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write, after: After = None) -> None:
        """Queue a write; never blocks. Dropped after a failure. ``after``: see `After`; it must not raise."""
        if not self._stopped:
            self._submitted = write.number
            self._queue.put((write, after, time.perf_counter()))

    def commit_here(self, write: Write, after: After = None) -> bool:
        """Commit a write in the calling thread, the one that submits; False if nothing was done, and it must be
        submitted: other writes are not on disk yet, the disk is slow or full, or the thread has the turn. Raises
        `StoreError`, after which nothing more is written."""
        if self._submitted != self._committed or self._stopped or self.stats.last_commit_ms > self._quick_s * 1000:
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._notes:
                self._pass_notes_on()
            start_s = self.here_since_s = time.perf_counter()
            self._store.commit([write])
            done_s = time.perf_counter()
            self._submitted = self._committed = write.number
            self._here, self._here_s = self._here + 1, done_s
            resting = self._resting
            if after is not None:
                after()
            self._count(len(write.entries), write.bodies_bytes, done_s - start_s, done_s)
            self.stats.commit_s.add(done_s - start_s)
        except StoreFull:
            return False
        except Exception:
            self._stopped = True
            raise
        finally:
            self.here_since_s = math.inf
            self._turn.release()
        self._done(write.number)
        if self._here >= TIDY_COMMITS:
            self._here = 0
            self._queue.put(_Wake.NOW)
        elif resting:
            self._queue.put(_Wake.WHEN_IDLE)
        return True

    def note(self, event: EventRow) -> None:
        """Queue an event; never blocks. Lost in a crash and after a failure."""
        self._notes.append(event)
        if not self._stopped:
            self._queue.put(_Wake.WHEN_IDLE)

    def watch(self, slow_s: float, slow: Slow, full: Callable[[], None], *, quick_s: float = math.inf) -> None:
        """Set callbacks, called by whoever has the turn: ``slow`` after a commit or checkpoint that took longer than
        ``slow_s``, ``full`` when a commit begins to wait for disk space; and ``quick_s``, the longest time of the last
        commit after which `commit_here` commits."""
        self._slow, self._full = slow, full
        self._slow_s, self._quick_s = slow_s, quick_s

    def give_back(self) -> None:
        """Have the store return all its free space to the file system, while writes go on; never blocks."""
        self._store.give_back()
        if not self._stopped:
            self._queue.put(_Wake.WHEN_IDLE)

    def close(self) -> None:
        """Write all that was submitted, unless the disk is full, then end the thread. Blocks. May be called twice, but
        not from the writer's thread."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (first := self._next()) is not None:
                with self._turn:
                    goes_on = self._commit(first)
                if not goes_on:
                    break
            self._pass_notes_on()  # the store writes them when it is closed
        except Exception as error:  # any error must reach the owner: a writer that ends unheard hangs the server
            self._failed(error)
        finally:
            self._stopped = True

    def _next(self) -> tuple[Write, After, float] | None:
        """The next write; None to end. Does housekeeping while there is none."""
        timeout_s: float | None = IDLE_S
        while True:
            try:
                queued = self._queue.get(timeout=timeout_s)
            except Empty:
                with self._turn:
                    timeout_s = self._rest()
                    self._resting = timeout_s is None
                continue
            self._resting = False
            if not isinstance(queued, _Wake):
                return queued
            if queued is _Wake.NOW:
                with self._turn:
                    self._judged_tidy(Rest.LULL)
            timeout_s = IDLE_S

    def _rest(self) -> float | None:
        """Tidy up after a while without anything queued; returns the seconds until the next look, None for never."""
        self._pass_notes_on()
        if time.perf_counter() - self._here_s < IDLE_S:  # `commit_here` is at work
            self._judged_tidy(Rest.LULL)
            return IDLE_S
        return self._tidy(Rest.IDLE)

    def _commit(self, first: tuple[Write, After, float]) -> bool:
        """Commit ``first`` and what is queued behind it; False if the thread is to end."""
        write, after, submitted_s = first
        writes, afters = [write], [after]
        more = True
        entries, size = len(write.entries), write.bodies_bytes
        while entries < COMMIT_ENTRIES_MAX and size < COMMIT_BYTES_MAX and not self._queue.empty():
            queued = self._queue.get()
            if queued is None:
                more = False
                break
            if isinstance(queued, _Wake):
                continue
            write, after, _ = queued
            writes.append(write)
            afters.append(after)
            entries += len(write.entries)
            size += write.bodies_bytes
        self._pass_notes_on()
        start_s = self._store_all(writes)
        if start_s is None:
            return False
        done_s = time.perf_counter()
        self._committed = writes[-1].number
        self._count(entries, size, done_s - start_s, done_s)
        self.stats.commit_s.add(done_s - submitted_s)
        for after in afters:
            if after is not None:
                after()
        self._done(writes[-1].number)
        lull = entries <= LULL_ENTRIES_MAX and self._queue.empty()
        self._judged_tidy(Rest.LULL if lull else Rest.BUSY)
        return more

    def _judged_tidy(self, rest: Rest) -> None:
        """Tidy up between commits, and report it if that was slow."""
        start_s = time.perf_counter()
        self._tidy(rest)
        took_s = time.perf_counter() - start_s
        if took_s > self._slow_s:
            self._slow("checkpoint", took_s, 0)

    def _store_all(self, writes: list[Write]) -> float | None:
        """Commit, retrying while the disk is full. Returns the `perf_counter` time when the successful attempt began;
        None if the writer was closed first: then nothing was promised."""
        pause_s = FULL_FIRST_S
        while True:
            start_s = time.perf_counter()
            try:
                self._store.commit(writes)
            except StoreFull as error:
                waited, self.stats.full = self.stats.full, str(error)
                if not waited:
                    self._full()
                self._tidy(Rest.IDLE)  # a checkpoint frees space in the WAL
                if self._closing.wait(pause_s):
                    return None
                pause_s = min(2 * pause_s, FULL_MAX_S)
            else:
                self.stats.full = ""
                return start_s

    def _tidy(self, rest: Rest) -> float | None:
        """Call `Store.checkpoint`; on a full disk try again later."""
        try:
            return self._store.checkpoint(rest)
        except StoreFull:
            return FULL_MAX_S

    def _pass_notes_on(self) -> None:
        while self._notes:
            self._store.note([self._notes.popleft()])

    def _count(self, entries: int, size: int, took_s: float, now_s: float) -> None:
        stats, commit_ms = self.stats, took_s * 1000
        stats.timings.add(took_s, now_s)
        stats.fsync_s.add(took_s)
        stats.batch_entries.add(entries)
        if took_s > self._slow_s:
            self._slow("commit", took_s, entries)
        stats.mean_commit_ms += (commit_ms - stats.mean_commit_ms) * (_EWMA_WEIGHT if stats.commits else 1)
        stats.last_commit_ms = commit_ms
        stats.commits += 1
        stats.entries += entries
        stats.bytes += size
