"""Looking at a directory from outside: no file is left there, no server waits, and damage does not end the walk."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sound_log import entries_with_runs, fill
from store_kit import LogBuilder, SqliteBench, base_of, write

from alpo.storage import schema, tables
from alpo.storage.boot import DirectoryLock
from alpo.storage.connections import connect_writer
from alpo.storage.interface import DamagedStore, StoreError, WrongStore
from alpo.storage.offline import Found, open_source


def there(directory: Path) -> dict[str, bytes]:
    """Content of each file in the directory, except for the index of the WAL, to which readers write."""
    return {p.name: b"" if p.name.endswith("-shm") else p.read_bytes() for p in directory.iterdir()}


def walk(directory: Path) -> list[Found]:
    with open_source(directory) as source:
        summary = source.summary()
        return list(source.walk(summary.first_id, summary.end_id))


def ids(found: list[Found]) -> list[tuple[int, int, bool]]:
    return [(each.first_id, each.last_id, each.damage == "") for each in found]


@pytest.mark.parametrize("state", ["running", "stopped", "killed", "copied", "copied with a lock"])
def test_nothing_is_left_behind(sqlite: SqliteBench, tmp_path: Path, state: str) -> None:
    entries = fill(sqlite)
    directory = sqlite.directory
    if state == "stopped":
        sqlite.store.close()
        assert sorted(there(directory)) == ["alpo.db", "alpo.lock"]
    elif state != "running":
        directory = tmp_path / "other"
        shutil.copytree(sqlite.directory, directory)
        if state != "killed":
            (directory / "alpo.db-shm").unlink()
        if state == "copied":
            (directory / "alpo.lock").unlink()
    before = there(directory)
    assert [found.entry for found in walk(directory)] == entries
    assert there(directory) == before


def test_the_index_of_a_server_that_came_meanwhile_is_left_to_it(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    directory = tmp_path / "other"
    shutil.copytree(sqlite.directory, directory)
    (directory / "alpo.db-shm").unlink()
    with open_source(directory):
        lock = DirectoryLock.take(directory)
    assert (directory / "alpo.db-shm").exists()
    lock.release()


def test_a_snapshot_is_not_held_while_what_was_read_is_used(
    sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "COLUMN_ROWS", 10)
    entries = fill(sqlite)
    with open_source(sqlite.directory) as source:
        found = source.walk(1, len(entries))
        next(found)
        assert not source._db.in_transaction
        with closing(connect_writer(sqlite.path)) as db:
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
        assert len(list(found)) == len(entries) - 1


@pytest.mark.parametrize(("sql", "expected"), [
    ("DELETE FROM log WHERE id = 7", [(7, 7)]),
    ("DELETE FROM log WHERE id BETWEEN 7 AND 9", [(7, 9)]),
    ("DELETE FROM log WHERE id > 30", [(31, 35)]),  # up to the guaranteed mark
    ("UPDATE log SET body = 'x' WHERE id = 7", [(7, 7)]),
    ("UPDATE log SET client = CAST(x'ff' AS TEXT) WHERE id IN (3, 7)", [(3, 3), (7, 7)]),
    ("UPDATE log SET id = 1000 WHERE id = 41", [(41, 999), (1000, 1000)]),
])
def test_damage_is_told_and_gone_past(sqlite: SqliteBench, sql: str, expected: list[tuple[int, int]]) -> None:
    fill(sqlite)
    sqlite.tamper(sql)
    found = walk(sqlite.directory)
    assert [(each.first_id, each.last_id) for each in found if each.damage] == expected
    last_ids = [0, *[each.last_id for each in found]]
    assert [each.first_id for each in found] == [id + 1 for id in last_ids[:-1]]


def test_pages_that_cannot_be_read_are_gone_past(sqlite: SqliteBench) -> None:
    log = LogBuilder()
    entries = log.datas(2000, size=100)
    sqlite.store.commit([write(entries)])
    sqlite.store.close()
    with closing(sqlite3.connect(sqlite.path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'log'").fetchone()
    data = bytearray(sqlite.path.read_bytes())
    size = schema.PAGE_BYTES
    leaves = [at for at in range(size, len(data), size) if data[at] == 13 and at // size + 1 > root]
    for at in leaves[3:30:9]:
        data[at] = 77  # no kind of page
    sqlite.path.write_bytes(data)
    found = walk(sqlite.directory)
    bad = [each for each in found if each.damage]
    assert len(bad) >= 2 and all(each.entry is None for each in bad)
    assert found[0].first_id == 1 and found[-1].entry == entries[-1]
    assert sum(each.last_id - each.first_id + 1 for each in found) == 2000
    assert [e.entry for e in found if e.entry] == [
        e for e in entries if not any(b.first_id <= e.id <= b.last_id for b in bad)
    ]


def test_runs_are_read_and_found(sqlite: SqliteBench) -> None:
    """R32: row by row too, which is how pages with damage are read; and by any LSN within."""
    entries = fill(sqlite, entries_with_runs(), applied_id=0, guaranteed_id=16)
    with open_source(sqlite.directory) as source:
        assert source.read(1, 16) == source.read_columns(1, 16).entries() == entries
        for entry in entries:
            assert {source.id_of(lsn, 1, 16) for lsn in range(entry.lsn, entry.lsn + entry.count)} <= {entry.id}
    other = "CAST(substr(digest, 1, 30) || x'ff' || substr(digest, 32) AS BLOB)"
    sqlite.tamper(f"UPDATE log SET digest = {other} WHERE id = 14")
    assert [each.first_id for each in walk(sqlite.directory) if each.damage] == [14]
    with open_source(sqlite.directory) as source:
        assert source.read_columns(1, 16).entries() == entries[:13]
        with pytest.raises(DamagedStore, match="entry 14 does not match its checksum"):
            source.read(14, 16)


def test_an_end_that_is_rewritten_meanwhile_is_told(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMN_ROWS", 40)
    entries = fill(sqlite)
    with open_source(sqlite.directory) as source:
        found = source.walk(1, 41)
        next(found)
        new = LogBuilder(37, entries[36].lsn, entries[36].time_ms)
        sqlite.store.commit([write(new.datas(5, 9), expunge_from=37)])
        with pytest.raises(StoreError, match="rewritten"):
            list(found)


def test_what_is_cleaned_meanwhile_is_left_out(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMN_ROWS", 10)
    entries = fill(sqlite)
    with open_source(sqlite.directory) as source:
        found = source.walk(1, 41)
        next(found)
        sqlite.store.commit([write([], base=base_of(entries[24]), guaranteed_id=35, term=5)])
        assert [each.first_id for each in found] == [*range(2, 11), *range(26, 42)]


def test_a_file_that_a_server_takes_up_meanwhile_is_told(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMN_ROWS", 10)
    fill(sqlite)
    sqlite.store.close()
    with open_source(sqlite.directory) as source:
        found = source.walk(1, 41)
        next(found)
        sqlite.store = sqlite._open()
        sqlite.store.commit([write([], term=9)])
        with pytest.raises(StoreError, match="changed while"):
            list(found)


def test_what_is_no_data_file_is_refused(sqlite: SqliteBench, tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"hello " * 1000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DamagedStore), open_source(tmp_path / name):
            pass
    with pytest.raises(StoreError, match="no data file"), open_source(tmp_path / "nothing"):
        pass
    with closing(sqlite3.connect(tmp_path / "other")) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(WrongStore, match="not an ALPO"), open_source(tmp_path / "other"):
        pass
    for version in (1, 99):
        sqlite.tamper("UPDATE hard SET term = term")
        with closing(connect_writer(sqlite.path)) as db:
            db.execute(f"PRAGMA user_version={version}")
        with pytest.raises(WrongStore, match=f"schema {version}"), open_source(sqlite.directory):
            pass
    assert not (tmp_path / "nothing").exists()
