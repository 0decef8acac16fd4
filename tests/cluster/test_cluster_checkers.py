"""Every checker catches a made-up violation, and lets a good history through."""

from __future__ import annotations

import random
from itertools import permutations

import checkers as c
import pytest
from checkers import Append, Logged, Outcome, Read
from hypothesis import given
from hypothesis import strategies as st

from alpo.core.entries import Entry, Kind


def appended(client: str, number: int, began_s: float, ended_s: float, lsn: int) -> Append:
    return Append(client, number, f"{client}/{number}".encode(), began_s, ended_s, Outcome.ACKNOWLEDGED, lsn)


def logged(lsn: int, client: str, number: int, serial: int | None = None) -> Logged:
    return Logged(lsn, client, number if serial is None else serial, f"{client}/{number}".encode())


APPENDS = [appended("a", 1, 0, 1, 1), appended("b", 1, 0.5, 3, 2), appended("a", 2, 2, 4, 3)]
LOG = [logged(1, "a", 1), logged(2, "b", 1), logged(3, "a", 2)]
READS = [Read(0, 0.5, 0, {}), Read(1.5, 2, 1, {1: b"a/1"}), Read(4.5, 5, 3, {2: b"b/1", 3: b"a/2"})]


def test_a_good_history_passes() -> None:
    assert not any(c.everything(APPENDS, READS, LOG).values())
    assert not c.unequal({1: LOG, 2: list(LOG), 3: list(LOG)})


def test_an_empty_history_passes() -> None:
    assert not any(c.everything([], [], []).values())


def test_gaps() -> None:
    assert c.gaps([LOG[0], LOG[2]])
    assert c.gaps([LOG[1], LOG[0]])


def test_lost() -> None:
    assert c.lost(APPENDS, LOG[:2]) == ["b'a/2', acknowledged at LSN 3, is not in the log"]


def test_told_another_lsn() -> None:
    assert c.lost([appended("a", 1, 0, 1, 2)], LOG) == ["b'a/1', acknowledged at LSN 2, is at 1"]


def test_acknowledged_without_an_lsn_must_be_there_too() -> None:
    assert not c.lost([appended("a", 1, 0, 1, 0)], LOG)
    assert c.lost([appended("a", 9, 0, 1, 0)], LOG)


def test_doubled() -> None:
    assert c.doubled([*LOG, logged(4, "a", 1, serial=3)]) == ["b'a/1' is in the log 2 times"]


def test_refused_but_there() -> None:
    append = Append("b", 1, b"b/1", 0.5, 3, Outcome.REFUSED, error="Fenced")
    assert c.refused([append], LOG) == ["b'b/1', refused (Fenced), is in the log at LSN 2"]
    assert not c.refused([append], LOG[:1])


def test_unknown_may_be_there_or_not() -> None:
    unknown = Append("b", 1, b"b/1", 0.5)
    for log in (LOG, [logged(1, "a", 1), logged(2, "a", 2)]):
        assert not c.lost([unknown], log)
        assert not c.refused([unknown], log)


def test_foreign() -> None:
    assert c.foreign(APPENDS[:2], LOG)
    assert c.foreign(APPENDS, [LOG[0]._replace(client="b")])


@pytest.mark.parametrize("log", [
    [logged(1, "a", 1, serial=2), logged(2, "a", 2, serial=1)],
    [logged(1, "a", 2, serial=1), logged(2, "a", 1, serial=2)],
    [logged(1, "a", 1, serial=1), logged(2, "a", 2, serial=1)],
])
def test_out_of_order(log: list[Logged]) -> None:
    assert c.disordered(APPENDS, log)


