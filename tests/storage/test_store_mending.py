"""A peer's copy takes the place of a damaged entry (R31), in every kind of store; it is on disk with its write."""

from __future__ import annotations

import pytest
from store_kit import Bench, LogBuilder, SqliteBench, base_of, table, write

from alpo.core.disk import Base
from alpo.core.entries import Entry
from alpo.storage.interface import DamagedStore, Rest

DAMAGE = {
    "a body": "UPDATE log SET body = x'00' WHERE id = 7",
    "a head": 'UPDATE log SET "time_ms" = 5, "lsn" = 5000 WHERE id = 7',
    "a row that is gone": "DELETE FROM log WHERE id = 7",
}


def held(bench: Bench, count: int = 10) -> list[Entry]:
    """Entries that the store holds on disk."""
    entries = LogBuilder().datas(count)
    bench.store.commit([write(entries, guaranteed_id=count)])
    return entries


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
def test_what_was_damaged_is_sound_again(sqlite: SqliteBench, sql: str) -> None:
    entries = held(sqlite)
    sqlite.tamper(sql)
    with pytest.raises(DamagedStore, match="entry 7"):
        sqlite.store.read_entries(7, 7, 1)
    assert sqlite.store.scrub(1, 1 << 20).damaged == [7]
    sqlite.store.commit([write(mended=(entries[6],))])
    assert sqlite.store.scrub(1, 1 << 20).damaged == []
    assert list(sqlite.reopen().replay(1)) == entries


def test_it_comes_before_all_else_in_its_commit(bench: Bench) -> None:
    """An expunge, a cleaning and new entries in the same transaction count as if they came later."""
    entries = held(bench)
    other = LogBuilder(9, entries[8].lsn).datas(3, term=2)
    mended = write(mended=(entries[2], entries[8]))
    replaced = write(other, expunge_from=9, guaranteed_id=4)
    bench.store.commit([mended, replaced])
    assert list(bench.reopen().replay(1)) == entries[:8] + other
    base = base_of(entries[2])
    saved = write(mended=(entries[1], entries[5]), table=table(8, []), base=base, guaranteed_id=8, term=2,
                  fully_replicated_id=8)
    bench.store.commit([saved])
    assert list(bench.reopen().replay(1)) == entries[3:8] + other


def test_it_gives_way_to_a_base_in_the_same_commit(bench: Bench) -> None:
    entries = held(bench)
    base = Base(20, 1, entries[-1].time_ms, 30)
    installed = write(
        install=base, table=table(20, [])._replace(ahead=True), guaranteed_id=20, fully_replicated_id=20,
    )
    bench.store.commit([write(mended=(entries[4],)), installed])
    assert bench.reopen().boot().last_id == 20
    assert list(bench.store.replay(1)) == []


def test_it_counts_towards_a_checkpoint(sqlite: SqliteBench) -> None:
    """Many large ones in a row must not let the WAL grow without end."""
    log = LogBuilder()
    sqlite.store.commit([write([log.data(payloads=(bytes(1 << 20),)) for _ in range(17)], guaranteed_id=17)])
    sqlite.store.checkpoint(Rest.IDLE)
    assert not sqlite.store._wal.is_full
    for entry in sqlite.store.read_entries(1, 17, 1 << 30):
        sqlite.store.commit([write(mended=(entry,))])
    assert sqlite.store._wal.is_full
