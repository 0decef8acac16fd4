"""Damage never reads as the end of the log: the page where it ends, and the schema, are looked at before use (R31)."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_kit import SERVER, LogBuilder, SqliteBench, cleaning, table, write

from alpo.core.entries import Entry
from alpo.storage.audit import verify
from alpo.storage.interface import DamagedStore
from alpo.storage.offline import open_source
from alpo.storage.schema import DB_NAME, PAGE_BYTES
from alpo.storage.sqlite import SqliteStore


def _left(sqlite: SqliteBench, directory: Path) -> Path:
    """Copy the files to ``directory``, as a kill at this moment would leave them."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(sqlite.directory / (DB_NAME + suffix), directory)
    return directory


def _opened(directory: Path) -> list[Entry]:
    store = SqliteStore.open(directory, SERVER)
    try:
        store.boot()
        return list(store.replay(1))
    finally:
        store.close()


def _last_leaf(path: Path) -> int:
    """Offset in the file of the page that holds the last body."""
    return path.read_bytes().rindex(b"the last one") // PAGE_BYTES * PAGE_BYTES


def _fill(sqlite: SqliteBench) -> list[Entry]:
    log = LogBuilder()
    entries = [*log.datas(300, size=100), log.data(payloads=(b"the last one",))]
    sqlite.store.commit([write(entries[:50])])
    sqlite.store.commit([write(entries[50:], runs=[])])
    return entries


def _forget_rows(path: Path, by: int) -> None:
    """Lower the number of rows in the last leaf page, as if bits of it had flipped."""
    at = _last_leaf(path) + 3
    file = bytearray(path.read_bytes())
    (rows,) = struct.unpack_from(">H", file, at)
    assert rows > by
    struct.pack_into(">H", file, at, rows - by)
    path.write_bytes(file)


def test_a_page_that_forgets_its_last_rows_of_a_store_that_was_closed(sqlite: SqliteBench, tmp_path: Path) -> None:
    _fill(sqlite)
    sqlite.store.close()
    for by in (1, 2, 4, 8):
        directory = tmp_path / "damaged"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        shutil.copy(sqlite.path, directory)
        _forget_rows(directory / DB_NAME, by)
        with pytest.raises(DamagedStore, match="where the log ends"):
            SqliteStore.open(directory, SERVER)


def test_a_page_that_forgets_its_last_rows_under_a_wal_without_it(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = _fill(sqlite)
    sqlite.store._wal._run("TRUNCATE")
    sqlite.store.commit([write(vote=1)])
    assert _opened(_left(sqlite, tmp_path / "whole")) == entries
    _forget_rows(_left(sqlite, tmp_path / "damaged") / DB_NAME, 3)
    with pytest.raises(DamagedStore, match="where the log ends"):
        SqliteStore.open(tmp_path / "damaged", SERVER)


def test_a_page_that_the_wal_has_anew_does_not_matter(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = _fill(sqlite)
    sqlite.store._wal._run("TRUNCATE")
    entries += LogBuilder(302, entries[-1].lsn + 1, entries[-1].time_ms + 1).datas(1)
    sqlite.store.commit([write(entries[-1:], runs=[])])
    directory = _left(sqlite, tmp_path / "damaged")
    _forget_rows(directory / DB_NAME, 3)
    assert _opened(directory) == entries


@pytest.mark.parametrize("seed", range(3))
def test_sound_stores_are_sound(tmp_path: Path, seed: int) -> None:
    """Whatever was appended, expunged and cleaned, in rows of all sizes, with what in the WAL."""
    rng = random.Random(seed)
    sqlite = SqliteBench(tmp_path / "data")
    entries: list[Entry] = []
    base = 0
    for term in range(1, 41):
        if len(entries) > 10 and rng.random() < 0.3:
            keep = rng.randrange(len(entries) - 9, len(entries))
            entries = entries[:keep]
        next_id = base + len(entries) + 1
        before = entries[-1] if entries else None
        log = LogBuilder(next_id, before.lsn + before.count if before else 1, before.time_ms if before else 1)
        new = [log.data(term, (rng.randbytes(rng.choice((0, 1, 60, 900, 5_000))),)) for _ in range(rng.randint(1, 9))]
        sqlite.store.commit([write(new, expunge_from=next_id, guaranteed_id=base)])
        entries += new
        if rng.random() < 0.2:
            upto = rng.randrange(len(entries) - 1) if len(entries) > 1 else 0
            sqlite.store.commit([cleaning(entries[upto], term=term, table=table(entries[upto].id, []))])
            base, entries = entries[upto].id, entries[upto + 1 :]
            if not entries:
                break
        if rng.random() < 0.5:
            sqlite.store._wal._run(rng.choice(("PASSIVE", "TRUNCATE")))
        if rng.random() < 0.5:
            sqlite.store.commit([write(term=term, vote=rng.randrange(9), guaranteed_id=base)])
        assert _opened(_left(sqlite, tmp_path / "copy")) == entries
        if rng.random() < 0.3:
            assert list(sqlite.reopen().replay(1)) == entries
    sqlite.store.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda db: db.execute("UPDATE sqlite_master SET sql = replace(sql, 'vote', 'vota') WHERE name = 'hard'"),
        lambda db: db.execute("UPDATE sqlite_master SET name = 'hart', tbl_name = 'hart', sql ="
                              " replace(sql, 'hard', 'hart') WHERE name = 'hard'"),
        lambda db: db.execute("DELETE FROM sqlite_master WHERE name = 'payloads'"),
        lambda db: db.execute("UPDATE sqlite_master SET sql = sql || ' ' WHERE name = 'applied'"),
    ],
)
def test_a_schema_that_was_damaged(sqlite: SqliteBench, change: Callable[[sqlite3.Connection], object]) -> None:
    sqlite.store.close()
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema=ON")
        change(db)
    with pytest.raises(DamagedStore, match="schema"):
        SqliteStore.open(sqlite.directory, SERVER)


def test_what_an_operator_added_is_left_alone(sqlite: SqliteBench) -> None:
    entries = _fill(sqlite)
    sqlite.store.close()
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as db:
        db.execute("CREATE VIEW mine AS SELECT count(*) FROM payloads")
    sqlite.store = sqlite._open()
    assert list(sqlite.store.replay(1)) == entries


def test_verify_says_so(sqlite: SqliteBench) -> None:
    _fill(sqlite)
    sqlite.store.close()
    with open_source(sqlite.path) as source:
        before = len(verify(source).faults)
    _forget_rows(sqlite.path, 2)
    with open_source(sqlite.path) as source:
        faults = verify(source).faults
    assert len(faults) == before + 1 and any("where the log ends" in fault.what for fault in faults)
