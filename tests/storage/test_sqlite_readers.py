"""Readers and the writer at once: none waits, no reader sees a part of a commit, and the WAL stays bounded."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from store_kit import LogBuilder, SqliteBench, write

from alpo.storage import search, wal
from alpo.storage import sqlite as sqlite_module
from alpo.storage.connections import ReadPool
from alpo.storage.interface import Rest, StoreError
from alpo.storage.schema import wal_bytes
from alpo.storage.search import Head

COUNT = "SELECT count(*) FROM log"


def test_an_open_reader_does_not_hold_up_a_commit_nor_see_it(sqlite: SqliteBench) -> None:
    log = LogBuilder()
    sqlite.store.commit([write(log.datas(3))])
    with sqlite.store._pool.snapshot() as reader:
        assert reader.execute(COUNT).fetchone() == (3,)
        sqlite.store.commit([write(log.datas(4), runs=[])])
        sqlite.store.checkpoint(Rest.IDLE)
        assert reader.execute(COUNT).fetchone() == (3,)
        assert len(list(sqlite.store.replay(1))) == 7
    assert len(list(sqlite.store.replay(1))) == 7


def test_a_commit_under_way_holds_up_no_reader_and_is_not_seen(sqlite: SqliteBench) -> None:
    log = LogBuilder()
    sqlite.store.commit([write(log.datas(3))])
    sqlite.store._db.execute("BEGIN IMMEDIATE")
    sqlite.store._db.execute("DELETE FROM log")
    assert len(sqlite.store.read_entries(1, 9, 10_000)) == 3
    assert sqlite.store.find_lsn(3, 3) == 3
    assert sqlite.store.boot().last_id == 3
    sqlite.store._db.execute("ROLLBACK")


@pytest.mark.parametrize("round", [*range(5), *(pytest.param(n, marks=pytest.mark.soak) for n in range(5, 20))])
def test_readers_see_whole_commits_only(sqlite: SqliteBench, round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of ten, expunges of ten among them, while three threads read."""
    monkeypatch.setattr(sqlite_module, "READ_S_MAX", float("inf"))  # no read is cut short, however busy the machine
    stop = threading.Event()
    wrong: list[object] = []
    reads = [0, 0, 0]

    def look(number: int) -> None:
        try:
            while not stop.is_set():
                entries = sqlite.store.read_entries(1, 10_000, 1 << 20)
                boot = sqlite.store.boot()
                if len(entries) % 10 or boot.last_id % 10 or boot.vote * 10 != boot.last_id:
                    wrong.append((len(entries), boot))
                reads[number] += 1
        except StoreError as error:
            wrong.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    tens = 0
    log = LogBuilder()
    while tens < 30 or (min(reads) < 3 and not wrong):
        if tens % 5 == 4:
            tens -= 1
            sqlite.store.commit([write(expunge_from=tens * 10 + 1, vote=tens)])
            log = LogBuilder(tens * 10 + 1, tens * 10 + 1)
            for _ in range(2):
                tens += 1
                sqlite.store.commit([write(log.datas(10), vote=tens, runs=[])])
        else:
            tens += 1
            sqlite.store.commit([write(log.datas(10), vote=tens, runs=[(1, 1)] if tens == 1 else [])])
        sqlite.store.checkpoint(Rest.IDLE if tens % 7 == 0 else Rest.BUSY)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_BYTES", 256 << 10)
    monkeypatch.setattr(wal, "TRUNCATE_BYTES", 1 << 20)
    monkeypatch.setattr(wal, "RETRY_BYTES", 128 << 10)
    monkeypatch.setattr(wal, "TRUNCATE_WAIT_S", 0.001)


