"""Scrubbing finds every damaged row and no other; sound rows before a damaged one can still be read (R31)."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_kit import Bench, LogBuilder, SqliteBench, cleaning, write

from alpo.core.entries import Entry
from alpo.storage.interface import DamagedStore, Store
from alpo.storage.offline import open_source
from alpo.storage.scrub import ScrubMark, read_sound


def _filled(bench: Bench, count: int = 100, size: int = 300) -> list[Entry]:
    entries = LogBuilder().datas(count, size=size)
    bench.store.commit([write(entries)])
    return entries


def _scrub_all(store: Store, bytes_max: int) -> tuple[list[int], int]:
    """(damaged ids, stretches) of a whole pass."""
    damaged, next_id, stretches = [], 1, 0
    while True:
        found = store.scrub(next_id, bytes_max)
        assert found.next_id > next_id or found.at_end
        damaged += found.damaged
        next_id, stretches = found.next_id, stretches + 1
        if found.at_end:
            return damaged, stretches


@pytest.mark.parametrize("bytes_max", [1, 5_000, 1 << 20])
def test_a_sound_log(bench: Bench, bytes_max: int) -> None:
    entries = _filled(bench)
    damaged, stretches = _scrub_all(bench.store, bytes_max)
    assert damaged == [] and (stretches > 5) == (bytes_max < 10_000)
    assert bench.store.scrub(101, 1000)[:2] == (101, []) and bench.store.scrub(101, 1000).at_end
    bench.store.commit([cleaning(entries[49], guaranteed_id=100, fully_replicated_id=100)])
    found = bench.store.scrub(1, 1)
    assert (found.next_id, found.damaged, found.at_end) == (52, [], False)


def test_an_empty_log(bench: Bench) -> None:
    found = bench.store.scrub(1, 1000)
    assert found.damaged == [] and found.at_end


@pytest.mark.parametrize("bytes_max", [1, 3_000, 1 << 20])
def test_rows_changed_and_rows_missing(sqlite: SqliteBench, bytes_max: int) -> None:
    _filled(sqlite)
    sqlite.tamper("UPDATE log SET body = zeroblob(300) || x'01' WHERE id IN (1, 7)")
    sqlite.tamper("UPDATE log SET term = 9 WHERE id = 20")
    sqlite.tamper("UPDATE log SET client = CAST(x'ff' AS TEXT) WHERE id = 30")
    sqlite.tamper("UPDATE log SET body = 'text' WHERE id = 99")
    sqlite.tamper("DELETE FROM log WHERE id BETWEEN 40 AND 43")
    assert _scrub_all(sqlite.store, bytes_max)[0] == [1, 7, 20, 30, 40, 41, 42, 43, 99]


def test_runs(sqlite: SqliteBench) -> None:
    """R32: a changed bit in a run's marks, the part of its digest about serials, is found as damage."""
    log = LogBuilder()
    runs = [log.run(1 + 3 * nth, (b"a",), (b"b", b"c"), (b"",)) for nth in range(20)]
    sqlite.store.commit([write(runs)])
    assert _scrub_all(sqlite.store, 1 << 20)[0] == [] and read_sound(sqlite.store, 1, 20, 1 << 20) == runs
    other = "CAST(substr(digest, 1, 23) || x'ff' || substr(digest, 25) AS BLOB)"
    sqlite.tamper(f"UPDATE log SET digest = {other} WHERE id = 4")
    sqlite.tamper("UPDATE log SET digest = substr(digest, 1, 16) WHERE id = 6")
    sqlite.tamper("UPDATE log SET body = body || x'00' WHERE id = 9")
    assert _scrub_all(sqlite.store, 1 << 20)[0] == [4, 6, 9]
    assert read_sound(sqlite.store, 1, 20, 1 << 20) == runs[:3]


