"""`alpo log verify`: a sound file is found sound, and each fault is reported with the entry's id."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from sound_log import entries_with_runs, fill, sound_entries, table_at
from store_kit import LogBuilder, SqliteBench

from alpo.core.entries import Entry, seal
from alpo.storage import audit, tables
from alpo.storage.audit import Verdict, require_sound, tell, verify
from alpo.storage.connections import connect_writer
from alpo.storage.interface import DamagedStore
from alpo.storage.offline import open_source
from alpo.storage.rows import applied_to_json, run_checksum, session_to_blob, text_checksum


@pytest.fixture(autouse=True, params=[512, 1, 3])
def columns_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are sound are looked at together, so many at a time."""
    monkeypatch.setattr(tables, "COLUMN_ROWS", request.param)


def check(sqlite: SqliteBench) -> Verdict:
    with open_source(sqlite.directory) as source:
        return verify(source)


def told(sqlite: SqliteBench) -> str:
    return "\n".join(map(tell, check(sqlite).faults))


@pytest.mark.parametrize("shape", [
    {}, {"applied_id": 0}, {"base_id": 10}, {"base_id": 30}, {"applied_id": 41, "guaranteed_id": 41},
    {"applied_id": 41, "guaranteed_id": 41, "base_id": 41}, {"guaranteed_id": 30, "base_id": 28},
])
def test_a_sound_file_is_sound(sqlite: SqliteBench, shape: dict[str, int]) -> None:
    entries = fill(sqlite, **shape)
    verdict = check(sqlite)
    assert verdict.faults == []
    kept = entries[shape.get("base_id", 0):]
    assert (verdict.entries, verdict.payloads) == (len(kept), sum(e.count for e in kept))
    assert (verdict.last_id, verdict.last_lsn) == (41, entries[-1].lsn + 1)
    assert verdict.first_lsn == (kept[0].lsn if kept else verdict.last_lsn + 1)


@pytest.mark.parametrize(
    ("applied_id", "base_id"),
    [(0, 0), (4, 0), (5, 0), (5, 5), (6, 4), (8, 0), (8, 8), (12, 8), (14, 0), (14, 13), (16, 0), (16, 16)],
)
def test_a_file_with_runs_is_sound(sqlite: SqliteBench, applied_id: int, base_id: int) -> None:
    """R32: the table that the log makes is the saved one, wherever that was saved."""
    entries = fill(sqlite, entries_with_runs(), applied_id=applied_id, guaranteed_id=16, base_id=base_id)
    verdict = check(sqlite)
    assert verdict.faults == []
    assert (verdict.entries, verdict.payloads) == (16 - base_id, sum(e.count for e in entries[base_id:]))
    assert (verdict.last_id, verdict.last_lsn) == (16, entries[-1].lsn + 1)


def test_a_run_is_replayed_with_all_its_serials(sqlite: SqliteBench) -> None:
    """R32: a repeated serial is found if a run ends with the serial of the next entry, in a page of DATA alone."""
    entries = entries_with_runs()
    old = entries[6]
    entries[6] = LogBuilder(7, old.lsn, old.time_ms).run(7, (b"a",), (b"b",), term=2, client="web", epoch=2)
    fill(sqlite, entries, applied_id=0, guaranteed_id=16)
    assert told(sqlite) == "entry 8: entry 8 repeats serial 8 of 'web'"


@pytest.mark.parametrize("base_id", [0, 10])
def test_a_run_that_the_table_remembers_otherwise_is_told(sqlite: SqliteBench, base_id: int) -> None:
    """A run with equal payloads, divided in another way among the serials, is found: only its marks differ."""
    entries = entries_with_runs()
    fill(sqlite, entries, applied_id=14, guaranteed_id=16, base_id=base_id)
    old = entries[11]
    new = LogBuilder(12, old.lsn, old.time_ms).run(
        19, (b"", b"x", b""), (b"y", b""), (b"z",), term=4, client="web", epoch=11)
    assert (new.body, new.count, new.serial) == (old.body, old.count, old.serial)
    sqlite.tamper('UPDATE log SET digest = ?, "check" = ? WHERE id = 12', new.digest, new.check)
    assert told(sqlite) == (
        "entry 12: the session table remembers another entry here" if base_id else
        "the saved session table is not what the log makes: web")


def test_a_run_whose_marks_are_damaged_is_told(sqlite: SqliteBench) -> None:
    entries = fill(sqlite, entries_with_runs(), applied_id=0, guaranteed_id=16)
    marks = bytearray(entries[4].digest)
    marks[-1] ^= 1
    sqlite.tamper("UPDATE log SET digest = ? WHERE id = 5", bytes(marks))
    assert told(sqlite) == "entry 5: entry 5 does not match its checksum"


def test_an_empty_store_is_sound(sqlite: SqliteBench) -> None:
    verdict = check(sqlite)
    assert (verdict.faults, verdict.first_id, verdict.last_id, verdict.last_lsn) == ([], 1, 0, 0)


