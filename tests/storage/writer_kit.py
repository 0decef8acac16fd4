"""A writer with a store whose commits a test lets through, and a record of what the writer reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from store_kit import SERVER, LogBuilder, write

from alpo.core.disk import Write
from alpo.storage.interface import Rest
from alpo.storage.memory import MemoryStore
from alpo.storage.writer import Writer

WAIT_S = 30


class GatedStore(MemoryStore):
    """Each commit waits to be let through; notes its groups and checkpoints."""

    def __init__(self) -> None:
        super().__init__(SERVER)
        self.began = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.groups: list[list[int]] = []
        self.idle = threading.Event()
        self.checkpoints: list[Rest] = []
        self.tidy_after = 1
        self.again_s = 0.001
        self.error: Exception | None = None

    def commit(self, writes: Sequence[Write]) -> None:
        self.began.release()
        assert self.gate.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error
        super().commit(writes)
        self.groups.append([w.number for w in writes])

    def checkpoint(self, rest: Rest) -> float | None:
        self.checkpoints.append(rest)
        if self.checkpoints.count(Rest.IDLE) >= self.tidy_after:
            self.idle.set()
            return None
        return self.again_s


class Rig:
    def __init__(self, store: MemoryStore) -> None:
        self.done: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.store = store
        self.writer = Writer(store, self._note, self._fail)

    def _note(self, number: int) -> None:
        self.done.append((number, self.store.boot().last_id))

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()


def some_writes(count: int, entries: int = 1, size: int | None = None) -> list[Write]:
    log = LogBuilder()
    return [write(log.datas(entries, size=size), runs=[] if n else [(1, 1)]) for n in range(count)]


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.0005)
