"""A file that an older version wrote is brought up whole or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from store_kit import INCARNATION, SERVER, LogBuilder, SqliteBench, cleaning, row, table, write

from alpo.core.disk import NO_BASE, StartState
from alpo.core.entries import Entry
from alpo.core.members import Identity, StartStatus
from alpo.storage import schema
from alpo.storage.connections import as_database, connect_writer
from alpo.storage.interface import WrongStore
from alpo.storage.offline import open_source
from alpo.storage.sqlite import SqliteStore
from alpo.storage.tables import SCHEMA

CLUSTER = b"c" * 16


def _entries() -> list[Entry]:
    log = LogBuilder()
    return [log.leader(4), *log.datas(3, 4), log.leader(6), log.data(6, payloads=(b"a", b"b"))]


def _left_by(version: int, tmp_path: Path) -> Path:
    """A directory with a file as that version left it."""
    directory = tmp_path / f"version_{version}"
    directory.mkdir()
    with closing(sqlite3.connect(directory / schema.DB_NAME)) as db:
        db.executescript(Path(__file__).with_name(f"version_{version}.sql").read_text())
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    return directory


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return _left_by(1, tmp_path)


def _tables(directory: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(f"file:{directory / schema.DB_NAME}?mode=ro", uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return version, [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _check(directory: Path) -> None:
    """Check that the store holds all that the old file held, and that it works."""
    entries = _entries()
    store = SqliteStore.open(directory, SERVER, cluster=CLUSTER)
    boot = store.boot()
    assert boot.start == StartState(
        StartStatus.STARTED, (Identity(SERVER, INCARNATION),), b"d" * 16, CLUSTER,
        [[SERVER, "h:1", 0, INCARNATION.hex(), 1, []]], {"window": 1024},
    )
    assert (boot.me, boot.term, boot.vote) == (Identity(SERVER, INCARNATION), 7, 2)
    assert (boot.guaranteed_id, boot.fully_replicated_id, boot.applied_id, boot.trim_lsn) == (5, 4, 5, 1)
    assert boot.cursors == ()
    assert (boot.base, boot.runs, boot.last_id, boot.next_lsn) == (NO_BASE, [(4, 1), (6, 5)], 6, 6)
    assert (boot.sessions, boot.members) == ([row("a", 3, 2), row("b")], table(5, []).members)
    assert list(store.replay(1)) == entries
    store.commit([cleaning(entries[3], guaranteed_id=5, table=None, term=7)])
    store.close()
    store = SqliteStore.open(directory, SERVER, cluster=CLUSTER)
    assert (store.boot().base.id, list(store.replay(1))) == (4, entries[4:])
    store.close()


def test_version_1_is_brought_up(version_1: Path) -> None:
    assert _tables(version_1)[0] == 1
    _check(version_1)
    version, tables = _tables(version_1)
    assert version == len(schema.MIGRATIONS) and "base" in tables


def test_a_session_of_version_4_was_born_with_the_oldest_epoch_that_it_tells_of(tmp_path: Path) -> None:
    """R22: so an append that a drop may have made the table forget is never reported as "not in the log"."""
    directory = _left_by(4, tmp_path)
    assert _tables(directory)[0] == 4
    store = SqliteStore.open(directory, SERVER)
    born = {session.client: (session.birth, session.epoch) for session in store.boot().sessions}
    store.close()
    assert born == {"forgotten": (9, 9), "named": (5, 7), "~018bcfe5-6800-7abc-8def-000000000001": (0, 0)}
    assert _tables(directory)[0] == len(schema.MIGRATIONS)


def test_the_views_of_version_5_learn_of_runs(tmp_path: Path) -> None:
    """R32: the views show what they showed before, and of a run the serial of each payload."""
    directory = _left_by(5, tmp_path)

    def told() -> tuple[list[tuple[int, int]], list[tuple[str, int]]]:
        with closing(sqlite3.connect(f"file:{directory / schema.DB_NAME}?mode=ro", uri=True)) as db:
            return (
                db.execute("SELECT lsn, serial FROM payloads").fetchall(),
                db.execute("SELECT client, last_serial FROM sessions ORDER BY client").fetchall(),
            )

    before = [(1, 2), (2, 3), (3, 4), (4, 4)]
    assert _tables(directory)[0] == 5 and told() == (before, [("named", 2), ("~client", 4)])
    store = SqliteStore.open(directory, SERVER)
    assert told() == (before, [("named", 2), ("~client", 4)])
    store.commit([write([LogBuilder(5, 5).run(5, (b"a",), (b"b", b"c"), (b"d",), term=4)], runs=[], term=7)])
    assert told() == ([*before, (5, 5), (6, 6), (7, 6), (8, 7)], [("named", 2), ("~client", 7)])
    store.close()
    assert _tables(directory)[0] == len(schema.MIGRATIONS)


@pytest.mark.parametrize("version", [4, 5])
def test_released_text_is_as_it_was_released(version: int, tmp_path: Path) -> None:
    def text(db: sqlite3.Connection) -> list[tuple[str, str]]:
        return db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()

    directory = _left_by(version, tmp_path)
    with (
        closing(sqlite3.connect(directory / schema.DB_NAME)) as released,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as made,
    ):
        schema.run_migrations(made, 0, version)
        assert text(made) == text(released)


@pytest.mark.parametrize(("backup", "how"), [(False, "a server of this version"), (True, "`alpo restore` of this")])
def test_looked_at_from_outside_it_is_told_and_left_as_it_is(version_1: Path, backup: bool, how: str) -> None:
    path = version_1 / schema.DB_NAME
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        if backup:
            db.execute(f"PRAGMA application_id={schema.BACKUP_APPLICATION_ID}")
    before = path.read_bytes()
    told = rf"older version \(schema 1; this one reads {len(schema.MIGRATIONS)}\): {how}"
    with pytest.raises(WrongStore, match=told), open_source(version_1):
        pass
    assert path.read_bytes() == before and [file.name for file in version_1.iterdir()] == [schema.DB_NAME]


def test_a_new_file_has_the_schema_of_one_brought_up(version_1: Path, sqlite: SqliteBench) -> None:
    SqliteStore.open(version_1, SERVER).close()
    found = []
    for path in (version_1 / schema.DB_NAME, sqlite.path):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            found.append(db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
            found[-1] += [db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "auto_vacuum")]
    assert found[0] == found[1]


def test_anothers_version_1_is_left_as_it_is(version_1: Path) -> None:
    before = (version_1 / schema.DB_NAME).read_bytes()
    with pytest.raises(WrongStore):
        SqliteStore.open(version_1, SERVER + 1)
    with pytest.raises(WrongStore):
        SqliteStore.open(version_1, SERVER, cluster=b"d" * 16)
    assert (version_1 / schema.DB_NAME).read_bytes() == before


def test_a_crash_at_any_step_of_it_is_recovered_from(version_1: Path, tmp_path: Path) -> None:
    """The files before each statement, and with the WAL cut at each place, open as one of the versions, complete."""
    path = version_1 / schema.DB_NAME
    states: list[tuple[bytes, bytes]] = []

    def note(_: object = None) -> None:
        wal = path.with_name(path.name + "-wal")
        states.append((path.read_bytes(), wal.read_bytes() if wal.exists() else b""))

    with closing(connect_writer(path)) as db:
        db.set_trace_callback(note)
        schema.migrate(db)
        db.set_trace_callback(None)
        note()
        assert len(states) > 5
        file, wal = states[-1]
        states += [(file, wal[:at]) for at in range(0, len(wal), 1000)]
    versions = []
    for number, (file, wal) in enumerate(states):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / schema.DB_NAME).write_bytes(file)
        (directory / (schema.DB_NAME + "-wal")).write_bytes(wal)
        version, tables = _tables(directory)
        there = [name in tables for name in ("base", "event_log", "sessions")]
        assert there == [version >= 2, version >= 3, version <= 3]
        versions.append(version)
        _check(directory)
    assert set(versions) == {1, 2, 3, 4, 5, 6}


def test_the_schema_of_a_new_file_is_what_the_migrations_come_to() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        schema.run_migrations(db, 0, len(schema.MIGRATIONS))
        made = as_database(db)
        assert {table.name: table.schema for table in [*made.tables, *made.views]} == SCHEMA
        assert db.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)


_START = f"""
import sys
from pathlib import Path
from alpo.storage.sqlite import SqliteStore
SqliteStore.open(Path(sys.argv[1]), {SERVER}).close()
print("sqlite_utils" in sys.modules)
"""


def test_a_start_that_migrates_nothing_does_not_load_sqlite_utils(version_1: Path, tmp_path: Path) -> None:
    def loads_it(directory: Path) -> str:
        done = subprocess.run([sys.executable, "-c", _START, directory], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    found = [loads_it(directory) for directory in (version_1, version_1, tmp_path / "new", tmp_path / "new")]
    assert found == ["True", "False", "False", "False"]
