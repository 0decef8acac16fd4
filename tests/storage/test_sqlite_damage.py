"""Bytes on disk that are not what was written are reported, never read as absent or as something else (R31)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from store_kit import SERVER, LogBuilder, SqliteBench, cleaning, row, table, write

from alpo.core.entries import Entry
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.rows import base_checksum
from alpo.storage.sqlite import SqliteStore

HEADERS = ("term", "kind", "time_ms", "serial", "epoch", "lsn", "count", '"check"')


def _filled(sqlite: SqliteBench) -> list[Entry]:
    log = LogBuilder()
    entries = [log.leader(), *log.datas(20), log.data(payloads=(b"a", b"b"))]
    sqlite.store.commit([write(entries)])
    return entries


def _columns_stop_at_7(sqlite: SqliteBench) -> None:
    """Check that columns are read up to entry 6; reading on raises an error that names entry 7."""
    for first in (1, 6):
        try:
            assert sqlite.store.read_columns(first, 9, 10_000).ids == tuple(range(first, 7))
        except DamagedStore as error:
            assert "entry 7" in str(error)
    assert sqlite.store.read_columns(1, 6, 10_000).ids == tuple(range(1, 7))
    with pytest.raises(DamagedStore, match=r"entry 7\b"):
        sqlite.store.read_columns(7, 9, 10_000)


@pytest.mark.parametrize("column", HEADERS)
def test_a_header_changed(sqlite: SqliteBench, column: str) -> None:
    _filled(sqlite)
    sqlite.tamper(f"UPDATE log SET {column} = {column} + 1 WHERE id = 7")
    with pytest.raises(DamagedStore, match=r"entry 7\b"):
        sqlite.store.read_entries(5, 9, 10_000)
    _columns_stop_at_7(sqlite)
    with pytest.raises(DamagedStore, match=r"entry 7\b"):
        sqlite.store.entry_head(7)
    with pytest.raises(DamagedStore, match=r"entry 7\b"):
        list(sqlite.store.replay(1))
    assert len(sqlite.store.read_entries(1, 6, 10_000)) == 6
    assert len(sqlite.store.read_entries(8, 22, 10_000)) == 15


@pytest.mark.parametrize(
    "change",
    [
        "body = x'00'", "body = 'payload 7'", "body = 7", "digest = x'00'", "digest = ''", "client = 'other'",
        "client = CAST(x'ff' AS TEXT)", "client = x'00'", "term = 'x'", "term = 1.5", "term = -1", "serial = x''",
    ],
)
def test_a_column_of_another_value_or_type(sqlite: SqliteBench, change: str) -> None:
    _filled(sqlite)
    sqlite.tamper(f"UPDATE log SET {change} WHERE id = 7")
    with pytest.raises(DamagedStore, match=r"entry 7\b"):
        sqlite.store.read_entries(5, 9, 10_000)
    _columns_stop_at_7(sqlite)


def test_an_entry_missing(sqlite: SqliteBench) -> None:
    _filled(sqlite)
    sqlite.tamper("DELETE FROM log WHERE id BETWEEN 7 AND 8")
    for first, last in ((1, 22), (7, 22), (6, 7), (7, 8), (8, 8), (1, 8), (8, 100)):
        with pytest.raises(DamagedStore, match=r"entry [78] is missing"):
            sqlite.store.read_entries(first, last, 10_000)
    _columns_stop_at_7(sqlite)
    with pytest.raises(DamagedStore):
        sqlite.store.entry_head(7)
    with pytest.raises(DamagedStore):
        list(sqlite.store.replay(1))
    assert len(sqlite.store.read_entries(9, 22, 10_000)) == 14


def test_the_searches_notice(sqlite: SqliteBench) -> None:
    entries = _filled(sqlite)
    sqlite.tamper("UPDATE log SET lsn = 1, time_ms = 1")
    with pytest.raises(DamagedStore):
        sqlite.store.find_lsn(5, 22)
    with pytest.raises(DamagedStore):
        sqlite.store.find_time(entries[3].time_ms, 22)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE hard SET term = term + 1", "UPDATE hard SET vote = 2", "UPDATE hard SET guaranteed_id = 1",
        "UPDATE hard SET incarnation = x'00'", "UPDATE hard SET cluster = x'00'", "UPDATE hard SET checksum = 1",
        "UPDATE hard SET server_id = 4", "UPDATE hard SET start = replace(start, '1', '2')",
        "UPDATE hard SET term = 'x'", "UPDATE hard SET start = x'00'", "DELETE FROM hard",
    ],
)
def test_hard_state_damaged(sqlite: SqliteBench, sql: str) -> None:
    _filled(sqlite)
    sqlite.tamper(sql)
    with pytest.raises(DamagedStore, match="hard state"):
        sqlite.store.boot()
    with pytest.raises(DamagedStore, match="hard state"):
        sqlite.reopen()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE saved_sessions SET state = zeroblob(9) WHERE client = 'a'",
        "UPDATE saved_sessions SET client = 'x' WHERE client = 'a'",
        "UPDATE saved_sessions SET state = 'text' WHERE client = 'a'",
        "UPDATE saved_sessions SET state = x'' WHERE client = 'a'",
        "UPDATE saved_sessions SET state = (SELECT state FROM saved_sessions WHERE client = 'b') WHERE client = 'a'",
        "DELETE FROM saved_sessions WHERE client = 'a'", "DELETE FROM applied", "UPDATE applied SET state = '{}'",
        "UPDATE applied SET state = x'00'", "UPDATE runs SET term = 9",
        "UPDATE runs SET first_id = 4 WHERE first_id = 3",
        "DELETE FROM runs WHERE first_id = 1", "DELETE FROM runs WHERE first_id = 3", "DELETE FROM runs",
        "DELETE FROM log WHERE id >= 3", "DELETE FROM log WHERE id = 4", "DELETE FROM log",
    ],
)
def test_what_a_replica_starts_from_damaged(sqlite: SqliteBench, sql: str) -> None:
    log = LogBuilder()
    entries = [*log.datas(2, 1), *log.datas(2, 2)]
    sqlite.store.commit([write(entries, guaranteed_id=4, table=table(3, [row("a"), row("b")]))])
    sqlite.reopen().boot()
    sqlite.tamper(sql)
    with pytest.raises(DamagedStore):
        sqlite.reopen().boot()


def _cleaned(sqlite: SqliteBench) -> list[Entry]:
    """Entries 4 … 8 above a base at 3, in runs that begin at 2, 5 and 7."""
    log = LogBuilder()
    entries = [*log.datas(1, 1), *log.datas(3, 2), *log.datas(2, 3), *log.datas(2, 4)]
    sqlite.store.commit([write(entries)])
    sqlite.store.commit([cleaning(entries[2], term=4, guaranteed_id=8)])
    return entries


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE base SET id = id + 1", "UPDATE base SET id = id - 1", "UPDATE base SET term = 1",
        "UPDATE base SET time_ms = 0", "UPDATE base SET next_lsn = 5", "UPDATE base SET checksum = 1",
        "UPDATE base SET id = 'x'", "UPDATE base SET term = -1", "UPDATE base SET next_lsn = 4.5", "DELETE FROM base",
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_the_base_damaged(sqlite: SqliteBench, sql: str, empty: bool) -> None:
    entries = _cleaned(sqlite)
    if empty:
        sqlite.store.commit([cleaning(entries[-1])])
    sqlite.tamper(sql)
    with pytest.raises(DamagedStore, match="base"):
        sqlite.store.boot()
    with pytest.raises(DamagedStore, match="base"):
        sqlite.store.entry_head(5)
    with pytest.raises(DamagedStore, match="base"):
        sqlite.store.find_lsn(5, 8)
    with pytest.raises(DamagedStore, match="base"):
        list(sqlite.store.replay(1))
    with pytest.raises(DamagedStore, match="base"):
        sqlite.reopen()


def _set_base(sqlite: SqliteBench, **fields: int) -> None:
    """Another base, with a checksum that fits: another file's row, say."""
    base = sqlite.store.boot().base._replace(**fields)
    columns = "id = ?, term = ?, time_ms = ?, next_lsn = ?, checksum = ?"
    sqlite.tamper(f"UPDATE base SET {columns}", *base, base_checksum(base))