def test_an_append_that_began_after_another_ended_stands_after_it() -> None:
    log = [logged(1, "a", 2), logged(2, "b", 1), logged(3, "a", 1)]
    late = [appended("a", 1, 0, 1, 3), appended("a", 2, 2, 3, 1)]
    assert c.stale(late, [], log) == ["append of b'a/2' (LSN 1) began after append of b'a/1' (LSN 3) had ended"]
    together = [appended("a", 1, 0, 2, 3), appended("a", 2, 2, 3, 1)]
    assert not c.stale(together, [], log)


def test_an_unknown_append_that_got_in_has_a_beginning() -> None:
    log = [logged(1, "a", 2), logged(2, "a", 1)]
    assert c.stale([appended("a", 1, 0, 1, 2), Append("a", 2, b"a/2", 2)], [], log)
    assert not c.stale([appended("a", 1, 0, 1, 2), Append("a", 2, b"a/2", 0.5)], [], log)


def test_a_read_that_misses_what_was_acknowledged_before_it_began() -> None:
    assert c.stale(APPENDS, [Read(4.5, 5, 2, {})], LOG)


def test_a_read_that_ends_below_an_earlier_one() -> None:
    reads = [Read(0.6, 0.7, 2, {}), Read(0.8, 0.9, 1, {})]
    assert c.stale([APPENDS[1]], reads, LOG)
    assert not c.stale([APPENDS[1]], [reads[0], Read(0.65, 0.9, 1, {})], LOG)


def test_a_read_that_saw_an_append_which_had_not_begun() -> None:
    assert c.stale(APPENDS, [Read(0.1, 1.5, 3, {})], LOG)


def test_misread() -> None:
    assert c.misread([Read(0, 1, 1, {1: b"b/1"})], LOG)
    assert c.misread([Read(0, 1, 1, {2: b"b/1"})], LOG)
    assert c.misread([Read(0, 1, 9, {9: b"b/1"})], LOG)


def test_unequal() -> None:
    assert c.unequal({1: LOG, 2: LOG, 3: LOG[:2]}) == ["server 3 holds 2 entries, server 1 3"]
    assert c.unequal({1: LOG, 2: [LOG[0], LOG[1], LOG[2]._replace(serial=9)]})
    handed_over = Entry(4, 2, Kind.LEADER, 0, "", 0, 0, 0, 0, b"", b"", 0)
    assert not c.unequal({1: LOG, 2: [*LOG, handed_over], 3: [*LOG, handed_over, handed_over]})
    assert not c.unequal({1: [*LOG, handed_over], 2: LOG})
    assert c.unequal({1: LOG, 2: [*LOG, handed_over._replace(kind=Kind.DATA)]})


@given(seed=st.integers(0, 2**32))
def test_stale_agrees_with_trying_every_order(seed: int) -> None:
    """Complete: no violation is found exactly if some order of the operations explains the history."""
    rng = random.Random(seed)
    count = rng.randint(1, 4)
    appends = []
    for number in range(1, count + 1):
        began_s = rng.randrange(10)
        append = appended("a", number, began_s, began_s + rng.randint(1, 6), number)
        if rng.random() < 0.25:
            append.outcome, append.ended_s = Outcome.UNKNOWN, float("inf")
        appends.append(append)
    reads = []
    for _ in range(rng.randrange(3)):
        began_s = rng.randrange(10)
        reads.append(Read(began_s, began_s + rng.randint(1, 6), rng.randint(0, count), {}))
    log = [logged(number, "a", number) for number in range(1, count + 1)]
    assert bool(c.stale(appends, reads, log)) == (not _explained(appends, reads))


def _explained(appends: list[Append], reads: list[Read]) -> bool:
    operations: list[Append | Read] = [*appends, *reads]
    for order in permutations(operations):
        end_lsn, fits = 0, True
        for at, operation in enumerate(order):
            if isinstance(operation, Append):
                fits = operation.lsn == end_lsn + 1
                end_lsn += 1
            else:
                fits = operation.end_lsn == end_lsn
            if not fits or any(later.ended_s < operation.began_s for later in order[at + 1:]):
                fits = False
                break
        if fits:
            return True
    return False
