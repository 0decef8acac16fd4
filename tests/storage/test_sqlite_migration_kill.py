"""kill -9 at every step of bringing a file up to date, from each version: the file is one of the versions, complete."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dying import die_at, steps_of
from store_kit import SERVER, LogBuilder, cleaning

from alpo.core.disk import NO_BASE, Base, Boot
from alpo.core.entries import Entry
from alpo.storage import schema
from alpo.storage.rows import base_checksum
from alpo.storage.sqlite import SqliteStore

NEWEST = len(schema.MIGRATIONS)
_ENTRIES = LogBuilder()
#: The entries in ``version_1.sql``.
ENTRIES = [_ENTRIES.leader(4), *_ENTRIES.datas(3, 4), _ENTRIES.leader(6), _ENTRIES.data(6, payloads=(b"a", b"b"))]
#: The base after a cleaning, in versions that can clean.
BASE = Base(2, 4, ENTRIES[1].time_ms, ENTRIES[2].lsn)


def _fill(db: sqlite3.Connection, version: int) -> None:
    """Add what only a file of that version may hold: a base after a cleaning, and an event."""
    if version >= 2:
        db.execute("DELETE FROM log WHERE id <= 2")
        db.execute(
            "UPDATE base SET id = ?, term = ?, time_ms = ?, next_lsn = ?, checksum = ?", (*BASE, base_checksum(BASE))
        )
    if version >= 3:
        db.execute("INSERT INTO event_log (time_ms, name, fields) VALUES (5, 'started', '{\"term\": 7}')")


#: (version, True if its server was killed): one of them in every run, the others in the soak.
OLD = [(version, killed) for version in range(1, NEWEST) for killed in (False, True)]


@pytest.fixture(params=[
    pytest.param(each, marks=() if each == OLD[1] else pytest.mark.soak) for each in OLD
])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """(directory, version) of a file of an older version, whose server was stopped or killed (all is in the WAL)."""
    version, killed = request.param
    directory = tmp_path / "old"
    directory.mkdir()
    with closing(sqlite3.connect(tmp_path / schema.DB_NAME, isolation_level=None)) as db:
        db.executescript(Path(__file__).with_name("version_1.sql").read_text())
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("BEGIN")
        schema.run_migrations(db, 1, version)
        _fill(db, version)
        db.execute(f"PRAGMA user_version={version}")  # writes, so that version 1 has a WAL, too
        db.execute("COMMIT")
        if not killed:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for path in tmp_path.glob("alpo.db*"):
            if path.suffix != ".db-shm":
                shutil.copy(path, directory)
    assert killed == ((directory / "alpo.db-wal").stat().st_size > 0)
    yield directory, version


def _bring_up(directory: Path) -> None:
    SqliteStore.open(directory, SERVER).close()


def _restored(saved: Path, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(saved, directory)


def _version(directory: Path) -> int:
    with closing(sqlite3.connect(directory / schema.DB_NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    there = [name in tables for name in ("base", "event_log", "saved_sessions", "payloads")]
    assert there == [version >= 2, version >= 3, version >= 4, version >= 4]
    return int(version)


def _whole(directory: Path, from_version: int) -> Boot:
    """Check that the store has lost nothing, and that it works."""
    kept = ENTRIES[2 if from_version >= 2 else 0 :]
    store = SqliteStore.open(directory, SERVER)
    boot = store.boot()
    assert list(store.replay(1)) == kept
    assert (boot.term, boot.vote, boot.guaranteed_id, boot.applied_id, boot.last_id) == (7, 2, 5, 5, 6)
    assert boot.base == (BASE if from_version >= 2 else NO_BASE)
    assert [(session.client, session.last_serial) for session in boot.sessions] == [("a", 3), ("b", 1)]
    events = [(event.name, event.fields) for event in store.read_events(0, 9)]
    assert events == ([("started", '{"term": 7}')] if from_version >= 3 else [])
    with closing(sqlite3.connect(directory / schema.DB_NAME)) as db:
        assert db.execute("SELECT count(*) FROM sessions WHERE client IN ('a', 'b')").fetchone() == (2,)
        assert db.execute("SELECT sum(count) FROM log").fetchone() == db.execute(
            "SELECT count(*) FROM payloads"
        ).fetchone()
    new: list[Entry] = LogBuilder(7, ENTRIES[-1].lsn + 2, ENTRIES[-1].time_ms + 1).datas(2, 6)
    store.commit([cleaning(ENTRIES[3], new, guaranteed_id=5, table=None, term=7)])
    store.close()
    return boot


def test_killed_at_any_step_it_is_whole(old: tuple[Path, int], tmp_path: Path) -> None:
    saved, from_version = old
    directory = tmp_path / "directory"
    _restored(saved, directory)
    boots: list[Boot] = []
    versions: list[int] = []

    def check() -> bool:
        copy = tmp_path / "copy"
        _restored(directory, copy)
        versions.append(_version(copy))
        _restored(directory, copy)
        boots.append(_whole(copy, from_version))
        _restored(saved, directory)
        return versions[-1] == NEWEST

    said = steps_of(lambda: _bring_up(directory), check)
    assert said[-1] and len(said) > 10 * (NEWEST - from_version)
    assert versions == sorted(versions) and set(versions) == set(range(from_version, NEWEST + 1))
    assert all(boot == boots[-1] for boot in boots)


def test_killed_again_and_again_it_gets_there(old: tuple[Path, int], tmp_path: Path) -> None:
    """Each try is killed one step later than the one before it, which left what this one finds."""
    directory, from_version = old
    tries = 1
    while die_at(tries, lambda: _bring_up(directory)):
        tries += 1
    assert tries > 10
    assert _version(directory) == NEWEST
    _whole(directory, from_version)

