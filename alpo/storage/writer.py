"""The one thread that writes: it takes all that has queued, commits once, says so, and tidies up when idle.

Laws:

* Writes reach the store in the order they were submitted; ``after`` of each, then `done` once, are called only after
  the commit that covers them, in that order too.
* One commit holds at most `COMMIT_BYTES_MAX` of bodies and `COMMIT_ENTRIES_MAX` entries, and one write beyond.
* After the first failure nothing more is written, and `failed` has been called once.
* A full disk is no failure: the commit is tried again until it succeeds or the writer is closed; nothing passes it.
* Events ride along with what is written anyway, and are written by themselves only when nothing else was for `IDLE_S`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

from alpo.core.disk import Write

from .events import PENDING_MAX, EventRow
from .interface import Rest, Store, StoreFull
from .timings import Timings

#: What is to be done from the writer's thread once a write is on disk, None for nothing.
After: TypeAlias = Callable[[], None] | None

#: Told of a commit, or a checkpoint, that took long: which, seconds, entries.
Slow: TypeAlias = Callable[[str, float, int], None]

COMMIT_BYTES_MAX = 16 << 20
COMMIT_ENTRIES_MAX = 20_000
#: A commit of more is one of many, even if nothing waits at its end.
LULL_ENTRIES_MAX = 16
IDLE_S = 1.0
#: Between two tries while the disk is full.
FULL_FIRST_S, FULL_MAX_S = 0.02, 0.5
_EWMA_WEIGHT = 0.1


@dataclass(slots=True)
class WriterStats:
    """Since the start. Written by the writer thread alone; others may read at any time. ``bytes``: of bodies."""

    commits: int = 0
    entries: int = 0
    bytes: int = 0
    last_commit_ms: float = 0.0
    #: Of about the last ten commits.
    mean_commit_ms: float = 0.0
    #: Why a commit waits for room on the disk; "" if none does.
    full: str = ""
    #: How long commits took lately, each one fsync: seconds, by `time.perf_counter`.
    timings: Timings = field(default_factory=Timings)

    @property
    def fsyncs(self) -> int:
        """One a commit; those of checkpoints are not counted."""
        return self.commits


def _tell_nobody(what: str, took_s: float, entries: int) -> None:
    pass


def _nothing() -> None:
    pass


class _Wake:
    """Queued to wake the thread: there is something to tidy up."""


class Writer:
    """Starts its thread at once. ``done(number)`` and ``failed(error)`` are called from it, and must not raise.

    It uses ``store`` and does not close it.
    """

    def __init__(
        self, store: Store, done: Callable[[int], None], failed: Callable[[BaseException], None]
    ) -> None:
        self.stats = WriterStats()
        self._store = store
        self._done = done
        self._failed = failed
        self._queue: SimpleQueue[tuple[Write, After] | _Wake | None] = SimpleQueue()
        self._notes: deque[EventRow] = deque(maxlen=PENDING_MAX)
        self._slow_s = math.inf
        self._slow: Slow = _tell_nobody
        self._full: Callable[[], None] = _nothing
        self._stopped = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alpo-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write, after: After = None) -> None:
        """Queue a write; never blocks. Dropped after a failure. ``after``: see `After`; it must not raise."""
        if not self._stopped:
            self._queue.put((write, after))

    def note(self, event: EventRow) -> None:
        """Keep an event; never blocks. Lost in a crash, and after a failure."""
        self._notes.append(event)
        if not self._stopped:
            self._queue.put(_Wake())

    def watch(self, slow_s: float, slow: Slow, full: Callable[[], None]) -> None:
        """From now on call ``slow``, from the writer's thread, after whatever took longer than ``slow_s``, and ``full``
        when a commit begins to wait for room on the disk."""
        self._slow, self._full = slow, full
        self._slow_s = slow_s

    def give_back(self) -> None:
        """Have the store give all its free space back to the file system, beside the writing; never blocks."""
        self._store.give_back()
        if not self._stopped:
            self._queue.put(_Wake())

    def close(self) -> None:
        """Write all that was submitted, unless the disk is full, then end the thread. Blocks; may be called twice, not
        from its own."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (first := self._next()) is not None:
                if not self._commit(first):
                    break
            self._pass_notes_on()  # the store writes them as it is closed
        except Exception as error:  # whatever it is, the owner must hear: a writer that ends unheard hangs the server
            self._failed(error)
        finally:
            self._stopped = True

    def _next(self) -> tuple[Write, After] | None:
        """The next write, None to end; while there is none, the store tidies up."""
        timeout_s: float | None = IDLE_S
        while True:
            try:
                queued = self._queue.get(timeout=timeout_s)
            except Empty:
                self._pass_notes_on()
                timeout_s = self._tidy(Rest.IDLE)
            else:
                if not isinstance(queued, _Wake):
                    return queued
                timeout_s = IDLE_S

    def _commit(self, first: tuple[Write, After]) -> bool:
        """Commit ``first`` and what has queued behind it; False if the end was among it."""
        write, after = first
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
            write, after = queued
            writes.append(write)
            afters.append(after)
            entries += len(write.entries)
            size += write.bodies_bytes
        self._pass_notes_on()
        start_s = self._store_all(writes)
        if start_s is None:
            return False
        done_s = time.perf_counter()
        self._count(entries, size, done_s - start_s, done_s)
        for after in afters:
            if after is not None:
                after()
        self._done(writes[-1].number)
        lull = entries <= LULL_ENTRIES_MAX and self._queue.empty()
        start_s = time.perf_counter()
        self._tidy(Rest.LULL if lull else Rest.BUSY)
        self._judge("checkpoint", time.perf_counter() - start_s, 0)
        return more

    def _store_all(self, writes: list[Write]) -> float | None:
        """Commit, were it after the disk has been full for long. When the try began that succeeded, by `perf_counter`;
        None: the end came first. What is given up then was never promised."""
        pause_s = FULL_FIRST_S
        while True:
            start_s = time.perf_counter()
            try:
                self._store.commit(writes)
            except StoreFull as error:
                waited, self.stats.full = self.stats.full, str(error)
                if not waited:
                    self._full()
                self._tidy(Rest.IDLE)  # what is copied back makes room in the WAL
                if self._closing.wait(pause_s):
                    return None
                pause_s = min(2 * pause_s, FULL_MAX_S)
            else:
                self.stats.full = ""
                return start_s

    def _tidy(self, rest: Rest) -> float | None:
        """As `Store.checkpoint`; on a full disk it can wait."""
        try:
            return self._store.checkpoint(rest)
        except StoreFull:
            return FULL_MAX_S

    def _pass_notes_on(self) -> None:
        while self._notes:
            self._store.note([self._notes.popleft()])

    def _judge(self, what: str, took_s: float, entries: int) -> None:
        if took_s > self._slow_s:
            self._slow(what, took_s, entries)

    def _count(self, entries: int, size: int, took_s: float, now_s: float) -> None:
        stats, commit_ms = self.stats, took_s * 1000
        stats.timings.add(took_s, now_s)
        self._judge("commit", took_s, entries)
        stats.mean_commit_ms += (commit_ms - stats.mean_commit_ms) * (_EWMA_WEIGHT if stats.commits else 1)
        stats.last_commit_ms = commit_ms
        stats.commits += 1
        stats.entries += entries
        stats.bytes += size
