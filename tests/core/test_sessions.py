"""Verdicts on appends, one example a sentence of R21 and R22."""

from __future__ import annotations

import pytest
from session_leader import RANDOM, A, B, C, Leader, random_id, refused

from alpo.core.entries import Kind, join_payloads, seal, seal_appends, verify
from alpo.core.machine.verdicts import (
    Accept,
    Duplicate,
    Refuse,
    SessionTable,
)
from alpo.core.requests import Code


@pytest.fixture
def leader() -> Leader:
    return Leader()


# Appends of the current epoch.


def test_the_next_serial_is_accepted_and_a_whole_run_with_it(leader: Leader) -> None:
    epoch = leader.open()
    assert leader.ask("alice", epoch, 1, A, B, C) == [Accept(1, [A, B, C])]


def test_a_serial_above_the_next_is_told_which_and_that_is_no_verdict(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    assert leader.ask("alice", epoch, 3, A, B) == refused(3, 2, Code.SERIAL_EXPECTED, 2, 0)


def test_what_is_remembered_is_answered_with_its_lsn_and_rests_on_its_entry(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, (2, join_payloads([b"x", b"y"])), B)
    assert leader.ask("alice", epoch, 2, B) == [Duplicate(2, [3], 3)]
    assert leader.ask("alice", epoch, 1, (2, join_payloads([b"x", b"y"]))) == [Duplicate(1, [1], 2)]


def test_a_run_is_split_where_the_answers_differ(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A, B, C)
    assert leader.ask("alice", epoch, 1, A, C, C, A, B) == [
        Duplicate(1, [1], 2),
        Refuse(2, 1, Code.SERIAL_REUSED, 0, 3),
        Duplicate(3, [3], 4),
        Accept(4, [A, B]),
    ]


def test_neighbours_of_one_answer_are_one_part_that_rests_on_the_last(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A, B, C)
    assert leader.ask("alice", epoch, 1, A, B) == [Duplicate(1, [1, 2], 3)]
    assert leader.ask("alice", epoch, 1, C, C) == refused(1, 2, Code.SERIAL_REUSED, 0, 3)


def test_a_batch_is_not_the_single_payload_of_its_bytes(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, (2, b"ab"))
    assert leader.ask("alice", epoch, 1, (1, b"ab")) == refused(1, 1, Code.SERIAL_REUSED, 0, 2)


def test_below_the_window_nobody_can_tell(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A, A)
    leader.append("alice", epoch, 3, A, A, A, A)
    assert leader.ask("alice", epoch, 1, A, A, A) == [Refuse(1, 2, Code.TOO_OLD, 0, leader.head), Duplicate(3, [3], 4)]


def test_an_empty_window_remembers_nothing_and_goes_on() -> None:
    leader = Leader(window_total=1)
    epoch, other = leader.open(), leader.open("bob")
    leader.append("alice", epoch, 1, A)
    leader.append("bob", other, 1, A)
    assert leader.ask("alice", epoch, 1, A, B) == [Refuse(1, 1, Code.TOO_OLD, 0, 4), Accept(2, [B])]


# Sparse.


def test_sparse_may_skip_and_what_it_skipped_is_refused_for_good(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    leader.append("alice", epoch, 5, B, sparse=True)
    assert leader.ask("alice", epoch, 2, A, A, A) == refused(2, 3, Code.SKIPPED, 0, 3)
    assert leader.ask("alice", epoch, 4, A, sparse=True) == refused(4, 1, Code.SKIPPED, 0, 3)
    assert leader.ask("alice", epoch, 6, C) == [Accept(6, [C])]


def test_below_the_first_remembered_a_skipped_serial_cannot_be_told(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 5, A, sparse=True)
    assert leader.ask("alice", epoch, 3, A) == refused(3, 1, Code.TOO_OLD, 0, 2)


def test_a_retry_by_hand_never_skips(leader: Leader) -> None:
    epoch = leader.open()
    assert leader.ask("alice", epoch, 2, A, sparse=True, by_hand=True) == refused(2, 1, Code.SERIAL_EXPECTED, 1, 0)


def test_a_run_of_more_than_one_is_never_sparse(leader: Leader) -> None:
    epoch = leader.open()
    assert leader.ask("alice", epoch, 2, A, B, sparse=True) == refused(2, 2, Code.SERIAL_EXPECTED, 1, 0)


# Epochs.


def test_an_older_epoch_is_fenced_and_that_rests_on_the_entry_that_opened_the_newer(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    new = leader.open(n=2)
    assert leader.ask("alice", old, 2, A, B) == refused(2, 2, Code.FENCED, new, new)


def test_what_an_older_epoch_did_and_is_remembered_is_done(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    new = leader.open(n=2)
    assert leader.ask("alice", old, 1, A, B) == [Duplicate(1, [1], 2), Refuse(2, 1, Code.FENCED, new, new)]


def test_a_remembered_serial_of_another_epoch_is_reused(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    new = leader.open(n=2)
    leader.append("alice", new, 2, B)
    assert leader.ask("alice", new, 1, A) == refused(1, 1, Code.SERIAL_REUSED, 0, new)
    assert leader.ask("alice", old, 2, B) == refused(2, 1, Code.SERIAL_REUSED, 0, 4)


def test_an_older_epoch_is_fenced_below_the_window_too_if_it_cannot_have_been_done(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    new = leader.open(n=2)
    leader.append("alice", new, 2, A, A, A)
    leader.append("alice", new, 5, A, A, A)
    assert leader.ask("alice", old, 2, A) == refused(2, 1, Code.FENCED, new, new)


def test_an_older_epoch_is_not_said_undone_where_it_may_have_been_done_and_forgotten(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    new = leader.open(n=2)
    leader.append("alice", new, 2, A, A, A, A)
    assert leader.ask("alice", old, 1, A) == refused(1, 1, Code.TOO_OLD, 0, leader.head)


def test_a_serial_that_an_older_epoch_skipped_is_fenced_under_that_epoch(leader: Leader) -> None:
    old = leader.open()
    leader.append("alice", old, 1, A)
    leader.append("alice", old, 3, A, sparse=True)
    new = leader.open(n=2)
    assert leader.ask("alice", old, 2, A) == refused(2, 1, Code.FENCED, new, new)
    assert leader.ask("alice", new, 2, A) == refused(2, 1, Code.SKIPPED, 0, new)


def test_a_retry_by_hand_under_its_own_epoch_gives_the_lsn_or_is_appended(leader: Leader) -> None:
    epoch = leader.open()
    assert leader.ask("alice", epoch, 1, A, by_hand=True) == [Accept(1, [A])]
    leader.append("alice", epoch, 1, A)
    assert leader.ask("alice", epoch, 1, A, by_hand=True) == [Duplicate(1, [1], 2)]
    assert leader.ask("alice", epoch, 1, B, by_hand=True) == refused(1, 1, Code.SERIAL_REUSED, 0, 2)


def test_an_epoch_that_we_do_not_know_yet_gets_no_verdict(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    assert leader.ask("alice", 99, 1, A) == refused(1, 1, Code.NOT_LEADER, 0, 0)
    assert leader.ask("bob", 99, 1, A) == refused(1, 1, Code.NOT_LEADER, 0, 0)
    leader.guaranteed = 0
    assert leader.ask("bob", 1, 1, A) == refused(1, 1, Code.NOT_LEADER, 0, 0)


def test_an_epoch_that_never_was_is_fenced(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    assert leader.ask("alice", 2, 2, A) == refused(2, 1, Code.FENCED, epoch, 2)


# Drops: appends that the table has forgotten with them are never reported as "not in the log".


def test_of_a_name_that_is_not_open_nobody_can_tell(leader: Leader) -> None:
    leader.special(Kind.LEADER)
    assert leader.ask("alice", 0, 1, A) == refused(1, 1, Code.DROPPED, 0, 1)


def test_an_epoch_from_before_a_drop_is_told_so_whatever_the_serial(leader: Leader) -> None:
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    leader.drop("alice", epoch)
    assert leader.ask("alice", epoch, 1, A, B) == refused(1, 2, Code.DROPPED, 0, 3)
    birth = leader.open(n=2)
    assert leader.ask("alice", epoch, 1, A, B) == refused(1, 2, Code.DROPPED, birth, birth)
    leader.append("alice", birth, 1, C)
    newer = leader.open(n=3)
    for serial, body in ((1, A), (1, C), (2, B)):
        assert leader.ask("alice", epoch, serial, body) == refused(serial, 1, Code.DROPPED, newer, newer)
    assert leader.ask("alice", birth, 1, C) == [Duplicate(1, [2], 5)]
    assert leader.ask("alice", birth, 2, C) == refused(2, 1, Code.FENCED, newer, newer)
    assert leader.ask("alice", 0, 1, A) == refused(1, 1, Code.DROPPED, newer, newer)


def test_the_birth_is_kept_by_openings_expunges_saves_and_loads(leader: Leader) -> None:
    table = leader.table
    first = leader.open()
    leader.drop("alice", first)
    birth = leader.open(n=2)
    leader.open(n=3)

    def births() -> list[int]:
        return [row.birth for row in table.state()[2]]

    assert births() == [birth]
    saved = table.rows_at(leader.head)
    assert [row.birth for row in saved.changed] == [birth]
    other = SessionTable(table.settings)
    other.load(saved.changed, 0, table.settings, leader.head)
    assert other.state() == table.state()
    table.expunge(birth)
    assert births() == []
    table.expunge(first + 1)
    assert births() == [first]


# Random clients.


def test_a_random_client_begins_at_one(leader: Leader) -> None:
    assert leader.ask(RANDOM, 0, 2, A) == refused(2, 1, Code.SERIAL_EXPECTED, 1, 0)
    assert leader.ask(RANDOM, 0, 2, A, sparse=True) == [Accept(2, [A])]
    assert leader.ask(RANDOM, 0, 1, A, B) == [Accept(1, [A, B])]


def test_an_ended_random_client_has_expired_whatever_its_serial() -> None:
    leader = Leader(sessions_max=1)
    leader.append(RANDOM, 0, 1, A)
    leader.append(random_id(2000), 0, 1, A)
    for serial in (1, 2, 9):
        assert leader.ask(RANDOM, 0, serial, A) == refused(serial, 1, Code.SESSION_EXPIRED, 1000, 2)


@pytest.mark.parametrize(("made_ms", "expired"), [(999, True), (1000, True), (1001, False)])
def test_the_horizon_is_drawn_at_the_newest_that_ended(made_ms: int, expired: bool) -> None:
    leader = Leader(sessions_max=1)
    leader.append(RANDOM, 0, 1, A)
    leader.append(random_id(2000), 0, 1, A)
    stranger = random_id(made_ms)[:-1] + "1"
    assert (leader.ask(stranger, 0, 1, A)[0] == Refuse(1, 1, Code.SESSION_EXPIRED, 1000, 2)) is expired


def test_a_live_random_client_goes_on_below_the_horizon() -> None:
    leader = Leader(sessions_max=2)
    leader.append(RANDOM, 0, 1, A)
    leader.append(random_id(3000), 0, 1, A)
    leader.append(RANDOM, 0, 2, A)
    leader.append(random_id(4000), 0, 1, A)
    assert leader.table.horizon_ms == 3000
    assert leader.ask(RANDOM, 0, 3, A) == [Accept(3, [A])]


def test_a_random_client_has_no_epoch(leader: Leader) -> None:
    leader.append(RANDOM, 0, 1, A)
    assert leader.ask(RANDOM, 1, 2, A) == refused(2, 1, Code.INVALID, 0, 0)
    assert leader.ask(random_id(1), 1, 1, A) == refused(1, 1, Code.INVALID, 0, 0)


# No more in flight than is remembered.


def test_more_than_a_window_of_one_client_in_flight_is_to_be_sent_again(leader: Leader) -> None:
    epoch = leader.open()
    leader.guaranteed = 1
    leader.append("alice", epoch, 1, A, A)
    assert leader.ask("alice", epoch, 3, A, A, A) == [Accept(3, [A, A]), Refuse(5, 1, Code.SERIAL_EXPECTED, 5, 0)]
    leader.append("alice", epoch, 3, A, A)
    assert leader.ask("alice", epoch, 5, A) == refused(5, 1, Code.SERIAL_EXPECTED, 5, 0)
    leader.guaranteed = 2
    assert leader.ask("alice", epoch, 5, A) == [Accept(5, [A])]


def test_more_than_the_whole_window_in_flight_is_to_be_sent_again() -> None:
    leader = Leader(window_total=5)
    leader.guaranteed = 0
    leader.append(RANDOM, 0, 1, A, A, A)
    assert leader.ask(random_id(1), 0, 1, A, A, A) == [Accept(1, [A, A]), Refuse(3, 1, Code.SERIAL_EXPECTED, 3, 0)]


# Sealing.


def test_what_is_sealed_is_sound_and_numbered_on(leader: Leader) -> None:
    bodies = [A, (2, join_payloads([b"x", b"y"])), B]
    sealed = seal_appends(bodies, "é", 7, 3, 10, 2, 99, 20, together=False)
    for entry in sealed:
        verify(entry)
    assert [(e.id, e.serial, e.lsn, e.count) for e in sealed] == [(10, 7, 20, 1), (11, 8, 21, 2), (12, 9, 23, 1)]
    assert sealed[1] == seal(11, 2, Kind.DATA, 99, 21, sealed[1].body, "é", 8, 3, 2)
    assert type(sealed[0].kind) is int
