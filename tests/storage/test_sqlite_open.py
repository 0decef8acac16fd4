"""Opening a data directory: its lock, its server, its creation, and the version that wrote it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_kit import INCARNATION, SERVER, LogBuilder, SqliteBench, write

from alpo.core.disk import StartState
from alpo.core.members import StartStatus
from alpo.storage import schema
from alpo.storage.interface import DamagedStore, DirectoryInUse, StoreError, WrongStore
from alpo.storage.sqlite import SqliteStore

CLUSTER = b"c" * 16


def _files(directory: Path) -> dict[str, bytes]:
    """All bytes that are the store's; the lock's file and SQLite's index of the WAL are not."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix != ".lock" and not p.name.endswith("-shm")}


def test_a_new_directory_is_private_and_its_store_durable_as_promised(sqlite: SqliteBench) -> None:
    assert sqlite.directory.stat().st_mode & 0o777 == 0o700
    pragmas = {
        name: sqlite.store._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "auto_vacuum", "wal_autocheckpoint", "page_size")
    }
    assert pragmas == {
        "journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "wal_autocheckpoint": 0, "page_size": 4096,
    }
    indexes = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = 'log'"
    assert sqlite.store._db.execute(indexes).fetchone() == (0,)


def test_each_new_store_has_another_incarnation(tmp_path: Path) -> None:
    found = set()
    for name in "abc":
        store = SqliteStore.open(tmp_path / name, 1)
        found.add(store.boot().me.incarnation)
        store.close()
    assert len(found) == 3 and {len(f) for f in found} == {16}


def test_a_second_open_names_the_holder(sqlite: SqliteBench) -> None:
    with pytest.raises(DirectoryInUse, match=rf"\b{os.getpid()}\b"):
        SqliteStore.open(sqlite.directory, SERVER)
    sqlite.reopen()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from alpo.storage.sqlite import SqliteStore\n"
        "store = SqliteStore.open(Path(sys.argv[1]), 1); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryInUse, match=rf"\b{holder.pid}\b"):
            SqliteStore.open(tmp_path, 1)
        holder.kill()
    SqliteStore.open(tmp_path, 1).close()


def _prepare(sqlite: SqliteBench, *, clean: bool) -> Path:
    """A store with a cluster; ``clean``: closed, else its WAL still holds everything, as after a crash."""
    start = StartState(StartStatus.STARTED, cluster=CLUSTER)
    sqlite.store.commit([write(LogBuilder().datas(3), start=start)])
    if not clean:
        copy = sqlite.directory.with_name("copy")
        copy.mkdir()
        for name, content in _files(sqlite.directory).items():
            (copy / name).write_bytes(content)
        return copy
    sqlite.store.close()
    return sqlite.directory


@pytest.mark.parametrize("clean", [True, False])
def test_anothers_directory_is_left_as_it_is(sqlite: SqliteBench, clean: bool) -> None:
    directory = _prepare(sqlite, clean=clean)
    before = _files(directory)
    with pytest.raises(WrongStore, match="server 3, not 4"):
        SqliteStore.open(directory, 4, cluster=CLUSTER)
    with pytest.raises(WrongStore, match=CLUSTER.hex()):
        SqliteStore.open(directory, SERVER, cluster=b"d" * 16)
    assert _files(directory) == before
    store = SqliteStore.open(directory, SERVER, cluster=CLUSTER)
    assert store.boot().last_id == 3
    store.close()


def test_a_store_of_no_cluster_yet_fits_any(sqlite: SqliteBench) -> None:
    sqlite.store.close()
    SqliteStore.open(sqlite.directory, SERVER, cluster=CLUSTER).close()


def test_a_newer_schema_is_left_as_it_is(sqlite: SqliteBench) -> None:
    sqlite.store.close()
    with closing(sqlite3.connect(sqlite.path)) as db:
        db.execute(f"PRAGMA user_version={schema.VERSION + 1}")
    before = _files(sqlite.directory)
    with pytest.raises(WrongStore, match="newer"):
        SqliteStore.open(sqlite.directory, SERVER)
    assert _files(sqlite.directory) == before


def _add_version(patch: pytest.MonkeyPatch, step: Callable[[sqlite3.Connection], None]) -> None:
    """Let there be a next version, which ``step`` makes of the present one."""
    patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS | {schema.VERSION + 1: step})
    patch.setattr(schema, "VERSION", schema.VERSION + 1)


def test_an_older_schema_is_brought_up_once(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = LogBuilder().datas(3)
    sqlite.store.commit([write(entries)])
    runs = []

    def next_version(db: sqlite3.Connection) -> None:
        runs.append(1)
        db.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")

    _add_version(monkeypatch, next_version)
    for _ in range(2):
        sqlite.reopen()
        assert list(sqlite.store.replay(1)) == entries
        assert sqlite.store._db.execute("SELECT count(*) FROM later").fetchone() == (0,)
    assert len(runs) == 1


def test_a_migration_that_fails_changes_nothing(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_version(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
        db.execute("SELECT * FROM nowhere")

    sqlite.store.close()
    with monkeypatch.context() as patched:
        _add_version(patched, next_version)
        with pytest.raises(StoreError):
            SqliteStore.open(sqlite.directory, SERVER)
    sqlite.store = sqlite._open()
    (tables,) = sqlite.store._db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'later'").fetchone()
    assert tables == 0


@pytest.mark.parametrize("step", ["replace", "unlink"])
def test_a_crash_while_the_store_is_made_leaves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str,
) -> None:
    class Crash(Exception):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, crash)
        with pytest.raises(Crash):
            SqliteStore.open(tmp_path, 1)
    assert not (tmp_path / "alpo.db").exists()
    (tmp_path / "alpo.db.new").write_bytes(b"half")
    (tmp_path / "alpo.db.new-journal").write_bytes(b"half")
    store = SqliteStore.open(tmp_path, 1, make_incarnation=lambda: INCARNATION)
    assert store.boot().me == (1, INCARNATION)
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alpo.db", "alpo.lock"]


def test_an_empty_file_never_was_a_store(tmp_path: Path) -> None:
    (tmp_path / "alpo.db").touch()
    SqliteStore.open(tmp_path, 1).close()
    (tmp_path / "alpo.db").write_bytes(b"")
    (tmp_path / "alpo.db-wal").write_bytes(b"x" * 100)
    with pytest.raises(DamagedStore, match="empty"):
        SqliteStore.open(tmp_path, 1)


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "alpo.db").write_bytes(b"all kinds of things " * 500)
    with pytest.raises(DamagedStore):
        SqliteStore.open(tmp_path, 1)
    (tmp_path / "alpo.db").unlink()
    with closing(sqlite3.connect(tmp_path / "alpo.db")) as db:
        db.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    with pytest.raises(WrongStore, match="not an ALPO"):
        SqliteStore.open(tmp_path, 1)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        SqliteStore.open(tmp_path / "file", 1)
    (tmp_path / "taken" / "alpo.lock").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"alpo\.lock"):
        SqliteStore.open(tmp_path / "taken", 1)
