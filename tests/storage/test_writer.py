"""The writer thread: order, groups, what is reported, failure, idleness."""

from __future__ import annotations

import math
import threading
from collections import deque
from functools import partial

import pytest
from store_kit import SERVER, LogBuilder, SqliteBench, unexpected, write
from writer_kit import WAIT_S, GatedStore, Rig, some_writes

from alpo.storage import writer as writer_module
from alpo.storage.interface import Rest, StoreError, StoreFull
from alpo.storage.memory import MemoryStore
from alpo.storage.writer import Writer


def test_what_gathers_during_a_commit_is_one_commit_and_done_means_committed() -> None:
    store = GatedStore()
    rig = Rig(store)
    writes = some_writes(50)
    rig.writer.submit(writes[0])
    assert store.began.acquire(timeout=WAIT_S)
    for one in writes[1:]:
        rig.writer.submit(one)
    assert rig.done == []
    for _ in range(2):
        store.gate.release()
    rig.writer.close()
    assert store.groups == [[writes[0].number], [w.number for w in writes[1:]]]
    assert rig.done == [(writes[0].number, 1), (writes[-1].number, 50)]
    assert (rig.writer.stats.commits, rig.writer.stats.fsyncs, rig.writer.stats.entries) == (2, 2, 50)
    assert rig.writer.stats.bytes == sum(len(w.entries[0].body) for w in writes)
    assert rig.writer.stats.last_commit_ms > 0 < rig.writer.stats.mean_commit_ms


def test_what_comes_after_a_write_comes_after_its_commit_in_order() -> None:
    store = GatedStore()
    rig = Rig(store)
    did: list[tuple[int, int, int]] = []

    def note(number: int) -> None:
        did.append((number, len(store.groups), len(rig.done)))

    writes = some_writes(4)
    for number, one in enumerate(writes):
        rig.writer.submit(one, partial(note, number))
    assert store.began.acquire(timeout=WAIT_S)
    assert did == []
    for _ in range(4):
        store.gate.release()
    rig.writer.close()
    assert [number for number, _, _ in did] == [0, 1, 2, 3]
    groups = [n for n, group in enumerate(store.groups, 1) for _ in group]
    assert [committed for _, committed, _ in did] == groups, "not before the commit that holds it"
    assert [reported for _, _, reported in did] == [n - 1 for n in groups], "before the report"


@pytest.mark.parametrize("bound", ["COMMIT_ENTRIES_MAX", "COMMIT_BYTES_MAX"])
def test_a_commit_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(writer_module, bound, 30 if bound == "COMMIT_ENTRIES_MAX" else 3000)
    store = GatedStore()
    rig = Rig(store)
    writes = some_writes(25, entries=10, size=100)
    rig.writer.submit(writes[0])
    assert store.began.acquire(timeout=WAIT_S)
    for one in writes[1:]:
        rig.writer.submit(one)
    for _ in range(25):
        store.gate.release()
    rig.writer.close()
    assert [n for group in store.groups for n in group] == [w.number for w in writes]
    assert [len(group) for group in store.groups] == [1, *[3] * 8]
    assert store.boot().last_id == 250


def test_a_failure_is_told_once_and_ends_all_writing() -> None:
    store = GatedStore()
    rig = Rig(store)
    writes = some_writes(5)
    store.error = StoreError("no disk")
    rig.writer.submit(writes[0])
    store.gate.release()
    assert rig.failed.wait(WAIT_S)
    store.error = None
    for one in writes:
        rig.writer.submit(one)
    for _ in range(5):
        store.gate.release()
    rig.writer.close()
    rig.writer.close()
    queued = rig.writer._queue.qsize()
    rig.writer.submit(writes[0])
    assert rig.writer._queue.qsize() == queued, "what nobody will write must not pile up"
    assert [type(f) for f in rig.failures] == [StoreError]
    assert rig.done == [] == store.groups


def test_an_unforeseen_error_is_told_too() -> None:
    store = GatedStore()
    rig = Rig(store)
    store.error = ZeroDivisionError()
    rig.writer.submit(some_writes(1)[0])
    store.gate.release()
    assert rig.failed.wait(WAIT_S)
    rig.writer.close()
    assert [type(f) for f in rig.failures] == [ZeroDivisionError]


