"""The durability contract (alpo.storage.interface); every store passes these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kit import INCARNATION, SERVER, Bench, LogBuilder, MemoryBench, SqliteBench, row, table, write

from alpo.core.disk import StartState, Write
from alpo.core.entries import Entry, seal
from alpo.core.members import Identity, StartStatus
from alpo.storage.interface import StoreError
from alpo.storage.rows import MARKS_LAG_MAX


def test_new_store_boots_empty(bench: Bench) -> None:
    boot = bench.store.boot()
    assert boot.me == Identity(SERVER, INCARNATION)
    assert (boot.term, boot.vote, boot.start.status) == (0, 0, StartStatus.EMPTY)
    assert (boot.last_id, boot.last_term, boot.next_lsn, boot.last_time_ms) == (0, 0, 1, 0)
    assert (boot.runs, boot.applied_id, boot.sessions, boot.members, boot.settings) == ([], 0, [], None, None)
    assert list(bench.store.replay(1)) == []
    assert bench.store.read_entries(1, 10, 1000) == []


def test_what_is_committed_is_there_after_a_restart(bench: Bench) -> None:
    log = LogBuilder()
    entries = [log.leader(), log.data(), log.data(payloads=(b"a", b"b", b"")), log.data(payloads=(b"\0\xff",))]
    bench.store.commit([write(entries, term=5, vote=2)])
    for again in (False, True):
        store = bench.reopen() if again else bench.store
        assert list(store.replay(1)) == entries
        assert list(store.replay(3)) == entries[2:]
        assert all(type(e) is Entry for e in store.replay(1))
        boot = store.boot()
        assert (boot.term, boot.vote, boot.runs) == (5, 2, [(1, 1)])
        assert (boot.last_id, boot.last_term, boot.last_time_ms) == (4, 1, entries[-1].time_ms)
        assert boot.next_lsn == 6


def test_runs_and_what_is_remembered_of_them_come_back(bench: Bench) -> None:
    """R32: a restart finds entries of several serials, and the session table's slots for them."""
    log = LogBuilder()
    entries = [log.run(1, (b"a",), (b"",)), log.run(3, (b"b", b"c"), (b"d",)), log.data(), log.run(6, *[(b"",)] * 3000)]
    slots = [(e.serial, e.id, e.lsn, e.epoch, e.digest) for e in entries]
    saved = row("a", 3005)._replace(slots=slots)
    bench.store.commit([write(entries, table=table(4, [saved]), guaranteed_id=4)])
    for again in (False, True):
        store = bench.reopen() if again else bench.store
        assert list(store.replay(1)) == store.read_columns(1, 4, 1 << 20).entries() == entries
        assert store.boot().sessions == [saved] and store.boot().next_lsn == entries[-1].lsn + 3000
        assert [store.find_lsn(lsn, 4) for lsn in (1, 2, 3, 5, 6, 7, 3006)] == [1, 1, 2, 2, 3, 4, 4]


def test_entries_of_every_kind_of_text_and_size_come_back(bench: Bench) -> None:
    log = LogBuilder()
    strange = [log.data()._replace(client=c) for c in ("", "ä\0ö", "漢" * 40)]
    entries = [seal(*e[:4], e.lsn, e.body, e.client, 2**63 - 1, 2**63 - 1, 1) for e in strange]
    entries += [log.data(payloads=(b"",)), log.data(payloads=(bytes(3_000_000),))]
    bench.store.commit([write(entries)])
    assert list(bench.reopen().replay(1)) == entries


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 300])
def test_groups_of_any_size(bench: Bench, count: int) -> None:
    entries = LogBuilder().datas(count)
    bench.store.commit([write(entries)])
    assert list(bench.store.replay(1)) == entries