def test_pages_overwritten(sqlite: SqliteBench) -> None:
    """Entries that can still be read are sound, and all others are listed, whatever SQLite makes of such a page."""
    entries = _filled(sqlite, 2000, 300)
    sqlite.store.close()
    whole = sqlite.path.read_bytes()
    rng = random.Random(3)
    for _ in range(8):
        damaged = bytearray(whole)
        for _ in range(3):
            page = rng.randrange(20, len(whole) // 4096)
            damaged[page * 4096 : (page + 1) * 4096] = os.urandom(4096) if rng.random() < 0.5 else bytes(4096)
        sqlite.path.write_bytes(damaged)
        sqlite.store = sqlite._open()
        found = set(_scrub_all(sqlite.store, 50_000)[0])
        assert found
        for entry in entries:
            if entry.id in found:
                with pytest.raises(DamagedStore):
                    sqlite.store.read_entries(entry.id, entry.id, 1)
            else:
                assert sqlite.store.read_entries(entry.id, entry.id, 1) == [entry]
        sqlite.store.close()
    sqlite.path.write_bytes(whole)


def test_a_page_that_cannot_be_read_takes_none_of_its_neighbours_entries(sqlite: SqliteBench) -> None:
    """The sqlite3 module steps on to the next row before it gives one out."""
    entries = _filled(sqlite, 2000, 300)
    sqlite.store.close()
    whole = bytearray(sqlite.path.read_bytes())
    page = 60
    whole[page * 4096 + 3] ^= 0xFF  # of the number of its rows
    sqlite.path.write_bytes(whole)
    with closing(sqlite3.connect(sqlite.path)) as db:
        lost = [entry.id for entry in entries if not _holds(db, entry.id)]
    assert lost == list(range(lost[0], lost[-1] + 1)) and 1 < lost[0] <= lost[-1] < 2000
    sqlite.store = sqlite._open()
    assert _scrub_all(sqlite.store, 50_000)[0] == lost
    last = entries[lost[0] - 2]
    assert last.id not in sqlite.store.scrub(last.id, 1).damaged
    assert sqlite.store.read_entries(last.id, last.id, 1) == [last]
    with pytest.raises(DamagedStore, match=rf"at entry {lost[0]}\b"):
        sqlite.store.read_entries(last.id, lost[0], 1 << 20)
    assert read_sound(sqlite.store, 1, 2000, 1 << 30) == entries[: last.id]
    sqlite.store.close()
    with open_source(sqlite.path) as source:
        assert [found.entry.id for found in source.walk(1, 2000) if found.entry and not found.damage] == [
            entry.id for entry in entries if entry.id not in lost
        ]


def _holds(db: sqlite3.Connection, id: int) -> bool:
    try:
        return db.execute("SELECT body FROM log WHERE id = ?", (id,)).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def test_what_is_sound_before_a_damaged_entry_is_read(sqlite: SqliteBench) -> None:
    entries = _filled(sqlite)
    sqlite.tamper("UPDATE log SET term = 9 WHERE id = 20")
    sqlite.tamper("DELETE FROM log WHERE id = 60")
    assert read_sound(sqlite.store, 5, 100, 1 << 20) == entries[4:19]
    assert read_sound(sqlite.store, 5, 15, 1 << 20) == entries[4:15]
    assert read_sound(sqlite.store, 21, 100, 1 << 20) == entries[20:59]
    assert read_sound(sqlite.store, 61, 100, 1 << 20) == entries[60:]
    assert read_sound(sqlite.store, 15, 100, 1) == entries[14:15]
    for first in (20, 60):
        with pytest.raises(DamagedStore, match=rf"entry {first}\b"):
            read_sound(sqlite.store, first, 100, 1 << 20)


def test_where_it_was_is_remembered(tmp_path: Path) -> None:
    mark = ScrubMark(tmp_path)
    assert mark.read() == (1, [], None)
    mark.write(77, [3, 9])
    assert ScrubMark(tmp_path).read() == (77, [3, 9], None)
    mark.write(1, [], 1_700_000_000_123)
    assert ScrubMark(tmp_path).read() == (1, [], 1_700_000_000_123)
    (tmp_path / "alpo.scrub").write_text('{"next_id": 77, "damaged": [3, 9]}')  # of an earlier version
    assert mark.read() == (77, [3, 9], None)
    for text in ("", "{}", "[]", '{"next_id": "x", "damaged": []}', "\x00", '{"next_id": 1, "damaged": 4}'):
        (tmp_path / "alpo.scrub").write_text(text)
        assert mark.read() == (1, [], None)
