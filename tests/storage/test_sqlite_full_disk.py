"""Disks that are really full, and disks that fail: nothing that was reported is lost, nothing failed is tried again.

The full disk is a small file system in memory, where this user may mount one. Without: see
`test_sqlite_crash.test_a_write_error_puts_the_store_out_of_use_and_a_restart_finds_all_that_was_reported`.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from store_kit import SERVER, LogBuilder, SqliteBench, cleaning, write

from alpo.core.disk import Write
from alpo.storage.interface import Rest, StoreError, StoreFull
from alpo.storage.sqlite import SqliteStore
from alpo.storage.writer import Writer

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    ) if shutil.which("mount") else None
    if mounted is None or mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip() if mounted else 'no mount'}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(disk: Path, left_bytes: int = 0) -> Path:
    """Take all that is free on it but so much."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free - left_bytes) > 0:
            try:
                file.write(bytes(min(free, MIB)))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
    return filler


def _as_after_a_crash(disk: Path, to: Path) -> tuple[int, int]:
    """The last id and the entries of what a kill at this moment would leave."""
    to.mkdir()
    for name in ("alpo.db", "alpo.db-wal"):
        if (disk / name).exists():
            shutil.copy(disk / name, to / name)
    store = SqliteStore.open(to, SERVER)
    try:
        return store.boot().last_id, len(list(store.replay(1)))
    finally:
        store.close()
        shutil.rmtree(to)


def test_a_full_disk_takes_nothing_loses_nothing_and_heals(small_disk: Path, tmp_path: Path) -> None:
    store = SqliteStore.open(small_disk, SERVER)
    log = LogBuilder()
    entries = log.datas(20, size=1000)
    store.commit([write(entries)])
    more = [log.datas(count, size=20_000) for count in (50, 100, 150)]  # more than the WAL's blocks hold
    for round, left in enumerate((0, 5_000, 300_000)):
        filler = _fill(small_disk, left)
        for _ in range(3):
            with pytest.raises(StoreFull):
                store.commit([write(more[round], runs=[])])
            assert store.boot().last_id == len(entries)
            assert _as_after_a_crash(small_disk, tmp_path / "copy") == (len(entries), len(entries))
        filler.unlink()
        store.commit([write(more[round], runs=[])])
        entries += more[round]
        assert list(store.replay(1)) == entries
        with_room = _fill(small_disk, 0)
        for rest in Rest:
            with suppress(StoreFull):
                store.checkpoint(rest)
        assert _as_after_a_crash(small_disk, tmp_path / "copy") == (len(entries), len(entries))
        with_room.unlink()
        store.checkpoint(Rest.IDLE)
    store.close()
    store = SqliteStore.open(small_disk, SERVER)
    assert list(store.replay(1)) == entries
    store.close()


def test_the_disk_fills_up_again_and_again_under_a_writer(small_disk: Path) -> None:
    """Every write that was reported is there, in order, and the writer never fails."""
    store = SqliteStore.open(small_disk, SERVER)
    done = [0]
    failures: list[BaseException] = []
    writer = Writer(store, done.append, failures.append)
    log = LogBuilder()
    last = write([])

    def submit(one: Write) -> None:
        nonlocal last
        last = one
        writer.submit(one)

    def wait(condition: Callable[[], bool]) -> None:
        while not condition():
            assert not failures
            os.sched_yield()

    for _ in range(5):
        filler = _fill(small_disk, MIB // 2)
        while not writer.stats.full:
            group = write(log.datas(10, size=2000), runs=[] if log.id > 11 else [(1, 1)])
            submit(group)
            wait(lambda: bool(writer.stats.full) or done[-1] == last.number)
        for _ in range(5):
            submit(write(log.datas(10, size=2000), runs=[]))
        assert done[-1] < last.number and store.boot().last_id == log.id - 61, "something passed what waits"
        filler.unlink()
        wait(lambda: done[-1] == last.number)
        assert store.boot().last_id == log.id - 1
        submit(cleaning(last.entries[0]))
        writer.give_back()
        wait(lambda: done[-1] == last.number)
    writer.close()
    assert failures == [] and sorted(done) == done
    store.close()
    store = SqliteStore.open(small_disk, SERVER)
    assert store.boot().last_id == log.id - 1
    store.close()


def test_giving_back_on_a_full_disk_can_wait(small_disk: Path) -> None:
    store = SqliteStore.open(small_disk, SERVER)
    log = LogBuilder()
    first = log.datas(200, size=20_000)
    store.commit([write(first)])
    store.checkpoint(Rest.IDLE)
    kept = log.datas(20, size=20_000)
    store.commit([write(kept, runs=[])])
    store.commit([cleaning(first[-1])])
    store.checkpoint(Rest.IDLE)
    store.give_back()
    filler = _fill(small_disk)
    for _ in range(100):
        with suppress(StoreFull):
            store.checkpoint(Rest.IDLE)
    filler.unlink()
    for _ in range(1000):
        if store.checkpoint(Rest.IDLE) is None:
            break
    assert store.free_bytes() == 0
    assert list(store.replay(1)) == kept
    store.close()


class _Failing:
    """A connection whose commits fail like a disk whose fsync does."""

    def __init__(self, db: sqlite3.Connection, code: int) -> None:
        self._db = db
        self._code = code
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.tries += 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            error.sqlite_errorname = "SQLITE_IOERR"
            raise error
        return self._db.execute(sql, *parameters)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR])
def test_an_fsync_that_fails_is_not_tried_again(
    sqlite: SqliteBench, code: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that failed an fsync may have dropped the pages: a later fsync that succeeds proves nothing."""
    store = sqlite.store
    store.commit([write(LogBuilder().datas(3))])
    failing = _Failing(store._db, code)
    monkeypatch.setattr(store, "_db", failing)
    failures: list[BaseException] = []
    done: list[int] = []
    writer = Writer(store, done.append, failures.append)
    for vote in range(1, 4):
        writer.submit(write(vote=vote))
    writer.close()
    assert [type(f) for f in failures] == [StoreError] and done == []
    assert failing.tries == 1
    with pytest.raises(StoreError, match="out of use"):
        store.commit([write(vote=9)])
    assert failing.tries == 1
    assert sqlite.reopen().boot().vote == 0