def test_a_failing_checkpoint_is_a_failure() -> None:
    class Broken(MemoryStore):
        def checkpoint(self, rest: Rest) -> float | None:
            raise StoreError("no disk")

    rig = Rig(Broken(SERVER))
    rig.writer.submit(some_writes(1)[0])
    assert rig.failed.wait(WAIT_S)
    rig.writer.close()
    assert len(rig.done) == 1


def test_a_full_disk_is_waited_for_and_nothing_passes_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FULL_MAX_S", 0.001)
    store = GatedStore()
    rig = Rig(store)
    writes = some_writes(3)
    store.error = StoreFull("no room")
    told: list[str] = []
    rig.writer.watch(math.inf, lambda *slow: None, lambda: told.append(rig.writer.stats.full))
    for one in writes:
        rig.writer.submit(one)
    for _ in range(4):
        assert store.began.acquire(timeout=WAIT_S)
        assert rig.done == []
        store.gate.release()
    assert store.began.acquire(timeout=WAIT_S)
    assert rig.writer.stats.full == "no room" and told == ["no room"]
    store.error = None
    for _ in range(3):
        store.gate.release()
    rig.writer.close()
    assert [n for group in store.groups for n in group] == [w.number for w in writes]
    assert rig.failures == [] and rig.writer.stats.full == ""
    assert rig.done[-1] == (writes[-1].number, 3)


def test_a_writer_that_waits_for_room_can_be_closed() -> None:
    store = GatedStore()
    rig = Rig(store)
    store.error = StoreFull("no room")
    for one in some_writes(3):
        rig.writer.submit(one)
    for _ in range(100):
        store.gate.release()
    for _ in range(2):
        assert store.began.acquire(timeout=WAIT_S)
    rig.writer.close()
    assert rig.done == [] and rig.failures == [] and store.groups == []


def test_a_checkpoint_on_a_full_disk_can_wait() -> None:
    class Full(MemoryStore):
        def checkpoint(self, rest: Rest) -> float | None:
            raise StoreFull("no room")

    rig = Rig(Full(SERVER))
    for one in some_writes(3):
        rig.writer.submit(one)
    rig.writer.close()
    assert rig.done[-1][1] == 3 and rig.failures == []


def test_idle_it_tidies_up_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.001)
    store = GatedStore()
    store.tidy_after = 3
    rig = Rig(store)
    assert store.idle.wait(WAIT_S)
    store.idle.clear()
    store.tidy_after = 5
    store.gate.release()
    rig.writer.submit(some_writes(1)[0])
    assert store.idle.wait(WAIT_S)
    rig.writer.close()
    assert store.checkpoints == [Rest.IDLE] * 3 + [Rest.LULL] + [Rest.IDLE] * 2


def test_asked_to_give_back_it_wakes_the_store_and_drops_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.001)
    store = GatedStore()
    asked: list[int] = []
    monkeypatch.setattr(store, "give_back", lambda: asked.append(len(store.checkpoints)))
    rig = Rig(store)
    assert store.idle.wait(WAIT_S)
    store.idle.clear()
    rig.writer.give_back()
    assert store.idle.wait(WAIT_S), "it slept, with nothing left to do"
    writes = some_writes(3)
    rig.writer.submit(writes[0])
    assert store.began.acquire(timeout=WAIT_S)
    for one in writes[1:]:
        rig.writer.give_back()
        rig.writer.submit(one)
    rig.writer.give_back()
    for _ in range(2):
        store.gate.release()
    rig.writer.close()
    assert store.groups == [[writes[0].number], [w.number for w in writes[1:]]]
    assert len(asked) == 4
    rig.writer.give_back()
    assert rig.writer._queue.qsize() == 0, "what nobody will take must not pile up"


@pytest.mark.parametrize("round", [*range(5), *(pytest.param(n, marks=pytest.mark.soak) for n in range(5, 20))])
def test_on_disk_with_submitters_racing(sqlite: SqliteBench, round: int) -> None:
    """All submitted writes are in the store, in order, whatever groups they were committed in."""
    entries = LogBuilder().datas(400)
    done: list[int] = []
    writer = Writer(sqlite.store, done.append, unexpected)
    writes = [write(entries[at : at + 4], runs=[] if at else [(1, 1)]) for at in range(0, 400, 4)]
    thread = threading.Thread(target=lambda: deque(map(writer.submit, writes)))
    thread.start()
    thread.join()
    writer.close()
    assert done == sorted(done) and done[-1] == writes[-1].number
    assert list(sqlite.reopen().replay(1)) == entries
