"""Backups, what is made of them, and directories that go on alone: whole or not at all, wherever a kill -9 strikes."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dying import steps_of
from sound_log import MEMBERS, SETTINGS, START, entries_with_runs, fill, sound_entries
from store_kit import INCARNATION, SERVER, SqliteBench

from alpo.addresses import AddressError
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.members import Identity, MemberList, StartStatus
from alpo.storage import schema
from alpo.storage.backup import BackupWriter
from alpo.storage.founding import Founded, recovery, restore
from alpo.storage.interface import DamagedStore, DirectoryInUse, StateCopy, Store, StoreError, StoreFull, WrongStore
from alpo.storage.offline import open_source
from alpo.storage.sqlite import SqliteStore

NOW_MS = 1_800_000_000_000
GUARANTEED = 38


def back_up(store: Store, file: Path, upto_id: int = GUARANTEED) -> None:
    """Make a backup as `alpo backup` does, without a connection in between."""
    state = store.copy_state(upto_id)
    put_down(state, store.read_entries(state.first_id, state.end_id, 1 << 30), file)


def put_down(state: StateCopy, entries: list[Entry], file: Path) -> None:
    writer = BackupWriter(file, state.schema)
    for table, rows in state.tables.items():
        writer.add(table, rows)
    for at in range(0, len(entries), 10):
        writer.add("log", list(map(tuple, entries[at : at + 10])))
    writer.finish(state.end_id)


def entries_of(directory: Path) -> list[Entry]:
    with open_source(directory) as source:
        summary = source.summary()
        return [found.entry for found in source.walk(summary.first_id, summary.end_id) if found.entry]


@pytest.fixture
def file(sqlite: SqliteBench, tmp_path: Path) -> Path:
    fill(sqlite)
    back_up(sqlite.store, tmp_path / "log.alpo")
    return tmp_path / "log.alpo"


@pytest.mark.parametrize("shape", [{}, {"applied_id": 0}, {"base_id": 10}])
def test_a_backup_ends_at_what_is_guaranteed(sqlite: SqliteBench, tmp_path: Path, shape: dict[str, int]) -> None:
    entries = fill(sqlite, **shape)
    file = tmp_path / "log.alpo"
    back_up(sqlite.store, file)
    assert entries_of(file) == entries[shape.get("base_id", 0):GUARANTEED]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "log.alpo"]
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        server, incarnation, term, vote, mark = db.execute(
            "SELECT server_id, incarnation, term, vote, guaranteed_id FROM hard").fetchone()
    assert (server, incarnation, term, vote, mark) == (SERVER, b"", 0, 0, GUARANTEED)


def test_a_backup_of_a_table_saved_beyond_what_was_asked_ends_there(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite, applied_id=33)
    back_up(sqlite.store, tmp_path / "log.alpo", 20)
    assert entries_of(tmp_path / "log.alpo")[-1].id == 33


@pytest.mark.parametrize(("applied_id", "base_id"), [(0, 0), (8, 0), (14, 8)])
def test_runs_are_backed_up_and_restored(sqlite: SqliteBench, tmp_path: Path, applied_id: int, base_id: int) -> None:
    """R32: with all that the session table remembers of them, which the restore replays."""
    entries = fill(
        sqlite, entries_with_runs(), applied_id=applied_id, base_id=base_id, guaranteed_id=15)
    back_up(sqlite.store, tmp_path / "log.alpo", 15)
    assert entries_of(tmp_path / "log.alpo") == entries[base_id:15]
    founded = restore(tmp_path / "log.alpo", tmp_path / "new", 9, "h:9", NOW_MS)
    assert (founded.first_lsn, founded.last_lsn) == (entries[base_id].lsn, entries[14].lsn + 1)
    store = SqliteStore.open(tmp_path / "new", 9)
    assert list(store.replay(1))[:-1] == entries[base_id:15]
    assert store.boot().sessions == sqlite.store.boot().sessions
    store.close()


@pytest.mark.parametrize("address", ["0.0.0.0:7100", "[::]:7100", "[fe80::1%eth0]:7100", "nowhere"])
def test_nothing_is_restored_for_an_address_that_others_cannot_dial(file: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(AddressError, match="must be"):
        restore(file, tmp_path / "new", SERVER, address, NOW_MS)
    assert not (tmp_path / "new").exists()


def test_no_server_starts_on_a_backup(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    file.rename(directory / schema.DB_NAME)
    before = (directory / schema.DB_NAME).read_bytes()
    with pytest.raises(WrongStore, match="is a backup"):
        SqliteStore.open(directory, SERVER)
    with pytest.raises(StoreError, match="is a backup"), recovery(directory):
        pass
    assert (directory / schema.DB_NAME).read_bytes() == before


@pytest.mark.parametrize(("table", "row", "expected"), [
    ("log", tuple(sound_entries()[6]._replace(serial=99)), "damaged on its way"),
    ("log", tuple(sound_entries()[7]), "came where 7 belongs"), ("log", (1, 2, 3), "damaged on its way"),
    ("event_log", (1, 2, "x", "{}"), "do not belong"), ("base", (1, 2), "do not belong"),
    ("base; DROP TABLE log", (), "do not belong"),
])
def test_what_does_not_belong_ends_it(tmp_path: Path, table: str, row: Any, expected: str) -> None:
    writer = BackupWriter(tmp_path / "log.alpo", schema.VERSION)
    writer.add("log", [tuple(entry) for entry in sound_entries()[:6]])
    with pytest.raises(StoreError, match=expected):
        writer.add(table, [row])
    writer.give_up()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_ends_early_is_none(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    state = sqlite.store.copy_state(GUARANTEED)
    writer = BackupWriter(tmp_path / "log.alpo", state.schema)
    for table, rows in state.tables.items():
        writer.add(table, rows)
    writer.add("log", [tuple(entry) for entry in sqlite.store.read_entries(1, 36, 1 << 20)])
    with pytest.raises(DamagedStore):
        writer.finish(state.end_id)
    writer.give_up()
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("version", [schema.VERSION - 1, schema.VERSION + 1])
def test_a_server_with_a_schema_not_known_here_is_refused(version: int, tmp_path: Path) -> None:
    with pytest.raises(WrongStore, match=f"writes schema {version}; this version knows"):
        BackupWriter(tmp_path / "log.alpo", version)
    assert list(tmp_path.iterdir()) == []


def test_a_server_of_an_older_schema_is_backed_up_as_it_is_and_restored_as_this_version(
    sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the next version meets a server of the present one in the middle of an upgrade."""
    entries = fill(sqlite)
    state = sqlite.store.copy_state(GUARANTEED)

    def next_version(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")

    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS | {schema.VERSION + 1: next_version})
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    file = tmp_path / "log.alpo"
    put_down(state, sqlite.store.read_entries(state.first_id, state.end_id, 1 << 30), file)
    founded = restore(file, tmp_path / "new", 9, "h:9", NOW_MS)
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (state.schema,)
    with closing(sqlite3.connect(f"file:{tmp_path / 'new' / schema.DB_NAME}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (state.schema + 1,)
        assert db.execute("SELECT count(*) FROM later").fetchone() == (0,)
    check_founded(tmp_path / "new", founded, entries[:GUARANTEED], old_term=4)


def check_founded(directory: Path, founded: Founded, kept: list[Entry], old_term: int) -> None:
    """A cluster of one that goes on with these entries."""
    store = SqliteStore.open(directory, founded.server_id, cluster=founded.cluster)
    boot = store.boot()
    (*before, last) = list(store.replay(1))
    store.close()
    assert before == kept
    assert (last.id, last.kind, last.term, last.time_ms) == (kept[-1].id + 1, Kind.MEMBERS, old_term + 1, NOW_MS)
    members = MemberList.from_plain(parse_body(last)["members"])
    assert [(m.id, m.address) for m in members.voters] == [(founded.server_id, founded.address)]
    assert members.holds(boot.me) and boot.me.incarnation != INCARNATION
    assert boot.start.status is StartStatus.STARTED and boot.start.first_list == members.to_plain()
    assert boot.start.cluster == founded.cluster == members.digest() != START.cluster
    assert boot.start.settings == SETTINGS.to_plain()
    assert (boot.term, boot.vote, boot.guaranteed_id, boot.last_id) == (old_term + 1, 0, last.id, last.id)
    with open_source(directory) as source:
        from alpo.storage.audit import verify
        assert verify(source).faults == []


@pytest.mark.parametrize("shape", [{}, {"applied_id": 0}, {"base_id": 10}])
def test_a_restored_backup_is_a_cluster_of_one(sqlite: SqliteBench, tmp_path: Path, shape: dict[str, int]) -> None:
    entries = fill(sqlite, **shape)
    file, directory = tmp_path / "log.alpo", tmp_path / "new" / "data"
    back_up(sqlite.store, file)
    steps: list[tuple[str, int, int]] = []
    founded = restore(file, directory, 9, "127.0.0.1:7109", NOW_MS, lambda *step: steps.append(step))
    kept = entries[shape.get("base_id", 0):GUARANTEED]
    assert (founded.first_lsn, founded.last_lsn) == (kept[0].lsn, kept[-1].lsn + kept[-1].count - 1)
    assert {what for what, _, _ in steps} == {"copying", "checking"} and all(done <= all_ for _, done, all_ in steps)
    check_founded(directory, founded, kept, old_term=4)
    assert sorted(p.name for p in directory.iterdir()) == ["alpo.db", "alpo.lock"]


def test_two_restores_of_a_backup_are_two_clusters(file: Path, tmp_path: Path) -> None:
    clusters = {restore(file, tmp_path / name, 1, "h:1", NOW_MS).cluster for name in ("a", "b")}
    assert len(clusters) == 2


def test_what_cannot_be_restored_is_refused_and_nothing_is_left(
    file: Path, sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new"

    def refused(expected: str, source: Path = file) -> None:
        with pytest.raises(StoreError, match=expected):
            restore(source, target, 1, "h:1", NOW_MS)

    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    refused("not empty .thesis.txt")
    assert [p.name for p in target.iterdir()] == ["thesis.txt"]
    (target / "thesis.txt").unlink()
    refused("no such file", tmp_path / "none")
    refused("no backup but a server's", sqlite.path)
    damaged = tmp_path / "damaged.alpo"
    damaged.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(damaged)) as db:
        db.execute("UPDATE log SET body = x'00' WHERE id = 7")
        db.commit()
    refused(rf"^{re.escape(str(damaged))}: entry 7", damaged)  # the error names this file, not the copy made of it
    with closing(sqlite3.connect(damaged)) as db:
        db.execute("DELETE FROM hard")
        db.commit()
    refused(rf"^(?!.*alpo\.db\.new).*{re.escape(str(damaged))}", damaged)
    damaged.write_bytes(file.read_bytes()[:20_000])
    refused(rf"^(?!.*alpo\.db\.new).*{re.escape(str(damaged))}", damaged)
    damaged.write_bytes(b"hello" * 1000)
    refused("not a database", damaged)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(StoreFull, match="1000 bytes are free"):
        restore(file, target, 1, "h:1", NOW_MS)
    assert list(target.iterdir()) == []
    target.rmdir()
    with pytest.raises(StoreFull):
        restore(file, target, 1, "h:1", NOW_MS)
    assert not target.exists()


def test_a_directory_goes_on_alone(sqlite: SqliteBench) -> None:
    entries = fill(sqlite)
    with pytest.raises(DirectoryInUse), recovery(sqlite.directory):
        pass
    sqlite.store.close()
    before = {p.name: p.read_bytes() for p in sqlite.directory.iterdir() if p.name != "alpo.lock"}
    with recovery(sqlite.directory) as found:
        assert (found.remains.unguaranteed, found.remains.last_lsn) == (6, entries[-1].lsn + 1)
        assert found.remains.members == [(m.id, m.address) for m in MEMBERS.members]
        assert {p.name: p.read_bytes() for p in sqlite.directory.iterdir() if p.name != "alpo.lock"} == before
    with recovery(sqlite.directory) as found:
        founded = found.go_on(NOW_MS, "kept.json")
    assert founded.address == "127.0.0.1:7103"
    check_founded(sqlite.directory, founded, entries, old_term=5)
    kept = json.loads((sqlite.directory / "kept.json").read_text())
    assert (kept["term"], kept["vote"], kept["guaranteed_id"], kept["last_id"]) == (5, 6, 35, 41)
    assert kept["start"]["first_list"] == MEMBERS.to_plain() and kept["incarnation"] == INCARNATION.hex()
    sqlite.store = SqliteStore.open(sqlite.directory, SERVER)


def test_what_is_not_sound_or_never_began_does_not_go_on(sqlite: SqliteBench, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no data file"), recovery(tmp_path / "nothing"):
        pass
    sqlite.store.close()
    with pytest.raises(StoreError, match="never belonged"), recovery(sqlite.directory):
        pass
    sqlite.store = sqlite._open()
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00' WHERE id = 7")
    sqlite.store.close()
    with pytest.raises(DamagedStore, match="entry 7"), recovery(sqlite.directory):
        pass


# -- kill -9 at every step


def test_a_backup_that_is_killed_at_any_step_is_whole_or_absent(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = fill(sqlite)
    file = tmp_path / "log.alpo"

    def check() -> bool:
        partial = tmp_path / "log.alpo.partial"
        if partial.exists() and partial.stat().st_size and not file.exists():
            try:
                restore(partial, tmp_path / "new", 1, "h:1", NOW_MS)
            except StoreError:
                assert not (tmp_path / "new").exists()
            else:  # committed, and killed before its name was changed
                assert entries_of(partial) == entries[:GUARANTEED]
                for name in ("alpo.db", "alpo.lock"):
                    (tmp_path / "new" / name).unlink()
                (tmp_path / "new").rmdir()
        if not file.exists():
            return False
        assert entries_of(file) == entries[:GUARANTEED]
        file.unlink()
        return True

    state, kept = sqlite.store.copy_state(GUARANTEED), sqlite.store.read_entries(1, GUARANTEED, 1 << 20)
    said = steps_of(lambda: put_down(state, kept, file), check)
    assert len(said) > 20 and said.count(False) > 10 and said[-1]


def restored(file: Path, directory: Path) -> None:
    restore(file, directory, 9, "h:9", NOW_MS)


def test_a_restore_that_is_killed_at_any_step_is_whole_or_absent(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "new"

    def check() -> bool:
        whole = (directory / schema.DB_NAME).exists()
        if whole:
            with open_source(directory) as source:
                found = source.summary()
            assert found.damage == [] and found.end_id == found.guaranteed_id == GUARANTEED + 1
            store = SqliteStore.open(directory, 9)
            assert store.boot().start.status is StartStatus.STARTED
            store.close()
        else:  # the restore can be repeated if there is no store
            assert {p.name for p in directory.iterdir()} <= {"alpo.lock", "alpo.db.new", "alpo.db.new-journal",
                                                            "alpo.db.new-wal", "alpo.db.new-shm"}
            restore(file, directory, 9, "h:9", NOW_MS)
        for path in directory.iterdir():
            path.unlink()
        return whole

    directory.mkdir()
    said = steps_of(lambda: restored(file, directory), check)
    assert len(said) > 30 and said.count(False) > 20 and said[-1]


def test_a_recovery_that_is_killed_at_any_step_is_done_or_not(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    sqlite.store.close()
    original = sqlite.path.read_bytes()

    def go_on() -> None:
        with recovery(sqlite.directory) as found:
            found.go_on(NOW_MS, "kept.json")

    def check() -> bool:
        store = SqliteStore.open(sqlite.directory, SERVER)
        boot = store.boot()
        store.close()
        done = boot.last_id == 42
        assert done == (boot.start.cluster != START.cluster) == (boot.me != Identity(SERVER, INCARNATION))
        assert not done or json.loads((sqlite.directory / "kept.json").read_text())["term"] == 5
        for path in sqlite.directory.iterdir():
            path.unlink()
        sqlite.path.write_bytes(original)
        return done

    said = steps_of(go_on, check)
    assert len(said) > 20 and said.count(False) > 10 and said[-1]
    sqlite.store = SqliteStore.open(sqlite.directory, SERVER)
