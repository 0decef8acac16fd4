"""Runs (R32): appends of one client that came together are one entry, and every serial is judged by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cluster_kit import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from session_leader import RANDOM, A, B, C, Leader, refused

from alpo.core.entries import (
    RUN_BYTES_MAX,
    DamagedEntry,
    Entry,
    join_payloads,
    lsns_of,
    parts,
    random_client,
    same,
    seal_appends,
    serials_of,
    verify,
    verify_headers,
)
from alpo.core.machine.verdicts import Accept, Duplicate, Found, SessionTable
from alpo.core.ready import Disconnected
from alpo.core.requests import Code, Fate, Outcome
from alpo.core.settings import Settings
from alpo.core.snapshots import split_rows, table_save

CLIENTS = [random_client(1_000, at) for at in range(3)]
SMALL = Settings(window=7, window_total=16)
BATCH = (2, join_payloads([b"x", b"y"]))

bodies = st.lists(
    st.binary(max_size=5).map(lambda body: (1, body))
    | st.lists(st.binary(max_size=3), min_size=2, max_size=3).map(lambda each: (len(each), join_payloads(each))),
    min_size=1, max_size=9,
)
logs = st.lists(st.tuples(st.sampled_from(CLIENTS), bodies, st.integers(0, 1), st.booleans()), max_size=10)


def log_of(drawn: list[tuple[str, list[tuple[int, bytes]], int, bool]]) -> list[Entry]:
    """Entries of (client, bodies, step of time, whether they are a run)."""
    entries: list[Entry] = []
    serials = dict.fromkeys(CLIENTS, 1)
    time_ms = 2_000
    for client, each, step, together in drawn:
        time_ms += step
        lsn = entries[-1].lsn + entries[-1].count if entries else 1
        entries += seal_appends(
            each, client, serials[client], 0, len(entries) + 1, 1, time_ms, lsn, together=together
        )
        serials[client] += len(each)
    return entries


def table_of(entries: list[Entry], limits: Settings) -> SessionTable:
    table = SessionTable(limits)
    for entry in entries:
        table.apply(entry)
    return table


@pytest.fixture
def leader() -> Leader:
    return Leader(together=True)


# What is sealed.


@given(bodies)
def test_a_run_holds_its_appends(each: list[tuple[int, bytes]]) -> None:
    log = seal_appends(each, "é", 7, 3, 10, 2, 99, 20, together=True)
    verify_headers(log)
    assert len(log) == 1
    verify(log[0])
    found = parts(log[0])
    assert [(part.count, part.body) for part in found] == each
    assert [part.serial for part in found] == list(range(7, 7 + len(each)))
    assert [part.lsn for part in found] == list(lsns_of(log[0]))
    assert (log[0].serial, log[0].lsn, log[0].count) == (7, 20, sum(count for count, _ in each))
    for nth, (count, body) in enumerate(each):
        assert same(log[0].digest, nth, count, body)
        assert not same(log[0].digest, nth, count, body + b"z")
        assert len(each) == 1 or not same(log[0].digest, nth, count + 1, body)
    alone = seal_appends(each, "é", 7, 3, 10, 2, 99, 20, together=False)
    assert [parts(entry)[0] for entry in alone] == found


def test_a_run_is_cut_at_its_most_bytes_and_a_larger_append_is_alone() -> None:
    half, large = (1, bytes(RUN_BYTES_MAX // 2)), (1, bytes(RUN_BYTES_MAX + 1))
    log = seal_appends([half, half, A, large, A, B], "c", 1, 0, 1, 1, 0, 1, together=True)
    assert [(e.id, e.serial, serials_of(e.digest), e.lsn) for e in log] == [
        (1, 1, 2, 1), (2, 3, 1, 3), (3, 4, 1, 4), (4, 5, 2, 5),
    ]


def test_a_run_whose_body_is_another_is_damaged() -> None:
    (run,) = seal_appends([A, BATCH], "c", 1, 0, 1, 1, 0, 1, together=True)
    with pytest.raises(DamagedEntry):
        verify(run._replace(body=run.body[:-1] + b"z"))
    with pytest.raises(DamagedEntry):
        verify(run._replace(digest=run.digest[:-1] + b"\7"))
    with pytest.raises(DamagedEntry):
        parts(run._replace(body=run.body + b"z"))


# What is answered.


def test_serials_in_the_middle_of_a_run_are_answered_one_by_one(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, A, BATCH, C)
    assert [(e.serial, e.count) for e in leader.log] == [(1, 4)]
    assert leader.ask(RANDOM, 0, 1, A, BATCH, C) == [Duplicate(1, [1, 2, 4], 1)]
    assert leader.ask(RANDOM, 0, 2, BATCH) == [Duplicate(2, [2], 1)]
    assert leader.ask(RANDOM, 0, 3, C, A) == [Duplicate(3, [4], 1), Accept(4, [A])]
    assert leader.ask(RANDOM, 0, 2, A, C) == [*refused(2, 1, Code.SERIAL_REUSED, 0, 1), Duplicate(3, [4], 1)]
    assert leader.ask(RANDOM, 0, 5, A) == refused(5, 1, Code.SERIAL_EXPECTED, 4, 0)


def test_what_was_done_waits_for_its_own_entry_alone(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, A, B)
    leader.append(RANDOM, 0, 3, A, B)
    leader.guaranteed = 1
    assert leader.ask(RANDOM, 0, 2, B, A) == [Duplicate(2, [2], 1), Duplicate(3, [3], 2)]
    leader.guaranteed = 2
    assert leader.ask(RANDOM, 0, 2, B, A) == [Duplicate(2, [2, 3], 2)]


def test_an_outcome_is_told_of_a_serial_within_a_run(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, BATCH, A, B)
    assert leader.table.judge_outcome(Outcome(None, RANDOM, 3), 2) == Found(Fate.APPENDED, 4, 0, 1)
    assert leader.table.judge_outcome(Outcome(None, RANDOM, 4), 2) == Found(Fate.NOT_APPENDED, 0, 0, 1)


def test_serials_between_runs_were_skipped(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A, B)
    leader.append("alice", epoch, 5, C, sparse=True)
    assert leader.ask("alice", epoch, 2, B, A, A) == [Duplicate(2, [2], 2), *refused(3, 2, Code.SKIPPED, 0, 3)]


def test_an_older_epoch_in_the_middle_of_a_run(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A, B)
    newer = leader.reopen("alice", epoch)
    assert leader.ask("alice", epoch, 2, B, C) == [Duplicate(2, [2], 2), *refused(3, 1, Code.FENCED, newer, newer)]


# What becomes a run.


def test_appends_that_came_together_are_a_run_also_while_a_member_is_away() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.give(leader.me.id, Disconnected(next(id for id in cluster.hosts if id != leader.me.id)))
    last_id = leader.last_id
    cluster.append(RANDOM, 1, b"a", b"b", b"c")
    entry = leader.log.entry(last_id + 1)
    assert leader.last_id == last_id + 1 and entry is not None and serials_of(entry.digest) == 3


# What is remembered.


def test_a_whole_run_is_forgotten_once_the_window_is_full_without_it(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, A, B, C)
    leader.append(RANDOM, 0, 4, A, B, C)
    assert leader.ask(RANDOM, 0, 1, A) == [Duplicate(1, [1], 1)]  # three are left without it, and the window is four
    leader.append(RANDOM, 0, 7, A)
    assert leader.ask(RANDOM, 0, 3, C) == refused(3, 1, Code.TOO_OLD, 0, 3)
    assert leader.ask(RANDOM, 0, 4, A) == [Duplicate(4, [4], 2)]


def test_a_snapshot_is_cut_by_serials(leader: Leader) -> None:
    for client in CLIENTS:
        leader.append(client, 0, 1, A, B, C)
    rows = leader.table.rows_at(leader.head).changed
    assert [len(part) for part in split_rows(rows, 14)] == [2, 1]
    assert [len(part) for part in split_rows(rows, 13)] == [1, 1, 1]


def test_serials_in_flight_count_not_entries() -> None:
    leader = Leader(together=True, window=4)
    leader.guaranteed = 0
    leader.append(RANDOM, 0, 1, A, B, C)
    assert leader.ask(RANDOM, 0, 4, A, B) == [Accept(4, [A]), *refused(5, 1, Code.SERIAL_EXPECTED, 5, 0)]
    leader.guaranteed = 1
    assert leader.ask(RANDOM, 0, 4, A, B) == [Accept(4, [A, B])]


def test_an_expunge_takes_back_all_serials_of_a_run(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, A)
    leader.append(RANDOM, 0, 2, A, B, C)
    leader.table.expunge(2)
    del leader.log[1:]
    assert leader.ask(RANDOM, 0, 2, A, B) == [Accept(2, [A, B])]
    assert leader.table.state() == table_of(leader.log, leader.table.settings).state()


@settings(deadline=None)
@given(logs, st.floats(0, 1), st.sampled_from([SMALL, Settings(window=9), Settings()]))
def test_a_table_saved_or_expunged_anywhere_is_as_if_the_rest_had_never_been(
    drawn: list[tuple[str, list[tuple[int, bytes]], int, bool]], where: float, limits: Settings
) -> None:
    log = log_of(drawn)
    cut = int(where * len(log))
    table = table_of(log, limits)
    saved = table.rows_at(cut)
    other = SessionTable(limits)
    other.load(saved.changed, saved.horizon_ms, limits, cut)
    assert other.state() == table_of(log[:cut], limits).state()
    table.expunge(cut + 1)
    assert table.state() == table_of(log[:cut], limits).state()
    table.apply_all(log[cut:])
    assert table.state() == table_of(log, limits).state()


@settings(deadline=None)
@given(logs)
def test_the_answers_do_not_tell_how_appends_were_grouped(
    drawn: list[tuple[str, list[tuple[int, bytes]], int, bool]],
) -> None:
    log = log_of(drawn)
    alone = log_of([(client, each, step, False) for client, each, step, _ in drawn])
    tables = [(table_of(log, Settings()), len(log)), (table_of(alone, Settings()), len(alone))]
    for client in CLIENTS:
        for serial in range(1, 12):
            told = [table.judge_outcome(Outcome(None, client, serial), end + 1) for table, end in tables]
            assert told[0][:2] == told[1][:2]


def test_the_table_is_saved_after_so_many_serials_too() -> None:
    cluster = Cluster(3, table_save_entries=10)
    leader = cluster.elect()
    saved_id = leader.applied_id
    cluster.append(CLIENTS[0], 1, *[b"x"] * 9)
    cluster.run(1.0)
    assert leader.applied_id == saved_id
    cluster.append(CLIENTS[0], 10, b"x")
    cluster.append(CLIENTS[0], 11, b"x")
    cluster.run(1.0)
    assert leader.applied_id > saved_id


@pytest.mark.pure
def test_no_table_is_saved_as_of_a_mark_that_is_behind_the_last_save() -> None:
    server: Any = SimpleNamespace(
        applied_id=100, guaranteed_id=0, save_upto_id=0, out=SimpleNamespace(has_write=True),
        sessions=SimpleNamespace(unsaved_serials=1_000), cfg=SimpleNamespace(table_save_entries=10),
    )
    assert table_save(server, None) is None
