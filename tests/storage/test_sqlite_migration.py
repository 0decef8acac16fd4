"""A file of the present schema is as it always was; one of a made-up older schema is brought up whole or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import older_schema
import pytest
from older_schema import BASE, CLUSTER, ENTRIES, MADE_UP, PAYLOADS, SESSIONS, START, go_back
from store_kit import INCARNATION, SERVER, SqliteBench, cleaning, table

from alpo.core.members import Identity
from alpo.storage import schema
from alpo.storage.connections import as_database, connect_writer
from alpo.storage.founding import restore
from alpo.storage.interface import StoreError, WrongStore
from alpo.storage.offline import open_source
from alpo.storage.sqlite import SqliteStore
from alpo.storage.tables import SCHEMA


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up versions are known here."""
    monkeypatch.setattr(schema, "MIGRATIONS", MADE_UP)


def _left_by(version: int, tmp_path: Path) -> Path:
    """A directory with a file as that version left it."""
    directory = tmp_path / f"version_{version}"
    directory.mkdir()
    with closing(sqlite3.connect(directory / schema.DB_NAME)) as db:
        db.executescript(older_schema.golden())
        go_back(db, version)
        db.commit()
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    return directory


@pytest.fixture
def version_4(tmp_path: Path) -> Path:
    return _left_by(4, tmp_path)