@pytest.mark.parametrize("fields", [{"id": 2}, {"id": 4}, {"id": 0}, {"term": 3}, {"time_ms": 2**42}, {"next_lsn": 5}])
def test_a_base_of_another_log(sqlite: SqliteBench, fields: dict[str, int]) -> None:
    _cleaned(sqlite)
    sqlite.reopen().boot()
    _set_base(sqlite, **fields)
    with pytest.raises(DamagedStore):
        sqlite.reopen().boot()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM log WHERE id = 4", "DELETE FROM log WHERE id <= 6", "DELETE FROM log WHERE id = 8",
        "DELETE FROM log", "DELETE FROM runs WHERE first_id = 2", "DELETE FROM runs WHERE first_id = 5",
        "DELETE FROM runs WHERE first_id = 7", "DELETE FROM runs", "DELETE FROM applied",
        "INSERT INTO log SELECT 3, term, kind, time_ms, client, serial, epoch, lsn, count, digest, \"check\", body"
        " FROM log WHERE id = 4",
    ],
)
def test_what_is_above_the_base_damaged(sqlite: SqliteBench, sql: str) -> None:
    _cleaned(sqlite)
    sqlite.reopen().boot()
    sqlite.tamper(sql)
    with pytest.raises(DamagedStore):
        sqlite.reopen().boot()


