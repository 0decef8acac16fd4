"""Space that a cleaning frees is used first; it is given back in small steps if there is much of it, or on request."""

from __future__ import annotations

import itertools
import threading

import pytest
from store_kit import LogBuilder, SqliteBench, cleaning, unexpected, write

from alpo.storage import sqlite as sqlite_module
from alpo.storage import vacuum, wal
from alpo.storage import writer as writer_module
from alpo.storage.interface import Rest, StoreError
from alpo.storage.schema import wal_bytes
from alpo.storage.sqlite import SqliteStore
from alpo.storage.vacuum import IDLE_GAP_S, Pages, count_pages
from alpo.storage.writer import Writer

WAIT_S = 60


@pytest.fixture
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whenever there is one to do, and small files count too."""
    monkeypatch.setattr(vacuum, "PACE", 0)
    monkeypatch.setattr(vacuum, "FREE_PAGES_MIN", 16)


def _fill(store: SqliteStore, log: LogBuilder, count: int, size: int = 200, step: int = 500) -> None:
    for _ in range(0, count, step):
        begins = log.id == 1
        store.commit([write(log.datas(step, size=size), runs=[(1, 1)] if begins else [])])
        store.checkpoint(Rest.BUSY)


def _clean(store: SqliteStore, upto_id: int, step: int = 500, tidy: bool = True) -> None:
    base_id = store.boot().base.id
    for id in [*range(base_id + step, upto_id, step), upto_id]:
        (upto,) = store.read_entries(id, id, 1)
        store.commit([cleaning(upto)])
        if tidy:
            store.checkpoint(Rest.BUSY)


def _pages(store: SqliteStore) -> Pages:
    return count_pages(store._db)


def _settle(store: SqliteStore) -> int:
    """Let the store idle until no work is left; return the number of steps."""
    return next(n for n in itertools.count(1) if store.checkpoint(Rest.IDLE) is None)


def test_what_is_freed_is_used_before_the_file_grows(sqlite: SqliteBench) -> None:
    log = LogBuilder()
    _fill(sqlite.store, log, 20_000)
    _clean(sqlite.store, 15_000)
    _settle(sqlite.store)
    size, pages = sqlite.path.stat().st_size, _pages(sqlite.store)
    assert pages.free > 0.7 * pages.all
    assert sqlite.store.free_bytes() == pages.free * 4096
    assert sqlite.store.live_bytes() == (pages.all - pages.free) * 4096
    _fill(sqlite.store, log, 14_500)
    _settle(sqlite.store)
    assert sqlite.path.stat().st_size == size == pages.all * 4096
    assert sqlite.store.free_bytes() < 0.1 * size
    assert len(list(sqlite.reopen().replay(15_001))) == 19_500


def test_what_is_deleted_is_not_overwritten(sqlite: SqliteBench) -> None:
    """Else every page of a body that is cleaned is written once more."""
    assert sqlite.store._db.execute("PRAGMA secure_delete").fetchone() == (0,)
    _fill(sqlite.store, LogBuilder(), 500, size=12_000)
    _settle(sqlite.store)
    _clean(sqlite.store, 250)
    _, frames, _ = sqlite.store._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert 0 < frames < 250


def test_above_half_free_pages_are_given_back_down_to_a_quarter(sqlite: SqliteBench, no_pace: None) -> None:
    log = LogBuilder()
    _fill(sqlite.store, log, 10_000)
    kept = sqlite.store.read_entries(9_001, 10_000, 1 << 30)
    before = _pages(sqlite.store)
    _clean(sqlite.store, 4_500)
    _settle(sqlite.store)
    assert _pages(sqlite.store).all == before.all, "less than half is free"
    _clean(sqlite.store, 9_000, tidy=False)
    assert _settle(sqlite.store) > 3
    after = _pages(sqlite.store)
    assert after.all < 0.2 * before.all
    assert 0.2 < after.free / after.all <= 0.25
    assert sqlite.path.stat().st_size == after.all * 4096
    assert list(sqlite.store.replay(1)) == kept
    assert sqlite.store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert list(sqlite.reopen().replay(1)) == kept


def test_a_small_file_keeps_what_is_free(sqlite: SqliteBench) -> None:
    _fill(sqlite.store, LogBuilder(), 5_000)
    before = _pages(sqlite.store)
    _clean(sqlite.store, 5_000)
    assert _settle(sqlite.store) <= 2
    assert _pages(sqlite.store).all == before.all


def test_a_restart_goes_on_giving_back(sqlite: SqliteBench, no_pace: None) -> None:
    _fill(sqlite.store, LogBuilder(), 5_000)
    before = _pages(sqlite.store)
    _clean(sqlite.store, 4_500, tidy=False)
    sqlite.reopen()
    _settle(sqlite.store)
    assert _pages(sqlite.store).all < 0.5 * before.all


def test_when_asked_everything_is_given_back(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.001)
    _fill(sqlite.store, LogBuilder(), 3_000)
    before = _pages(sqlite.store)
    _clean(sqlite.store, 600)
    kept = list(sqlite.store.replay(601))
    idle = threading.Event()
    checkpoint = sqlite.store.checkpoint

    def noticed(rest: Rest) -> float | None:
        again_s = checkpoint(rest)
        if again_s is None:
            idle.set()
        return again_s

    monkeypatch.setattr(sqlite.store, "checkpoint", noticed)
    writer = Writer(sqlite.store, lambda number: None, unexpected)
    assert idle.wait(WAIT_S)
    assert sqlite.store.free_bytes() > 0.15 * before.all * 4096
    assert not sqlite.store.giving_back()
    idle.clear()
    writer.give_back()
    assert idle.wait(WAIT_S)
    writer.close()
    writer.give_back()
    assert sqlite.store.free_bytes() == 0
    assert sqlite.path.stat().st_size < 0.85 * before.all * 4096
    assert list(sqlite.store.replay(601)) == kept


def test_it_is_giving_back_until_the_file_is_cut(sqlite: SqliteBench, no_pace: None) -> None:
    _fill(sqlite.store, LogBuilder(), 3_000)
    _clean(sqlite.store, 600)
    _settle(sqlite.store)
    assert not sqlite.store.giving_back()
    size = sqlite.path.stat().st_size
    sqlite.store.give_back()
    while sqlite.store.free_bytes():
        assert sqlite.store.giving_back()
        sqlite.store.checkpoint(Rest.BUSY)
    assert sqlite.path.stat().st_size == size and sqlite.store.giving_back()
    sqlite.store.checkpoint(Rest.IDLE)
    assert sqlite.path.stat().st_size < size and not sqlite.store.giving_back()


def test_a_step_is_small_and_gets_smaller_when_it_takes_long(
    sqlite: SqliteBench, no_pace: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fill(sqlite.store, LogBuilder(), 10_000)
    _clean(sqlite.store, 10_000, tidy=False)
    before = _pages(sqlite.store).all
    gone = []
    for step_s in (float("inf"), -1.0):
        monkeypatch.setattr(vacuum, "STEP_S", step_s)
        for _ in range(5):
            assert sqlite.store.checkpoint(Rest.IDLE) == IDLE_GAP_S
            gone.append(before - _pages(sqlite.store).all)
            before -= gone[-1]
    assert gone[:5] == [16, 32, 64, 128, 128]
    assert all(later <= earlier for earlier, later in itertools.pairwise(gone[5:]))
    assert gone[-1] <= 16


def test_while_writes_come_there_is_time_between_two_steps(
    sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vacuum, "FREE_PAGES_MIN", 16)
    monkeypatch.setattr(vacuum, "PACE", float("inf"))
    _fill(sqlite.store, LogBuilder(), 5_000)
    _clean(sqlite.store, 4_000)
    stood = _pages(sqlite.store).all
    for rest in (Rest.BUSY, Rest.LULL):
        for _ in range(3):
            sqlite.store.checkpoint(rest)
        assert _pages(sqlite.store).all == stood, "the one step there was to do came with the cleaning"
    assert sqlite.store.checkpoint(Rest.IDLE) == IDLE_GAP_S
    assert _pages(sqlite.store).all < stood


def test_a_reader_that_stays_does_not_make_the_wal_grow_without_end(
    sqlite: SqliteBench, no_pace: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_BYTES", 512 << 10)
    monkeypatch.setattr(wal, "RETRY_BYTES", 128 << 10)
    log = LogBuilder()
    _fill(sqlite.store, log, 20_000)
    _clean(sqlite.store, 11_000, tidy=False)
    sqlite.store._wal._run("TRUNCATE")
    with sqlite.store._pool.snapshot() as reader:
        (count,) = reader.execute("SELECT count(*) FROM log").fetchone()
        for _ in range(200):
            sqlite.store.checkpoint(Rest.IDLE)
        assert sqlite.store.checkpoint(Rest.IDLE) not in (None, IDLE_GAP_S), "it waits for the reader, not for itself"
        assert wal_bytes(sqlite.path) < 1536 << 10
        assert reader.execute("SELECT count(*) FROM log").fetchone() == (count,)
    _settle(sqlite.store)
    assert len(list(sqlite.store.replay(1))) == 9_000


@pytest.mark.parametrize("round", [*range(5), *(pytest.param(n, marks=pytest.mark.soak) for n in range(5, 20))])
def test_readers_see_whole_cleanings_only(
    sqlite: SqliteBench, round: int, no_pace: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Appends, cleanings and pages given back, while three threads read."""
    monkeypatch.setattr(sqlite_module, "READ_S_MAX", float("inf"))  # no read is cut short, however busy the machine
    stop = threading.Event()
    wrong: list[object] = []
    reads = [0, 0, 0]

    def look(number: int) -> None:
        try:
            while not stop.is_set():
                boot = sqlite.store.boot()
                first_id = boot.base.id + 1
                ids = [e.id for e in sqlite.store.read_entries(first_id, boot.last_id, 1 << 30)]
                if ids not in ([], list(range(first_id, boot.last_id + 1))) or boot.base.id % 50:
                    wrong.append((boot.base, boot.last_id, ids))
                if sqlite.store.find_lsn(1, boot.last_id) < first_id:
                    wrong.append(boot.base)
                reads[number] += 1
        except StoreError as error:
            wrong.append(error)

    log = LogBuilder()
    _fill(sqlite.store, log, 400, step=100)
    threads = [threading.Thread(target=look, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in itertools.count(1):
        sqlite.store.commit([write(log.datas(50, size=200), runs=[])])
        _clean(sqlite.store, number * 50)
        if number % 5 == 0:
            sqlite.store.give_back()
        sqlite.store.checkpoint(Rest.IDLE if number % 3 else Rest.BUSY)
        if number > 15 and (min(reads) >= 3 or wrong):
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_appends_use_up_before_it_is_given_back_ends_it(sqlite: SqliteBench, no_pace: None) -> None:
    """Giving back ends when appends have used up the pages. SQLite would take a step of 0 pages to mean all pages."""
    log = LogBuilder()
    _fill(sqlite.store, log, 20_000)
    keeper = sqlite.store._space
    _clean(sqlite.store, 15_000, tidy=False)
    keeper.look()
    assert keeper.giving_back
    while _pages(sqlite.store).free > keeper._keep // 2:
        sqlite.store.commit([write(log.datas(500, size=200))])
    _clean(sqlite.store, 15_500, tidy=False)
    left = _pages(sqlite.store).free
    assert 16 < left < keeper._keep
    sqlite.store.checkpoint(Rest.IDLE)
    assert _pages(sqlite.store).free == left and not keeper.giving_back