def test_expunge_and_append_in_one_write(bench: Bench) -> None:
    log = LogBuilder()
    old = [log.leader(1), *log.datas(4, 1), log.leader(2), *log.datas(3, 2)]
    bench.store.commit([write(old)])
    assert bench.store.boot().runs == [(1, 1), (2, 6)]
    branch = LogBuilder(4, old[3].lsn, old[3].time_ms)
    new = [branch.leader(3), branch.data(3)]
    bench.store.commit([write(new, expunge_from=4)])
    for again in (False, True):
        store = bench.reopen() if again else bench.store
        assert list(store.replay(1)) == old[:3] + new
        assert store.boot().runs == [(1, 1), (3, 4)]
        assert store.boot().next_lsn == new[-1].lsn + 1


def test_expunge_alone_and_of_everything(bench: Bench) -> None:
    bench.store.commit([write(LogBuilder().datas(5))])
    bench.store.commit([write(expunge_from=3)])
    assert (bench.store.boot().last_id, bench.store.boot().runs) == (2, [(1, 1)])
    bench.store.commit([write(expunge_from=1, term=4)])
    boot = bench.reopen().boot()
    assert (boot.last_id, boot.last_term, boot.next_lsn, boot.runs, boot.term) == (0, 0, 1, [], 4)


def test_expunge_within_one_commit_reaches_writes_before_it(bench: Bench) -> None:
    log = LogBuilder()
    first = [log.leader(1), *log.datas(3, 1)]
    tail = LogBuilder(3, first[2].lsn, first[2].time_ms)
    second = [tail.leader(2), tail.data(2)]
    end = LogBuilder(4, second[1].lsn, second[1].time_ms)
    third = [end.leader(5)]
    bench.store.commit([
        write(first), write(second, expunge_from=3, vote=1), write(third, expunge_from=4, vote=2, term=6),
    ])
    assert list(bench.store.replay(1)) == [*first[:2], second[0], *third]
    boot = bench.reopen().boot()
    assert (boot.runs, boot.term, boot.vote) == ([(1, 1), (2, 3), (5, 4)], 6, 2)


def test_a_commit_leaves_the_writes_it_was_given_alone(bench: Bench) -> None:
    log = LogBuilder()
    one, two = write(log.datas(3)), write([log.data()], runs=[])
    three = write(expunge_from=2)
    sizes = [(len(w.entries), len(w.runs)) for w in (one, two, three)]
    bench.store.commit([one, two, three])
    assert [(len(w.entries), len(w.runs)) for w in (one, two, three)] == sizes


def test_a_gap_or_an_overlap_is_refused_and_nothing_is_written(bench: Bench) -> None:
    log = LogBuilder()
    entries = log.datas(6)
    bench.store.commit([write(entries[:2])])
    for wrong in (entries[3:], entries[1:], entries[2:3] + entries[4:]):
        with pytest.raises(StoreError):
            bench.store.commit([write(wrong, runs=[], term=9)])
    assert list(bench.store.replay(1)) == entries[:2]
    assert bench.store.boot().term == 1
    bench.store.commit([write(entries[2:], runs=[])])
    assert list(bench.store.replay(1)) == entries


def test_marks_are_written_after_so_many_payloads_too(bench: Bench) -> None:
    log = LogBuilder()
    half = MARKS_LAG_MAX // 2
    runs = [log.run(1 + n * half, *[(b"x",)] * half) for n in range(3)]
    for entry in runs:  # the first also makes the term durable
        bench.store.commit([write([entry], runs=[(1, 1)] if entry.id == 1 else [], guaranteed_id=entry.id - 1)])
        assert bench.store.boot().guaranteed_id == (2 if entry.id == 3 else 0)


