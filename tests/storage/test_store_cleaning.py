"""Cleaning (R19): the base, and the entries below it; every store passes these tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kit import Bench, LogBuilder, MemoryBench, SqliteBench, base_of, cleaning, row, runs_of, table, write

from alpo.core.disk import NO_BASE, Write
from alpo.core.entries import Entry
from alpo.core.log import Log
from alpo.storage.interface import StoreError


def _log() -> list[Entry]:
    """Ten entries in three runs, at 1, 4 and 6; some without payloads, some with two."""
    log = LogBuilder()
    return [
        log.leader(2), log.data(2, (b"a", b"b")), log.data(2), log.leader(3), log.data(3), log.leader(6),
        *log.datas(2, 6), log.data(6, (b"c", b"d")), log.data(6),
    ]


def _kept_runs(entries: list[Entry], base_id: int) -> list[tuple[int, int]]:
    """The runs that hold an entry above the base, those that began below it too."""
    runs = runs_of(entries)
    ends = [first_id - 1 for _, first_id in runs[1:]] + [entries[-1].id]
    return [run for run, end in zip(runs, ends, strict=True) if end > base_id]


def test_a_new_log_has_no_base(bench: Bench) -> None:
    assert bench.store.boot().base == NO_BASE
    bench.store.commit([write(_log())])
    assert bench.reopen().boot().base == NO_BASE


@pytest.mark.parametrize("upto", range(1, 11))
def test_what_is_left_of_a_log(bench: Bench, upto: int) -> None:
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[upto - 1])])
    for again in (False, True):
        store = bench.reopen() if again else bench.store
        boot = store.boot()
        assert boot.base == base_of(entries[upto - 1])
        assert boot.runs == _kept_runs(entries, upto)
        assert (boot.last_id, boot.last_term, boot.last_time_ms) == (10, 6, entries[-1].time_ms)
        assert boot.next_lsn == entries[-1].lsn + 1
        assert (boot.applied_id, boot.guaranteed_id) == (upto, upto)
        assert list(store.replay(upto + 1)) == entries[upto:]


@pytest.mark.parametrize("term", [6, 8])
@pytest.mark.parametrize("reopen", [False, True])
def test_the_log_goes_on_from_an_empty_one_above_a_base(bench: Bench, term: int, reopen: bool) -> None:
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[-1])])
    store = bench.reopen() if reopen else bench.store
    assert store.boot().runs == [] == list(store.replay(11)) == store.read_entries(11, 20, 10_000)
    log = LogBuilder(11, entries[-1].lsn + 1, entries[-1].time_ms)
    more = log.datas(5, term)
    with pytest.raises(StoreError):
        store.commit([write(more[1:])])
    store = bench.reopen()
    store.commit([write(more, guaranteed_id=10)])
    assert list(store.replay(11)) == more
    store = bench.reopen()
    boot = store.boot()
    assert (boot.runs, boot.last_id, boot.base) == ([(term, 11)], 15, base_of(entries[-1]))
    store.commit([cleaning(more[1]), write(log.datas(1, term), runs=[], guaranteed_id=12)])
    assert store.boot().runs == [(term, 11)]
    assert [e.id for e in store.replay(13)] == [13, 14, 15, 16]


def test_below_the_base_there_is_nothing_and_a_replay_begins_above_it(bench: Bench) -> None:
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[4])])
    for again in (False, True):
        store = bench.reopen() if again else bench.store
        for first_id in range(6):
            assert store.read_entries(first_id, 10, 10_000) == []
            assert store.read_entries(first_id, 3, 10_000) == []
            assert store.entry_head(first_id) is None
            assert list(store.replay(first_id)) == entries[5:]
        assert store.read_entries(6, 10, 10_000) == entries[5:]
        assert store.read_entries(6, 7, 10_000) == entries[5:7]
        assert store.entry_head(6) == (entries[5].time_ms, entries[5].lsn, 0)
        assert store.entry_head(11) is None


@pytest.mark.parametrize("upto", [1, 2, 5, 9, 10])
def test_the_finders_begin_above_the_base(bench: Bench, upto: int) -> None:
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[upto - 1])])
    kept = entries[upto:]
    for last_id in range(12):
        seen = [e for e in kept if e.id <= last_id]
        for lsn in range(14):
            at = next((e.id for e in seen if e.lsn + e.count > lsn), last_id + 1)
            assert bench.store.find_lsn(lsn, last_id) == at
        for time_ms in range(entries[0].time_ms - 1, entries[-1].time_ms + 2):
            at = next((e.id for e in seen if e.time_ms >= time_ms), last_id + 1)
            assert bench.store.find_time(time_ms, last_id) == at


def test_marks_go_to_disk_with_a_cleaning(bench: Bench) -> None:
    entries = _log()
    bench.store.commit([write(entries, guaranteed_id=2, table=table(8, []))])
    bench.store.commit([cleaning(entries[2], table=None, guaranteed_id=4, fully_replicated_id=3, term=6)])
    boot = bench.reopen().boot()
    assert (boot.guaranteed_id, boot.fully_replicated_id, boot.applied_id) == (4, 3, 8)


def test_the_table_that_a_cleaning_needs_is_saved_with_it(bench: Bench) -> None:
    entries = _log()
    bench.store.commit([write(entries, table=table(1, [row("a"), row("b")]))])
    bench.store.commit([cleaning(entries[6], table=table(7, [row("a", 5)], ["b"])._replace(trim_lsn=4))])
    boot = bench.reopen().boot()
    assert (boot.sessions, boot.applied_id, boot.trim_lsn) == ([row("a", 5)], 7, 4)


def test_the_directory_of_logs_is_saved_with_the_table(bench: Bench) -> None:
    directory = {"logs": [], "deleted": [], "next": 3}
    assert bench.store.boot().directory is None
    bench.store.commit([write(_log(), table=table(1, [row("a")])._replace(directory=directory))])
    assert bench.reopen().boot().directory == directory
    snapshot = bench.store.read_snapshot()
    assert snapshot is not None and snapshot.table.directory == directory
    bench.store.commit([write([], table=table(2, []))])
    assert bench.reopen().boot().directory is None


def test_cursors_are_saved_with_the_table(bench: Bench) -> None:
    cursors = (("nightly", 5), ("täglich", 1 << 62))
    assert bench.store.boot().cursors == ()
    bench.store.commit([write(_log(), table=table(1, [row("a")])._replace(cursors=cursors))])
    assert bench.reopen().boot().cursors == cursors
    bench.store.commit([write([], table=table(2, [])._replace(cursors=cursors[1:]))])
    assert bench.reopen().boot().cursors == cursors[1:]


def test_an_expunge_and_a_cleaning_in_one_commit(bench: Bench) -> None:
    entries = _log()
    branch = LogBuilder(8, entries[7].lsn, entries[7].time_ms)
    new = branch.datas(2, 9)
    bench.store.commit([write(entries)])
    bench.store.commit([
        write(new, expunge_from=8, term=9), cleaning(entries[3]), write(branch.datas(1, 9), runs=[]),
        cleaning(entries[6], guaranteed_id=8),
    ])
    boot = bench.reopen().boot()
    assert (boot.base, boot.runs, boot.last_id, boot.guaranteed_id) == (base_of(entries[6]), [(9, 8)], 10, 8)
    assert [e.id for e in bench.store.replay(1)] == [8, 9, 10]


def test_an_expunge_of_all_that_is_above_the_base(bench: Bench) -> None:
    """An expunge of all entries above the base ends the run that reached from the base upwards."""
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[6], guaranteed_id=7)])
    branch = LogBuilder(8, entries[7].lsn, entries[7].time_ms)
    bench.store.commit([write(expunge_from=8, guaranteed_id=7, term=8)])
    assert bench.reopen().boot().last_term == 6
    new = branch.datas(3, 9)
    bench.store.commit([write(new, guaranteed_id=7, term=9)])
    boot = bench.reopen().boot()
    assert (boot.runs[-1], boot.last_id, list(bench.store.replay(1))) == ((9, 8), 10, new)
    bench.store.commit([cleaning(new[0])])
    assert bench.reopen().boot().runs == [(9, 8)]


def test_what_is_not_of_the_log_is_refused_and_nothing_is_written(bench: Bench) -> None:
    entries = _log()
    bench.store.commit([write(entries)])
    bench.store.commit([cleaning(entries[4])])
    before = bench.store.boot()
    beyond = LogBuilder(11).data()
    for wrong in (
        [cleaning(entries[4])], [cleaning(entries[3])], [cleaning(beyond)], [write(expunge_from=5)],
        [write(expunge_from=1)], [write(expunge_from=9), cleaning(entries[8])],
    ):
        with pytest.raises(StoreError):
            bench.store.commit(wrong)
    assert bench.store.boot() == before
    bench.store.commit([write(expunge_from=6), cleaning(entries[4])._replace(base=None)])
    assert list(bench.reopen().replay(1)) == []


def test_what_is_free_and_what_is_used(bench: Bench) -> None:
    entries = LogBuilder().datas(400, size=1000)
    bench.store.commit([write(entries)])
    live = bench.store.live_bytes()
    assert live >= 400_000 and bench.store.free_bytes() == 0
    bench.store.commit([cleaning(entries[299])])
    assert 100_000 <= bench.store.live_bytes() < live * 0.4
    assert bench.store.free_bytes() + bench.store.live_bytes() in (live, bench.store.live_bytes())
    bench.store.give_back()


_steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans()), min_size=1,
    max_size=14,
)


def _play(steps: list[tuple[int, int, int, bool, bool]]) -> tuple[list[list[Write]], list[Entry], Log]:
    """Commits of random writes: (entries added, expunged before, cleaned, a new term?, ends a commit?), as the core
    makes them: an append follows an expunge; what is cleaned was on disk before its commit and is never expunged.
    Returns the commits, the whole log, and what the core knows of it."""
    commits: list[list[Write]] = [[]]
    entries: list[Entry] = []
    log = Log(tail_bytes_max=1 << 30)
    durable_id, term = 0, 1
    for add, expunge, clean, new_term, end in steps:
        term += new_term
        x = None
        if expunge and len(entries) - expunge >= log.base_id:
            x = len(entries) - expunge + 1
            del entries[x - 1 :]
            log.expunge(x)
            durable_id = min(durable_id, len(entries))
            term += 1
        builder = LogBuilder(len(entries) + 1, entries[-1].lsn + 1, entries[-1].time_ms) if entries else LogBuilder()
        new = builder.datas(add or int(x is not None), term)
        entries.extend(new)
        fields: dict[str, Any] = {"term": term, "runs": log.append(new, 0) if new else [], "expunge_from": x}
        if clean and log.base_id + clean <= durable_id:
            upto = entries[log.base_id + clean - 1]
            log.clean(base_of(upto))
            commits[-1].append(cleaning(upto, new, **fields))
        else:
            commits[-1].append(write(new, **fields, guaranteed_id=log.base_id))
        if end:
            durable_id = len(entries)
            commits.append([])
    return [commit for commit in commits if commit], entries, log


@contextmanager
def _fresh(directory: Path) -> Iterator[list[Bench]]:
    """A new one of each, for one example."""
    benches: list[Bench] = [MemoryBench(), SqliteBench(directory)]
    yield benches
    for bench in benches:
        bench.store.close()


@given(steps=_steps)
def test_any_log_is_what_is_above_its_base(steps: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    commits, entries, log = _play(steps)
    boots = []
    with _fresh(tmp_path_factory.mktemp("fresh")) as benches:
        for bench in benches:
            for commit in commits:
                bench.store.commit(commit)
            boots.append(bench.reopen().boot())
            assert list(bench.store.replay(log.base_id + 1)) == entries[log.base_id :]
    assert boots[0] == boots[1]
    again = Log(tail_bytes_max=0)
    boot = boots[0]
    again.restore(boot.base, boot.runs, boot.last_id, boot.last_term, boot.last_time_ms, boot.next_lsn)
    for id in range(len(entries) + 2):
        assert again.term_at(id) == log.term_at(id)
    assert (again.last_id, again.last_term, again.next_lsn) == (log.last_id, log.last_term, log.next_lsn)
