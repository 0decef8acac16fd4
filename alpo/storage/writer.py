"""The one thread that writes: it takes all that has queued, commits once, says so, and tidies up when idle.

Laws:

* Writes reach the store in the order they were submitted; ``after`` of each, then `done` once, are called only after
  the commit that covers them, in that order too.
* One commit holds at most `COMMIT_BYTES_MAX` of bodies and `COMMIT_ENTRIES_MAX` entries, and one write beyond.
* After the first failure nothing more is written, and `failed` has been called once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from alpo.core.ready import Write

from .interface import Rest, Store

#: What is to be done from the writer's thread once a write is on disk, None for nothing.
After: TypeAlias = Callable[[], None] | None

COMMIT_BYTES_MAX = 16 << 20
COMMIT_ENTRIES_MAX = 20_000
#: A commit of more is one of many, even if nothing waits at its end.
LULL_ENTRIES_MAX = 16
IDLE_S = 1.0
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

    @property
    def fsyncs(self) -> int:
        """One a commit; those of checkpoints are not counted."""
        return self.commits


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
        self._queue: SimpleQueue[tuple[Write, After] | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="alpo-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write, after: After = None) -> None:
        """Queue a write; never blocks. Dropped after a failure. ``after``: see `After`; it must not raise."""
        if not self._stopped:
            self._queue.put((write, after))

    def close(self) -> None:
        """Write all that was submitted, then end the thread. Blocks; may be called twice, not from its own."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (first := self._next()) is not None:
                if not self._commit(first):
                    break
        except Exception as error:  # whatever it is, the owner must hear: a writer that ends unheard hangs the server
            self._failed(error)
        finally:
            self._stopped = True

    def _next(self) -> tuple[Write, After] | None:
        """The next write, None to end; while there is none, the store tidies up."""
        timeout_s: float | None = IDLE_S
        while True:
            try:
                return self._queue.get(timeout=timeout_s)
            except Empty:
                if self._store.checkpoint(Rest.IDLE):
                    timeout_s = None

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
            write, after = queued
            writes.append(write)
            afters.append(after)
            entries += len(write.entries)
            size += write.bodies_bytes
        start_s = time.perf_counter()
        self._store.commit(writes)
        self._note(entries, size, (time.perf_counter() - start_s) * 1000)
        for after in afters:
            if after is not None:
                after()
        self._done(writes[-1].number)
        lull = entries <= LULL_ENTRIES_MAX and self._queue.empty()
        self._store.checkpoint(Rest.LULL if lull else Rest.BUSY)
        return more

    def _note(self, entries: int, size: int, commit_ms: float) -> None:
        stats = self.stats
        stats.mean_commit_ms += (commit_ms - stats.mean_commit_ms) * (_EWMA_WEIGHT if stats.commits else 1)
        stats.last_commit_ms = commit_ms
        stats.commits += 1
        stats.entries += entries
        stats.bytes += size