def test_the_wal_stays_bounded(small_wal: None, sqlite: SqliteBench) -> None:
    sqlite.reopen()
    log, largest = LogBuilder(), 0
    for number in range(300):
        sqlite.store.commit([write(log.datas(10, size=1000), runs=[] if number else [(1, 1)])])
        sqlite.store.checkpoint(Rest.BUSY)
        largest = max(largest, wal_bytes(sqlite.path))
    assert 200 << 10 < largest < 400 << 10
    assert sqlite.store.checkpoint(Rest.IDLE) is None
    assert sqlite.store.size_bytes() > 3_000_000


def test_after_a_reader_that_stayed_the_wal_shrinks_again(
    small_wal: None, sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    sqlite.reopen()
    log = LogBuilder()
    sqlite.store.commit([write(log.datas(10))])
    tries = 0
    with sqlite.store._pool.snapshot() as reader:
        reader.execute(COUNT).fetchone()
        run = sqlite.store._wal._run

        def counted(mode: str) -> None:
            nonlocal tries
            tries += 1
            run(mode)

        monkeypatch.setattr(sqlite.store._wal, "_run", counted)
        for _ in range(300):
            sqlite.store.commit([write(log.datas(10, size=1000), runs=[])])
            sqlite.store.checkpoint(Rest.BUSY)
        assert wal_bytes(sqlite.path) > 3_000_000
        assert sqlite.store.checkpoint(Rest.IDLE) is not None
    assert tries < 150  # not one a commit
    for _ in range(30):
        sqlite.store.commit([write(log.datas(10, size=1000), runs=[])])
        sqlite.store.checkpoint(Rest.BUSY)
    assert wal_bytes(sqlite.path) < 400 << 10


def test_a_read_is_cut_short_by_rows_and_by_time(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = LogBuilder().datas(600)
    sqlite.store.commit([write(entries)])
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_module, "READ_ROWS_MAX", 50)
        assert sqlite.store.read_entries(5, 600, 1 << 20) == entries[4:54]
        assert list(sqlite.store.replay(1)) == entries
    monkeypatch.setattr(sqlite_module, "READ_S_MAX", -1.0)
    assert sqlite.store.read_entries(1, 600, 1 << 20) == entries[:256]
    assert list(sqlite.store.replay(1)) == entries


def test_idle_readers_are_few_and_never_left_in_a_snapshot(sqlite: SqliteBench) -> None:
    pool: ReadPool = sqlite.store._pool
    barrier = threading.Barrier(20)

    def look() -> None:
        with pool.snapshot() as db:
            db.execute(COUNT).fetchone()
            barrier.wait()

    threads = [threading.Thread(target=look) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(pool._idle) <= 8
    with pytest.raises(ZeroDivisionError), pool.snapshot() as db:
        db.execute(COUNT)
        raise ZeroDivisionError
    assert not any(db.in_transaction for db in pool._idle)


def test_a_reader_still_out_when_the_store_closes_is_closed_on_its_return(sqlite: SqliteBench) -> None:
    with sqlite.store._pool.snapshot() as db:
        db.execute(COUNT).fetchone()
        sqlite.store.close()
    assert not sqlite.store._pool._idle
    sqlite.store = sqlite._open()


def test_whoever_reads_on_does_not_search(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three, read by pages: neither where the next page begins nor where all ends is sought by halving."""
    log = LogBuilder()
    sqlite.store.commit([write([log.data(payloads=(b"x",) * 3) for _ in range(300)])])
    looks: list[int] = []
    read = search.read_head

    def watched(db: sqlite3.Connection, path: Path, id: int) -> Head:
        looks.append(id)
        return read(db, path, id)

    monkeypatch.setattr(sqlite_module, "read_head", watched)
    assert sqlite.store.find_lsn(600, 300) == 200
    columns = sqlite.store.read_columns(41, 90, 1 << 20)
    assert columns.ids[-1] == 90
    assert len(looks) > 5
    looks.clear()
    assert sqlite.store.find_lsn(columns.lsns[-1] + columns.counts[-1], 300) == 91
    assert sqlite.store.find_lsn(600, 300) == 200
    assert looks == [91, 90, 200, 199]
