"""The table's state: what entries do, what ends when, and that nothing in a log can break it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from session_leader import random_id

from alpo.core.disk import SessionRow
from alpo.core.entries import Entry, Kind, json_body, seal
from alpo.core.machine.verdicts import SessionTable, drop_body, open_body
from alpo.core.settings import Settings

NONCE = bytes(16)
R1, R2, R3 = (random_id(n << 16) for n in (1, 2, 3))
MS = 1 << 16
SMALL = Settings(session_ttl_ms=100, window=2, window_total=4, sessions_max=2, names_max=2)


def data(id: int, client: str, serial: int, time_ms: int = 0, epoch: int = 0) -> Entry:
    return seal(id, 1, Kind.DATA, time_ms, id, b"x", client, serial, epoch, 1)


def opened(id: int, client: str, time_ms: int = 0) -> Entry:
    return seal(id, 1, Kind.SESSION, time_ms, id, open_body(NONCE, 0), client)


def table(*entries: Entry) -> SessionTable:
    made = SessionTable(SMALL)
    made.apply_all(entries)
    return made


def clients(made: SessionTable) -> list[str]:
    return [row.client for row in made.snapshot_rows()]


def serials(made: SessionTable) -> dict[str, list[int]]:
    return {row.client: [slot[0] for slot in row.slots] for row in made.state()[2]}


def test_a_session_keeps_its_last_entry_and_its_window() -> None:
    made = table(opened(1, "alice", 5), *(data(id, "alice", id - 1, 5 + id, 1) for id in (2, 3, 4)))
    slots = [(serial, serial + 1, serial + 1, 1, data(1, "", 1).digest) for serial in (2, 3)]
    assert made.state()[2] == [SessionRow("alice", 1, NONCE, 0, 3, 4, 9, slots, 1)]
    assert made.snapshot_rows() == [SessionRow("alice", 1, NONCE, 0, 3, 4, 9, [], 1)]


def test_the_oldest_by_entry_id_is_forgotten_first_whoever_owns_it() -> None:
    made = table(data(1, R1, 1), opened(2, "alice"), data(3, "alice", 1, 0, 2), data(4, R1, 2), data(5, R2, 1))
    assert serials(made) == {"alice": [1], R1: [1, 2], R2: [1]}
    made.apply(data(6, R2, 2))
    assert serials(made) == {"alice": [1], R1: [2], R2: [1, 2]}
    made.apply_all([opened(7, "bob"), data(8, "bob", 1, 0, 7), data(9, "bob", 2, 0, 7)])
    assert serials(made) == {"alice": [], "bob": [1, 2], R1: [], R2: [1, 2]}


def test_who_came_after_forgetting_began_is_forgotten_in_turn() -> None:
    made = table(data(1, R1, 1), data(2, R1, 2), opened(3, "alice"), *(data(n, "alice", n - 3, 0, 3) for n in (4, 5)))
    made.apply_all([data(6, R2, 1), data(7, R1, 3), data(8, R2, 2), data(9, R1, 4)])
    assert serials(made) == {"alice": [], R1: [3, 4], R2: [1, 2]}
    made.apply(data(10, "alice", 3, 0, 3))
    assert serials(made) == {"alice": [3], R1: [3, 4], R2: [2]}
    made.apply_all([data(11, R1, 5), opened(12, "bob"), data(13, "bob", 1, 0, 12), data(14, "bob", 2, 0, 12)])
    assert serials(made) == {"alice": [3], "bob": [1, 2], R1: [5], R2: []}
    made.apply(data(15, R2, 3))
    assert serials(made) == {"alice": [], "bob": [1, 2], R1: [5], R2: [3]}


def test_a_run_after_forgetting_began_is_forgotten_in_turn() -> None:
    made = table(data(1, R1, 1), data(2, R1, 2), opened(3, "alice"), *(data(n, "alice", n - 3, 0, 3) for n in (4, 5)))
    made.apply_all([data(6, R2, 1), data(7, R2, 2), seal(8, 1, Kind.SESSION, 0, 8, drop_body(3), "alice")])
    assert serials(made) == {R1: [], R2: [1, 2]}
    made.apply_all([data(9, R1, 3), *(seal(n, 1, Kind.LEADER, 0, n, b"") for n in range(10, 17))])
    made.apply_all([opened(17, "bob"), data(18, "bob", 1, 0, 17), data(19, "bob", 2, 0, 17)])
    made.apply_all([opened(20, "alice"), data(21, "alice", 1, 0, 20), data(22, "alice", 2, 0, 20)])
    assert serials(made) == {"alice": [1, 2], "bob": [1, 2], R1: [], R2: []}


@pytest.mark.parametrize("kind", [Kind.LEADER, Kind.TRIM, Kind.MEMBERS, Kind.CURSOR, Kind.SESSION])
def test_idle_random_sessions_end_at_entries_of_any_kind(kind: Kind) -> None:
    made = table(data(1, R2, 1), data(2, R1, 1, 1), opened(3, "alice", 1))
    made.apply(seal(4, 1, kind, 100, 1, b"{}"))
    assert clients(made) == ["alice", R1, R2]
    made.apply(seal(5, 1, kind, 101, 1, b"{}"))
    assert (clients(made), made.horizon_ms) == (["alice", R1], 2 * MS)
    made.apply(seal(6, 1, kind, 102, 1, b"{}"))
    assert (clients(made), made.horizon_ms) == (["alice"], 2 * MS)


def test_nobody_ends_at_his_own_entry() -> None:
    made = table(data(1, R1, 1), data(2, R2, 1), data(3, R1, 2, 1000))
    assert (clients(made), made.horizon_ms) == ([R1], 2 * MS)


def test_above_sessions_max_the_longest_idle_ends() -> None:
    made = table(data(1, R1, 1), data(2, R2, 1), data(3, R1, 2), data(4, R3, 1))
    assert (clients(made), made.horizon_ms) == ([R1, R3], 2 * MS)


def test_settings_take_effect_at_their_entry_and_are_undone_with_it() -> None:
    made = table(data(1, R1, 1), data(2, R1, 2), data(3, R2, 1), data(4, R2, 2))
    before = made.state()
    less = Settings(session_ttl_ms=50, window=1, window_total=1, sessions_max=1, names_max=1)
    made.apply(seal(5, 1, Kind.SETTINGS, 0, 1, json_body(**less.to_plain())))
    assert (made.settings, serials(made), made.horizon_ms) == (less, {R2: [2]}, 1 * MS)
    made.expunge(5)
    assert made.state() == before


def test_an_expunge_of_what_is_settled_is_an_error() -> None:
    made = table(data(1, R1, 1), data(2, R1, 2))
    made.settle(1)
    with pytest.raises(ValueError, match="settled"):
        made.expunge(1)
    with pytest.raises(ValueError, match="settled"):
        made.rows_at(0)
    made.expunge(2)
    assert made.same_as(table(data(1, R1, 1)))


def test_the_journal_stays_bounded() -> None:
    made = SessionTable(Settings())
    for id in range(1, 10_000):
        made.apply(data(id, R1, id))
        made.settle(id - 10)
        assert len(made._journal) <= 2048
    made.expunge(9_990)
    assert made.snapshot_rows() == [SessionRow(R1, 0, b"", 0, 9_989, 9_989, 0, [])]


def test_a_save_holds_what_changed_as_of_its_id() -> None:
    made = table(data(1, R1, 1), opened(2, "alice", 1), data(3, "alice", 1, 1, 2), data(4, R2, 1, 1))
    assert [row.client for row in made.rows_at(2).changed] == ["alice", R1]
    made.saved(2)
    made.apply_all([data(5, "alice", 2, 2, 2), data(6, "alice", 3, 2, 2), seal(7, 1, Kind.LEADER, 102, 7, b"")])
    digest = data(1, "", 1).digest
    rows = [
        SessionRow("alice", 2, NONCE, 0, 2, 5, 2, [(1, 3, 3, 2, digest), (2, 5, 5, 2, digest)], 2),
        SessionRow(R2, 0, b"", 0, 1, 4, 1, [(1, 4, 4, 0, digest)]),
    ]
    # R1 ends only after entry 5, so its row is given as it was then.
    assert made.rows_at(5) == (sorted([*rows, SessionRow(R1, 0, b"", 0, 1, 1, 0, [(1, 1, 1, 0, digest)])]), [], 0)
    made.saved(5)
    changed, ended, horizon_ms = made.rows_at(7)
    assert ([row[:5] for row in changed], ended, horizon_ms) == ([("alice", 2, NONCE, 0, 3)], [R1, R2], 2 * MS)


def test_what_was_not_saved_is_given_again() -> None:
    made = table(data(1, R1, 1))
    first = made.rows_at(1)
    assert made.rows_at(1) == first
    made.saved(1)
    assert made.rows_at(1).changed == []


def test_a_save_confirmed_does_not_vouch_for_a_later_one() -> None:
    made = table(data(1, R1, 1), data(2, R2, 1))
    made.rows_at(1)
    made.rows_at(2)
    made.saved(1)
    assert [row.client for row in made.rows_at(2).changed] == [R2]


def test_a_session_that_others_made_forget_is_saved_again() -> None:
    made = table(data(1, R1, 1), data(2, R1, 2), data(3, R2, 1), data(4, R2, 2), opened(5, "alice"))
    made.rows_at(5)
    made.saved(5)
    made.apply(data(6, "alice", 1, 0, 5))
    assert [(row.client, len(row.slots)) for row in made.rows_at(6).changed] == [("alice", 1), (R1, 1)]


def test_a_run_is_saved_as_far_as_it_is_asked_for() -> None:
    made = SessionTable(Settings(window=2))
    made.apply(data(1, R1, 1))
    made.rows_at(1)
    made.saved(1)
    made.apply_all([data(n, R1, n, 3) for n in range(2, 12)])
    for at in (5, 11):
        assert [(row[4:7], [slot[0] for slot in row.slots]) for row in made.rows_at(at).changed] == [
            ((at, at, 3), [at - 1, at])
        ]


def test_only_data_entries_make_a_run() -> None:
    made = table(opened(1, "alice"))
    odd = seal(2, 1, Kind.SESSION, 0, 1, open_body(NONCE, 1), "alice", 1)
    made.apply_all([odd, *(seal(n, 1, Kind.LEADER, 0, n, b"") for n in range(3, 11))])
    assert made.snapshot_rows()[0][:6] == ("alice", 2, NONCE, 0, 0, 2)
    assert serials(made) == {"alice": []}


def test_settings_count_from_the_next_entry_of_the_same_group() -> None:
    wider = Settings(window=3, window_total=4, sessions_max=2, names_max=2)
    made = SessionTable(SMALL)
    change = seal(1, 1, Kind.SETTINGS, 0, 1, json_body(**wider.to_plain()))
    made.apply_all([change, *(data(n, R1, n) for n in (2, 3, 4))])
    assert serials(made) == {R1: [2, 3, 4]}


def test_a_loaded_table_forgets_what_it_was() -> None:
    made = table(data(1, R1, 1), opened(2, "alice"))
    made.load([], 7, SMALL, 3)
    assert made.state() == (SMALL, 7, [])
    assert (made.names, made.randoms) == (0, 0)


WRONG = [
    (data(2, "bob", 1), "not open"),
    (data(2, "~x", 1), "not open"),
    (data(2, "", 1), "not open"),
    (data(2, "alice", 1, 0, 9), "epoch"),
    (data(2, "alice", 0, 0, 1), "repeats"),
    (data(2, R1, 0), "begins no session"),
    (data(2, R1, 1, 0, 5), "begins no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b"", "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b"[" * 100_000, "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b"\xff", "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b'{"op":"open","nonce":"zz"}', "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b'{"op":"open","nonce":7}', "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, b'{"op":"drop","epoch":"1"}', "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, open_body(NONCE, 0), R1), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, open_body(NONCE, 0), ""), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, drop_body(2), "alice"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, drop_body(1), "bob"), "no session"),
    (seal(2, 1, Kind.SESSION, 0, 1, drop_body(0), R1), "no session"),
]


@pytest.mark.parametrize(("entry", "why"), WRONG)
def test_an_entry_that_no_right_leader_makes_is_named_and_does_no_harm(entry: Entry, why: str) -> None:
    made = table(opened(1, "alice"))
    assert why in (made.inconsistency(entry) or "")
    before = made.state()
    made.apply(entry)
    made.expunge(2)
    assert made.state() == before


def test_a_data_entry_of_an_ended_session_is_named() -> None:
    made = table(data(1, R2, 1), seal(2, 1, Kind.LEADER, 101, 1, b""))
    assert "ended" in (made.inconsistency(data(3, R1, 1)) or "")


KINDS = st.sampled_from([*Kind, Kind.DATA, Kind.DATA, Kind.SESSION])
BODIES = st.sampled_from(
    [
        *(b"", b"{}", b"[]", b"null", open_body(NONCE, 0), drop_body(0), drop_body(1), drop_body(2)),
        *(json_body(op="open", nonce=None), json_body(window=1), json_body(window=-1), json_body(sessions_max=1)),
    ]
)
WILD = st.tuples(KINDS, st.sampled_from(["", "a", "b", "~", "~x", R1, R2, R3]), BODIES,
                 st.integers(0, 5), st.integers(0, 9), st.integers(0, 150))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(wild=st.lists(WILD, max_size=30), cut=st.integers(1, 30))
def test_whatever_a_log_holds_it_is_applied_and_taken_back(
    wild: list[tuple[Kind, str, bytes, int, int, int]], cut: int
) -> None:
    log: list[Entry] = []
    time_ms = 0
    for kind, client, body, serial, epoch, more_ms in wild:
        time_ms += more_ms
        log.append(seal(len(log) + 1, 1, kind, time_ms, 1, body, client, serial, epoch))
    made, single = table(*log), table()
    for at, entry in enumerate(log):
        if at == cut - 1:
            made.expunge(cut)
            assert made.same_as(single)
            made.apply_all(log[at:])
        single.inconsistency(entry)
        single.apply(entry)
    assert made.same_as(single)


def test_settings_as_of_an_entry() -> None:
    table = SessionTable(Settings(window=5))
    table.apply(seal(1, 1, Kind.SETTINGS, 100, 1, json_body(**Settings(window=6).to_plain())))
    table.apply(seal(2, 1, Kind.SETTINGS, 100, 1, json_body(**Settings(window=7).to_plain())))
    assert [table.settings_at(id).window for id in (0, 1, 2)] == [5, 6, 7]