@pytest.mark.parametrize("base_id", [0, 5])
@pytest.mark.parametrize(("sql", "expected"), [
    ("UPDATE log SET body = x'00' WHERE id = 7", "entry 7: .*digest"),
    ("UPDATE log SET serial = 9 WHERE id = 7", "entry 7: .*checksum"),
    ("DELETE FROM log WHERE id BETWEEN 7 AND 8", "entries 7 to 8: missing"),
    ("DELETE FROM log WHERE id > 30", "entries 31 to 35: missing"),
    ("DELETE FROM runs WHERE first_id = 21", "entry 21: its term is 4, and 2 by the table of runs"),
    ("UPDATE runs SET checksum = 1 WHERE first_id = 21", "table of runs: .*checksum"),
    ("INSERT INTO runs VALUES (50, 9, {run})", "entries 42 to 50: missing"),
    ("UPDATE hard SET guaranteed_id = 7", "hard state does not match"),
    ("DELETE FROM hard", "hard state is missing"),
    ("UPDATE base SET next_lsn = 7", "base does not match"),
    ("UPDATE applied SET checksum = 1", "session table: the applied state"),
    ("UPDATE saved_sessions SET state = x'00'", "session table: the session of 'web'"),
    ("UPDATE saved_sessions SET last_serial = 1", "the columns of 'web' differ"),
    ("DELETE FROM saved_sessions", "a session is missing"),
])
def test_what_was_changed_behind_its_back_is_told(sqlite: SqliteBench, base_id: int, sql: str, expected: str) -> None:
    fill(sqlite, base_id=base_id)
    sqlite.tamper(sql.format(run=run_checksum(9, 50)))
    assert re.search(expected, told(sqlite))


def replace(sqlite: SqliteBench, entry: Entry, **fields: object) -> None:
    """Another entry in its place, sealed as a right one would be."""
    given = {**entry._asdict(), **fields}
    for name in ("digest", "check"):
        given.pop(name)
    new = seal(**given)
    names = ", ".join(f'"{name}" = ?' for name in Entry._fields)
    sqlite.tamper(f"UPDATE log SET {names} WHERE id = ?", *new, entry.id)


@pytest.mark.parametrize(("id", "fields", "expected"), [
    (10, {"term": 1}, "entry 10: its term 1 is below 2"), (10, {"time_ms": 5}, "entry 10: it is older"),
    (10, {"lsn": 5}, "entry 10: its LSN is 5 where 8 belongs"), (10, {"serial": 3}, "entry 10: .*repeats serial 3"),
    (10, {"epoch": 3}, "entry 10: .*epoch 3"), (10, {"client": "who"}, "entry 10: .*not open"),
    (25, {"body": b"other", "count": 1}, "saved session table is not what the log makes: web"),
    (22, {"body": b'{"members":[]}'}, "saved member list is not that of entry 22"),
])
def test_entries_that_are_sound_by_themselves_are_held_against_each_other(
    sqlite: SqliteBench, id: int, fields: dict[str, object], expected: str
) -> None:
    entries = fill(sqlite)
    replace(sqlite, entries[id - 1], **fields)
    assert re.search(expected, told(sqlite))


def test_above_a_base_what_the_table_remembers_is_looked_up(sqlite: SqliteBench) -> None:
    entries = fill(sqlite, base_id=20)
    replace(sqlite, entries[24], body=b"other", count=1)
    assert re.search("entry 25: the session table remembers another entry", told(sqlite))


@pytest.mark.parametrize("how", ["forgets one", "too early", "too late"])
def test_a_table_of_another_log_is_told(sqlite: SqliteBench, how: str) -> None:
    fill(sqlite)
    table = table_at(sound_entries(), 30)
    row = table.changed[0]
    off = {"too early": -1, "too late": 1}
    row = row._replace(slots=row.slots[1:]) if how == "forgets one" else row._replace(birth=row.birth + off[how])
    state = applied_to_json(table, 1)
    with closing(connect_writer(sqlite.path)) as db:
        db.execute("UPDATE saved_sessions SET state = ?", (session_to_blob(row),))
        db.execute("UPDATE applied SET state = ?, checksum = ?", (state, text_checksum(state)))
    assert "saved session table is not what the log makes: web" in told(sqlite)


def test_faults_are_told_up_to_a_bound(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FAULTS_MAX", 3)
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00'")
    verdict = check(sqlite)
    assert [fault.first_id for fault in verdict.faults] == [1, 2, 3]
    assert verdict.faults_more >= 38


def test_require_sound_names_the_first_faults(sqlite: SqliteBench) -> None:
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00' WHERE id > 5")
    with open_source(sqlite.directory) as source, pytest.raises(DamagedStore, match=r"entry 6: .*entry 8: .* …"):
        require_sound(source)
