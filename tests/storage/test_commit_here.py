"""Writes that are committed in the thread that submits them: when, in which order, and one user of the store."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import pytest
from store_kit import SERVER
from writer_kit import WAIT_S, GatedStore, Rig, some_writes, wait_for

from alpo.core.disk import Write
from alpo.storage import writer as writer_module
from alpo.storage.interface import Rest, StoreError, StoreFull
from alpo.storage.memory import MemoryStore


class Watched(MemoryStore):
    """Notes in which thread each write was committed, and that no two threads use it at once."""

    def __init__(self) -> None:
        super().__init__(SERVER)
        self.used = threading.Lock()
        self.threads: list[int] = []
        self.numbers: list[int] = []
        self.rests: list[Rest] = []
        self.error: Exception | None = None

    def commit(self, writes: Sequence[Write]) -> None:
        assert self.used.acquire(blocking=False), "two threads use the store"
        if self.error is not None:
            self.used.release()
            raise self.error
        super().commit(writes)
        self.threads += [threading.get_ident()] * len(writes)
        self.numbers += [one.number for one in writes]
        self.used.release()

    def checkpoint(self, rest: Rest) -> float | None:
        assert self.used.acquire(blocking=False), "two threads use the store"
        self.rests.append(rest)
        self.used.release()
        return None


def _is_done(rig: Rig, one: Write) -> bool:
    return bool(rig.done) and rig.done[-1][0] == one.number


def test_a_write_behind_which_nothing_waits_is_committed_where_it_is_submitted() -> None:
    store = Watched()
    rig = Rig(store)
    first, second, third = some_writes(3)
    did: list[int] = []
    assert rig.writer.commit_here(first, lambda: did.append(len(rig.done)))
    assert did == [0] and rig.done == [(first.number, 1)]
    rig.writer.submit(second)
    wait_for(lambda: len(rig.done) == 2)
    assert rig.writer.commit_here(third)
    rig.writer.close()
    assert store.numbers == [first.number, second.number, third.number]
    assert [thread == threading.get_ident() for thread in store.threads] == [True, False, True]
    assert rig.writer.stats.commits == rig.writer.stats.entries == 3
    assert not rig.writer.commit_here(third), "after the end"


def test_no_write_overtakes_one_that_is_queued_or_under_way() -> None:
    store = GatedStore()
    rig = Rig(store)
    first, second = some_writes(2)
    rig.writer.submit(first)
    assert store.began.acquire(timeout=WAIT_S)
    assert not rig.writer.commit_here(second)
    for _ in range(2):
        store.gate.release()
    rig.writer.submit(second)
    rig.writer.close()
    assert [number for group in store.groups for number in group] == [first.number, second.number]


def test_a_slow_disk_keeps_no_other_thread() -> None:
    rig = Rig(Watched())
    (first,) = some_writes(1)
    rig.writer.watch(math.inf, lambda *_: None, lambda: None, quick_s=0.025)
    rig.writer.stats.last_commit_ms = 25.1
    assert not rig.writer.commit_here(first)
    rig.writer.stats.last_commit_ms = 25.0
    assert rig.writer.commit_here(first)
    rig.writer.close()
    assert rig.done == [(first.number, 1)]


def test_a_full_disk_leaves_the_write_to_the_thread_and_a_broken_one_ends_it() -> None:
    store = Watched()
    rig = Rig(store)
    first, second = some_writes(2)
    store.error = StoreFull("full")
    assert not rig.writer.commit_here(first)
    store.error = None
    rig.writer.submit(first)
    wait_for(lambda: rig.done == [(first.number, 1)])
    store.error = StoreError("broken")
    with pytest.raises(StoreError, match="broken"):
        rig.writer.commit_here(second)
    store.error = None
    assert not rig.writer.commit_here(second), "after a failed commit nothing is written"
    rig.writer.submit(second)
    rig.writer.close()
    assert store.numbers == [first.number]


def test_the_store_has_one_user_at_a_time_and_the_thread_tidies_up() -> None:
    store = Watched()
    rig = Rig(store)
    rng = random.Random(1)
    writes = some_writes(400)
    here = 0

    for one in writes:
        if rng.random() < 0.7 and rig.writer.commit_here(one):
            here += 1
        else:
            rig.writer.submit(one)
            if rng.random() < 0.7:
                wait_for(partial(_is_done, rig, one))
    wait_for(partial(_is_done, rig, writes[-1]))
    rig.writer.close()
    assert store.numbers == [one.number for one in writes]
    assert here > writer_module.TIDY_COMMITS and Rest.LULL in store.rests and not rig.failures


class Stalling(Watched):
    """A store whose commits take 0.2 ms, and now and then 30, 400 or 1,500 ms, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.rng = random.Random(2)
        self.took: list[tuple[int, float]] = []  # thread, seconds
        self.stalls = True

    def commit(self, writes: Sequence[Write]) -> None:
        super().commit(writes)
        stalls = self.stalls and self.rng.random() < 0.1
        took_s = self.rng.choice((0.03, 0.4, 1.5)) if stalls else 0.0002
        self.now_s += took_s
        self.took.append((threading.get_ident(), took_s))


def test_a_stalling_disk_holds_up_the_thread_that_submits_for_one_commit_and_not_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Stalling()
    monkeypatch.setattr(writer_module, "time", SimpleNamespace(perf_counter=lambda: store.now_s))
    rig = Rig(store)
    rig.writer.watch(math.inf, lambda *_: None, lambda: None, quick_s=0.025)
    writes = some_writes(500)
    for number, one in enumerate(writes):
        store.stalls = number < 400
        if not rig.writer.commit_here(one):
            rig.writer.submit(one)
        wait_for(partial(_is_done, rig, one))
    rig.writer.close()
    me = threading.get_ident()
    here = [(n, took_s) for n, (thread, took_s) in enumerate(store.took) if thread == me]
    slow = [n for n, took_s in here if took_s > 0.01]
    assert len(slow) > 3 and all(store.took[n + 1][0] != me for n in slow)
    assert store.took[-1][0] == me, "the disk is quick again"