def test_marks_are_lazy_but_not_for_ever(bench: Bench) -> None:
    entries = LogBuilder().datas(3 + MARKS_LAG_MAX)
    bench.store.commit([write(entries[:1], vote=1, guaranteed_id=1)])
    assert bench.store.boot().guaranteed_id == 1
    bench.store.commit([write(entries[1:3], vote=1, runs=[], guaranteed_id=3, fully_replicated_id=2)])
    assert bench.store.boot().guaranteed_id in (1, 3)
    bench.store.commit([write(vote=1, guaranteed_id=3, fully_replicated_id=2, table=table(3, []))])
    boot = bench.reopen().boot()
    assert (boot.guaranteed_id, boot.fully_replicated_id, boot.applied_id) == (3, 2, 3)
    bench.store.commit([write(entries[3:], vote=1, runs=[], guaranteed_id=3 + MARKS_LAG_MAX, fully_replicated_id=2)])
    assert bench.reopen().boot().guaranteed_id == 3 + MARKS_LAG_MAX


def test_start_state_comes_back_whole_and_stays(bench: Bench) -> None:
    start = StartState(
        StartStatus.STARTED, (Identity(1, b"\1" * 16), Identity(2, b"")), b"d" * 16, b"c" * 16,
        [[1, "h:1", 0, "01" * 16, 1, []]], {"window": 1024},
    )
    bench.store.commit([write(start=StartState(StartStatus.STARTING)), write(start=start), write(vote=3)])
    bench.store.commit([write(vote=2)])
    boot = bench.reopen().boot()
    assert (boot.start, boot.vote) == (start, 2)


def test_table_rows_replace_end_and_stay(bench: Bench) -> None:
    bench.store.commit([write(LogBuilder().datas(9))])
    bench.store.commit([write(table=table(4, [row("a"), row("b", 3, 3), row("ä")]))])
    bench.store.commit([write(table=table(6, [row("a", 9, 2), row("c")], ["b", "never there"]))])
    boot = bench.reopen().boot()
    assert boot.sessions == [row("a", 9, 2), row("c"), row("ä")]
    assert (boot.applied_id, boot.horizon_ms, boot.members_id) == (6, 5, 2)
    assert (boot.members, boot.settings) == (table(6, []).members, {"window": 1024})


def test_several_table_saves_in_one_commit(bench: Bench) -> None:
    saves = [table(1, [row("a"), row("b")]), table(2, [row("a", 5)], ["b"]), table(3, [row("b", 2), row("c", 1, 0)])]
    bench.store.commit([write(LogBuilder().datas(3)), *[write(table=t) for t in saves]])
    boot = bench.reopen().boot()
    assert boot.sessions == [row("a", 5), row("b", 2), row("c", 1, 0)]
    assert boot.applied_id == 3


def test_what_was_given_may_change_afterwards(bench: Bench) -> None:
    session = row("a", 3, 3)
    save = table(1, [session])
    bench.store.commit([write(LogBuilder().datas(1), table=save)])
    session.slots.clear()
    save.members.clear()
    assert bench.store.boot().sessions == [row("a", 3, 3)]
    bench.store.boot().sessions[0].slots.clear()
    assert bench.store.boot().sessions == [row("a", 3, 3)]
    assert bench.store.boot().members == table(1, []).members


def test_reads_stop_at_the_bound_but_give_one(bench: Bench) -> None:
    entries = LogBuilder().datas(20, size=100)
    bench.store.commit([write(entries)])
    read = bench.store.read_entries
    assert read(3, 20, 250) == entries[2:4]
    assert read(3, 20, 300) == entries[2:5]
    assert read(3, 20, 1) == entries[2:3]
    assert read(3, 4, 10_000) == entries[2:4]
    assert read(19, 99, 10_000) == entries[18:]
    assert read(21, 99, 10_000) == []
    assert read(5, 4, 10_000) == []


def test_heads(bench: Bench) -> None:
    log = LogBuilder()
    entries = [log.leader(), log.data(payloads=(b"a", b"b"))]
    bench.store.commit([write(entries)])
    assert bench.store.entry_head(1) == (entries[0].time_ms, 1, 0)
    assert bench.store.entry_head(2) == (entries[1].time_ms, 1, 2)
    assert bench.store.entry_head(0) is bench.store.entry_head(3) is None


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bench]]:
    """One of each for all examples: to make a store costs more than a test of it."""
    benches: list[Bench] = [MemoryBench(), SqliteBench(tmp_path_factory.mktemp("both") / "data")]
    yield benches
    for bench in benches:
        bench.store.close()


_shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=30)


@given(shapes=_shapes, last_id=st.integers(0, 35))
def test_finders_against_looking_at_every_entry(shapes: list[tuple[int, int]], last_id: int, both: list[Bench]) -> None:
    log = LogBuilder(time_ms=1000)
    entries = [
        log.leader(step_ms=step) if count == 0 else log.data(payloads=(b"x",) * count, step_ms=step)
        for count, step in shapes
    ]
    for bench in both:
        bench.store.commit([write(expunge_from=1), write(entries)])
        seen = entries[:last_id]
        for lsn in range(1, log.lsn + 2):
            holders = [e.id for e in seen if e.count and e.lsn <= lsn < e.lsn + e.count]
            assert bench.store.find_lsn(lsn, last_id) == (holders[0] if holders else last_id + 1)
        for time_ms in range(999, log.time_ms + 2):
            since = [e.id for e in seen if e.time_ms >= time_ms]
            assert bench.store.find_time(time_ms, last_id) == (since[0] if since else last_id + 1)


_steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=12
)


def _play(steps: list[tuple[int, int, bool, bool]]) -> tuple[list[Write], list[bool], list[Entry]]:
    """Random writes: (entries to add, entries to expunge before, new term?, ends a commit?); and the log they make."""
    writes: list[Write] = []
    ends: list[bool] = []
    log: list[Entry] = []
    term = 1
    for add, expunge, new_term, end in steps:
        term += new_term
        x = None
        if expunge and len(log) >= expunge:
            x = len(log) - expunge + 1
            del log[x - 1 :]
        builder = LogBuilder(len(log) + 1, log[-1].lsn + log[-1].count if log else 1)
        entries = builder.datas(add, term)
        runs = [(term, entries[0].id)] if entries and (not log or log[-1].term != term) else []
        log.extend(entries)
        writes.append(write(entries, term=term, runs=runs, expunge_from=x))
        ends.append(end)
    return writes, ends, log


@given(steps=_steps)
def test_any_grouping_of_writes_makes_the_same_log(steps: list[tuple[int, int, bool, bool]], both: list[Bench]) -> None:
    writes, ends, log = _play(steps)
    for bench in both:
        bench.store.commit([write(expunge_from=1)])
        group: list[Write] = []
        for one, end in zip(writes, ends, strict=True):
            group.append(one)
            if end:
                bench.store.commit(group)
                group = []
        if group:
            bench.store.commit(group)
        boot = bench.reopen().boot()
        assert list(bench.store.replay(1)) == log
        assert boot.runs == [(e.term, e.id) for i, e in enumerate(log) if i == 0 or log[i - 1].term != e.term]
        assert boot.term == writes[-1].term


def test_a_closed_store_says_so(bench: Bench) -> None:
    bench.store.close()
    with pytest.raises(StoreError):
        bench.store.boot()
    with pytest.raises(StoreError):
        bench.store.read_entries(1, 1, 1)
    with pytest.raises(StoreError):
        bench.store.commit([write()])


@pytest.mark.parametrize("bytes_max", [1, 30, 1 << 20])
def test_columns_say_what_entries_say(bench: Bench, bytes_max: int) -> None:
    log = LogBuilder()
    entries = [log.leader(), *log.datas(700), log.data(payloads=(b"a", b"")), log.leader(2), *log.datas(30, 2)]
    bench.store.commit([write(entries)])
    for first, last in [(1, len(entries)), (690, 720), (5, 5), (733, 900), (900, 1000)]:
        found: list[Entry] = []
        while page := bench.store.read_columns(first + len(found), last, bytes_max).entries():
            assert len(page) == 1 or sum(len(entry.body) for entry in page) <= bytes_max
            found += page
        assert found == entries[first - 1 : last]