def _tables(directory: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(f"file:{directory / schema.DB_NAME}?mode=ro", uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        return version, [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _check(directory: Path) -> None:
    """Check that the store holds all that the file held, and that it works."""
    store = SqliteStore.open(directory, SERVER, cluster=CLUSTER)
    boot = store.boot()
    assert boot.start == START
    assert (boot.me, boot.term, boot.vote) == (Identity(SERVER, INCARNATION), 7, 2)
    assert (boot.guaranteed_id, boot.fully_replicated_id, boot.applied_id, boot.trim_lsn) == (5, 4, 5, 1)
    assert boot.cursors == (("nightly", 3),)
    assert (boot.base, boot.runs, boot.last_id, boot.next_lsn) == (BASE, [(4, 1), (6, 5)], 7, 10)
    assert (boot.sessions, boot.members) == (SESSIONS, table(5, []).members)
    assert list(store.replay(1)) == ENTRIES[2:]
    with closing(sqlite3.connect(f"file:{directory / schema.DB_NAME}?mode=ro", uri=True)) as db:
        assert db.execute("SELECT lsn, serial FROM payloads").fetchall() == PAYLOADS
        assert db.execute("SELECT client, last_serial FROM sessions ORDER BY client").fetchall() == [
            ("a", 3), ("b", 1), ("~client", 9)
        ]
    store.commit([cleaning(ENTRIES[3], guaranteed_id=5, table=None, term=7)])
    store.close()
    store = SqliteStore.open(directory, SERVER, cluster=CLUSTER)
    assert (store.boot().base.id, list(store.replay(1))) == (4, ENTRIES[4:])
    store.close()


def test_the_file_of_this_version_is_as_it_was(sqlite: SqliteBench) -> None:
    """Byte for byte, tables and rows: whatever was written before is read, and reads the same."""
    older_schema.fill(sqlite.store)
    sqlite.store.close()
    head, _, sql = older_schema.golden().partition("\n")
    assert head.startswith("--") and older_schema.dump(sqlite.path) == sql
    _check(sqlite.directory)


@pytest.mark.parametrize("version", [4, 5])
def test_an_older_version_is_brought_up(version: int, tmp_path: Path, known: None) -> None:
    directory = _left_by(version, tmp_path)
    assert _tables(directory)[0] == version
    _check(directory)
    version, tables = _tables(directory)
    assert version == schema.VERSION and sorted(tables) == sorted(name for name in SCHEMA if "TABLE" in SCHEMA[name])


def test_events_of_a_version_that_has_them_are_kept(tmp_path: Path, known: None) -> None:
    kept = []
    for version in (4, 5):
        store = SqliteStore.open(_left_by(version, tmp_path), SERVER)
        kept.append([(event.name, event.fields) for event in store.read_events(0, 9)])
        store.close()
    assert kept == [[], [("started", '{"term": 7}')]]


@pytest.mark.parametrize("version", [1, 3, 5])
@pytest.mark.parametrize("backup", [False, True])
def test_what_is_too_old_is_told_and_left_as_it_is(version: int, backup: bool, version_4: Path, tmp_path: Path) -> None:
    path = version_4 / schema.DB_NAME
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute(f"PRAGMA user_version={version}")
        if backup:
            db.execute(f"PRAGMA application_id={schema.BACKUP_APPLICATION_ID}")
    before = path.read_bytes()
    told = rf"too old .*schema {version}; this version brings up schema {schema.VERSION} and newer"
    with pytest.raises(WrongStore, match=told), open_source(version_4):
        pass
    with pytest.raises(StoreError, match=told):
        if backup:
            restore(path, tmp_path / "new", SERVER, "h:1", 9)
        else:
            SqliteStore.open(version_4, SERVER)
    assert path.read_bytes() == before and not (tmp_path / "new" / schema.DB_NAME).exists()


@pytest.mark.parametrize(("backup", "how"), [(False, "a server of this version"), (True, "`alpo restore` of this")])
def test_looked_at_from_outside_it_is_told_and_left_as_it_is(
    version_4: Path, backup: bool, how: str, known: None
) -> None:
    path = version_4 / schema.DB_NAME
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        if backup:
            db.execute(f"PRAGMA application_id={schema.BACKUP_APPLICATION_ID}")
    before = path.read_bytes()
    told = rf"older version \(schema 4; this one reads {schema.VERSION}\): {how}"
    with pytest.raises(WrongStore, match=told), open_source(version_4):
        pass
    assert path.read_bytes() == before and [file.name for file in version_4.iterdir()] == [schema.DB_NAME]


def test_a_new_file_has_the_schema_of_one_brought_up(version_4: Path, sqlite: SqliteBench, known: None) -> None:
    SqliteStore.open(version_4, SERVER).close()
    found = []
    for path in (version_4 / schema.DB_NAME, sqlite.path):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            found.append(db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
            found[-1] += [db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "auto_vacuum")]
    assert found[0] == found[1]


def test_anothers_older_file_is_left_as_it_is(version_4: Path, known: None) -> None:
    before = (version_4 / schema.DB_NAME).read_bytes()
    with pytest.raises(WrongStore, match="belongs to server"):
        SqliteStore.open(version_4, SERVER + 1)
    with pytest.raises(WrongStore, match="belongs to cluster"):
        SqliteStore.open(version_4, SERVER, cluster=b"d" * 16)
    assert (version_4 / schema.DB_NAME).read_bytes() == before


def test_a_crash_at_any_step_of_it_is_recovered_from(version_4: Path, tmp_path: Path, known: None) -> None:
    """The files before each statement, and with the WAL cut at each place, open as one of the versions, complete."""
    path = version_4 / schema.DB_NAME
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
        assert [name in tables for name in ("event_log", "sessions")] == [version >= 5, version <= 5]
        versions.append(version)
        _check(directory)
    assert set(versions) == {4, 5, 6}


@pytest.mark.parametrize("migrations", [schema.MIGRATIONS, MADE_UP])
def test_the_schema_of_a_new_file_is_what_the_migrations_come_to(
    migrations: dict[int, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        schema.run_migrations(db, 0, schema.VERSION)
        made = as_database(db)
        assert {table.name: table.schema for table in [*made.tables, *made.views]} == SCHEMA
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        assert db.execute("SELECT count(*) FROM base").fetchone() == (1,)


_START = f"""
import sys
from pathlib import Path
from alpo.storage import schema
from alpo.storage.sqlite import SqliteStore
sys.path.insert(0, {str(Path(__file__).parent)!r})
from older_schema import MADE_UP
schema.MIGRATIONS = MADE_UP
SqliteStore.open(Path(sys.argv[1]), {SERVER}).close()
print("sqlite_utils" in sys.modules)
"""


def test_a_start_that_migrates_nothing_does_not_load_sqlite_utils(version_4: Path, tmp_path: Path) -> None:
    def loads_it(directory: Path) -> str:
        done = subprocess.run([sys.executable, "-c", _START, directory], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    found = [loads_it(directory) for directory in (version_4, version_4, tmp_path / "new", tmp_path / "new")]
    assert found == ["True", "False", "False", "False"]
