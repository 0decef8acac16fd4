"""A snapshot takes the place of everything that a store held (R27, R29), in every kind of store; it is read back."""

from __future__ import annotations

from typing import Any

import pytest
from store_kit import Bench, LogBuilder, SqliteBench, base_of, cleaning, row, table, write

from alpo.core.disk import Base, Boot, Snapshot, StartState, Write
from alpo.core.entries import Entry
from alpo.core.members import Identity, StartStatus
from alpo.storage.audit import verify
from alpo.storage.founding import recovery
from alpo.storage.interface import StoreError
from alpo.storage.offline import open_source

STARTED = StartState(StartStatus.STARTED, (), b"d" * 16, b"c" * 16, [[1, "h:1", 0, "aa" * 16, 1, []]], {"window": 1024})
BASE = Base(10, 4, 1_700_000_000_500, 8)


def install(base: Base = BASE, **fields: Any) -> Write:
    """The write with which a learner installs a base; its saved state is beyond the base."""
    fields = {
        "term": 6, "guaranteed_id": base.id, "fully_replicated_id": base.id, "start": STARTED,
        "table": table(25, [row("a"), row("b", 3, 2)])._replace(ahead=True), "runs": [], **fields,
    }
    return write(install=base, **fields)


def after(count: int, term: int = 4) -> list[Entry]:
    return LogBuilder(BASE.id + 1, BASE.next_lsn, BASE.time_ms).datas(count, term)


def check_installed(boot: Boot) -> None:
    assert (boot.base, boot.last_id, boot.last_term, boot.next_lsn) == (BASE, 10, 4, 8)
    assert (boot.applied_id, boot.guaranteed_id, boot.fully_replicated_id, boot.term) == (25, 10, 10, 6)
    assert (boot.sessions, boot.runs, boot.start) == ([row("a"), row("b", 3, 2)], [], STARTED)


@pytest.mark.parametrize("held", [0, 7, 40])
def test_whatever_was_held_gives_way(bench: Bench, held: int) -> None:
    if held:
        entries = LogBuilder().datas(held, 3)
        bench.store.commit([write(entries, guaranteed_id=2, table=table(2, [row("old"), row("a", 9)]))])
    bench.store.commit([install()])
    check_installed(bench.reopen().boot())
    assert list(bench.store.replay(1)) == []


def test_the_log_goes_on_after_it_below_what_is_applied(bench: Bench) -> None:
    bench.store.commit([install()])
    entries = after(9)
    bench.store.commit([write(entries[:5], guaranteed_id=12)])
    boot = bench.reopen().boot()
    assert (boot.last_id, boot.applied_id, boot.runs) == (15, 25, [(4, 11)])
    bench.store.commit([write(entries[5:], runs=[], guaranteed_id=19)])
    assert list(bench.reopen().replay(1)) == entries
    assert bench.store.read_entries(11, 19, 1 << 20) == entries


def test_in_one_commit_with_what_comes_before_and_after(bench: Bench) -> None:
    entries = after(4, term=5)
    old = LogBuilder().datas(3)
    bench.store.commit([
        write(old, table=table(3, [row("old")])), write(expunge_from=2, term=2), install(), write(entries[:2]),
        write(entries[2:], runs=[], guaranteed_id=14), cleaning(entries[0], table=None),
    ])
    boot = bench.reopen().boot()
    assert (boot.base, boot.last_id, boot.start) == (base_of(entries[0]), 14, STARTED)
    assert boot.sessions == [row("a"), row("b", 3, 2)]
    assert list(bench.store.replay(1)) == entries[1:]


def test_a_later_save_ends_that_the_state_is_ahead(bench: Bench) -> None:
    """A log that ends below ``applied_id`` counts as damaged again after a later save."""
    bench.store.commit([install()])
    entries = after(20)
    bench.store.commit([write(entries, guaranteed_id=30, table=table(30, [row("b", 4)]))])
    boot = bench.reopen().boot()
    assert (boot.applied_id, boot.last_id) == (30, 30)


def test_an_empty_base_starts_a_newcomer(bench: Bench) -> None:
    empty = Base(0, 0, 0, 1)
    bench.store.commit([install(empty)])
    boot = bench.reopen().boot()
    assert (boot.base, boot.last_id, boot.applied_id, boot.start) == (empty, 0, 25, STARTED)
    bench.store.commit([write(LogBuilder().datas(3), guaranteed_id=2)])
    assert bench.reopen().boot().last_id == 3


def test_entries_that_do_not_follow_it_are_refused(bench: Bench) -> None:
    bench.store.commit([install()])
    for wrong in (LogBuilder(10).datas(1), LogBuilder(12).datas(1)):
        with pytest.raises(StoreError):
            bench.store.commit([write(wrong)])
    check_installed(bench.reopen().boot())


def test_an_image_is_what_was_saved(bench: Bench) -> None:
    assert bench.store.read_snapshot() is None
    entries = LogBuilder().datas(12, 3)
    saved = table(8, [row("a"), row("b", 2)])._replace(trim_lsn=4)
    bench.store.commit([write(entries, guaranteed_id=9, table=saved, start=STARTED)])
    assert bench.store.read_snapshot() == Snapshot(Base(0, 0, 0, 1), saved, STARTED)
    bench.store.commit([cleaning(entries[4], table=table(9, [row("a", 5)], ["b"]))])
    snapshot = bench.reopen().read_snapshot()
    assert snapshot is not None
    assert (snapshot.base, snapshot.table.applied_id, snapshot.table.changed) == (base_of(entries[4]), 9, [row("a", 5)])


def test_an_image_of_one_that_took_a_base_can_be_given_on(bench: Bench) -> None:
    bench.store.commit([install()])
    snapshot = bench.store.read_snapshot()
    assert snapshot is not None and not snapshot.table.ahead
    assert (snapshot.base, snapshot.table.changed, snapshot.start) == (BASE, [row("a"), row("b", 3, 2)], STARTED)
    assert bench.store.boot().me == Identity(3, bytes(range(16)))


def test_of_one_that_is_still_being_brought_up_nothing_else_is_made(sqlite: SqliteBench) -> None:
    """Neither a backup nor a new cluster is made of a store whose log ends below its state. It can be inspected."""
    sqlite.store.commit([install()])
    sqlite.store.commit([write(after(5), guaranteed_id=12)])
    with pytest.raises(StoreError, match="still being brought up: its log ends at entry 15"):
        sqlite.store.copy_state(12)
    sqlite.store.close()
    with open_source(sqlite.path) as source:
        assert not verify(source).faults
    with pytest.raises(StoreError, match="still being brought up"), recovery(sqlite.path.parent):
        pass