@pytest.mark.parametrize("marks", [{"guaranteed_id": 2}, {"table": table(2, [])}, {"table": None}])
def test_a_log_cleaned_beyond_what_it_vouches_for(sqlite: SqliteBench, marks: dict[str, Any]) -> None:
    entries = LogBuilder().datas(5)
    sqlite.store.commit([write(entries)])
    sqlite.store.commit([cleaning(entries[2], **marks)])
    with pytest.raises(DamagedStore, match="cleaned up to 3"):
        sqlite.reopen().boot()


def test_an_entry_missing_above_the_base_was_not_cleaned(sqlite: SqliteBench) -> None:
    entries = _cleaned(sqlite)
    sqlite.tamper("DELETE FROM log WHERE id = 4")
    for first, last in ((4, 8), (4, 4)):
        with pytest.raises(DamagedStore, match="entry 4 is missing"):
            sqlite.store.read_entries(first, last, 10_000)
    with pytest.raises(DamagedStore, match="entry 4 is missing"):
        sqlite.store.entry_head(4)
    with pytest.raises(DamagedStore, match="entry 4 is missing"):
        list(sqlite.store.replay(1))
    assert sqlite.store.read_entries(3, 8, 10_000) == []
    assert sqlite.store.read_entries(5, 8, 10_000) == entries[4:]


def test_a_flipped_byte_anywhere_is_reported_or_changes_nothing(sqlite: SqliteBench, tmp_path: Path) -> None:
    log = LogBuilder()
    entries = [log.leader(), *log.datas(60, size=200), log.data(payloads=(bytes(9000), b"b")), log.data()]
    last = entries[-1].id
    sqlite.store.commit([write(entries, guaranteed_id=last, table=table(last, [row("a", 9, 5), row("b")]))])
    boot = sqlite.store.boot()
    sqlite.store.close()
    whole = sqlite.path.read_bytes()
    rng = random.Random(1)
    reported = 0
    for at in [*range(0, 200), *rng.sample(range(200, len(whole)), 300)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        directory = tmp_path / "damaged"
        directory.mkdir()
        (directory / "alpo.db").write_bytes(damaged)
        try:
            store = SqliteStore.open(directory, SERVER)
            try:
                same = store.boot() == boot and list(store.replay(1)) == entries
            finally:
                store.close()
            assert same, f"byte {at}"
        except StoreError:
            reported += 1
        shutil.rmtree(directory)
    assert reported > 100


def test_a_commit_of_what_cannot_be_stored_is_undone(sqlite: SqliteBench) -> None:
    entries = _filled(sqlite)
    log = LogBuilder(23)
    with pytest.raises(StoreError):
        sqlite.store.commit([write([log.data(), log.data()._replace(serial=2**63)], runs=[])])
    assert list(sqlite.store.replay(1)) == entries
    with pytest.raises(StoreError, match="out of use"):
        sqlite.store.commit([write(vote=2)])
    assert list(sqlite.reopen().replay(1)) == entries
