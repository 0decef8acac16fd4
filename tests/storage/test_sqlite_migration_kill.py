"""kill -9 at every step of bringing a file up to date, from each made-up version: one of them whole, nothing lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dying import die_at, steps_of
from older_schema import BASE, ENTRIES, MADE_UP, go_back, golden
from store_kit import SERVER, LogBuilder, cleaning

from alpo.core.disk import Boot
from alpo.core.entries import Entry
from alpo.storage import schema
from alpo.storage.sqlite import SqliteStore

NEWEST = schema.VERSION
#: (version, whether its server was killed): the first in every run, the others in the soak.
OLD = [(version, killed) for version in range(min(MADE_UP), NEWEST) for killed in (False, True)]


@pytest.fixture(params=[
    pytest.param(each, marks=() if each == OLD[1] else pytest.mark.soak) for each in OLD
])
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, int]]:
    """A directory with a file of an older version, whose server was stopped or killed (all is in the WAL); and that."""
    version, killed = request.param
    monkeypatch.setattr(schema, "MIGRATIONS", MADE_UP)
    directory = tmp_path / "old"
    directory.mkdir()
    with closing(sqlite3.connect(tmp_path / schema.DB_NAME, isolation_level=None)) as db:
        db.executescript(golden())
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("BEGIN")
        go_back(db, version)
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
    there = [name in tables for name in ("event_log", "saved_sessions", "payloads")]
    assert there == [version >= 5, version >= 6, version >= 6]
    return int(version)


def _whole(directory: Path, from_version: int) -> Boot:
    """Check that the store has lost nothing, and works."""
    store = SqliteStore.open(directory, SERVER)
    boot = store.boot()
    assert list(store.replay(1)) == ENTRIES[2:]
    assert (boot.term, boot.vote, boot.guaranteed_id, boot.applied_id, boot.last_id) == (7, 2, 5, 5, 7)
    assert boot.base == BASE
    assert [(session.client, session.last_serial) for session in boot.sessions] == [("a", 3), ("b", 1)]
    events = [(event.name, event.fields) for event in store.read_events(0, 9)]
    assert events == ([("started", '{"term": 7}')] if from_version >= 5 else [])
    with closing(sqlite3.connect(directory / schema.DB_NAME)) as db:
        assert db.execute("SELECT count(*) FROM sessions WHERE client IN ('a', 'b')").fetchone() == (2,)
        assert db.execute("SELECT sum(count) FROM log").fetchone() == db.execute(
            "SELECT count(*) FROM payloads"
        ).fetchone()
    new: list[Entry] = LogBuilder(8, ENTRIES[-1].lsn + ENTRIES[-1].count, ENTRIES[-1].time_ms + 1).datas(2, 6)
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

