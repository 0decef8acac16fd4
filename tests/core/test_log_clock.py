"""The log's clock beside host clocks that were ahead, leap, or are set right again (rules.md#entry-time)."""

from __future__ import annotations

import pytest

from alpo.core.log import LEAP_MS, SETTLE_S, SLOW, LogClock

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
#: Monotonic seconds at which the process of a test has run long enough to judge leaps.
LATE_S = 1_000 + SETTLE_S


def clock(last_time_ms: int = NOW_MS - 1000, *, settled: bool = True) -> LogClock:
    """A leader's log clock; at `LATE_S` the voters' clocks agree with the log."""
    made = LogClock()
    made.start(LATE_S - (SETTLE_S if settled else 1), last_time_ms - 2 * round(SETTLE_S * 1000))
    made.heard(LATE_S, NOW_MS, last_time_ms)
    assert made.next_ms(LATE_S, NOW_MS, last_time_ms) == max(NOW_MS, last_time_ms)
    return made


def test_it_follows_the_clocks() -> None:
    made, last_ms = clock(), NOW_MS
    for second in range(1, 100):
        last_ms = made.next_ms(LATE_S + second, NOW_MS + second * 1000, last_ms)
        assert last_ms == NOW_MS + second * 1000 and made.leap_ms == 0


def test_a_log_that_is_ahead_goes_on_at_half_speed_until_the_clocks_have_caught_up() -> None:
    """The number of entries does not matter: fractions of a millisecond add up."""
    made, last_ms = clock(NOW_MS + 10_000), NOW_MS + 10_000
    for step in range(1, 3_000_001, 100):
        now_s = LATE_S + step * 1e-5
        last_ms = made.next_ms(now_s, NOW_MS + int(step * 1e-2), last_ms)
        due_ms = max(NOW_MS + step * 1e-2, NOW_MS + 10_000 + SLOW * step * 1e-2)
        assert due_ms - 1.1 <= last_ms <= due_ms + 0.1
    assert last_ms <= NOW_MS + 30_000


def test_a_lease_ends_soon_in_a_log_that_is_two_days_ahead() -> None:
    """All clocks were ahead, and are set right: a lease of 5 s ends within 10 s."""
    made = clock(settled=False)
    last_ms = made.next_ms(LATE_S + 1, NOW_MS + 2 * DAY_MS, NOW_MS)
    lease_ends_ms = last_ms + 5_000
    assert made.next_ms(LATE_S + 2, NOW_MS + 2_000, last_ms) < lease_ends_ms
    assert made.next_ms(LATE_S + 11, NOW_MS + 11_000, last_ms) >= lease_ends_ms


def test_a_leap_is_not_believed_and_time_goes_on() -> None:
    made = clock()
    assert made.next_ms(LATE_S + 10, NOW_MS + DAY_MS, NOW_MS) == NOW_MS + 10_000
    assert made.leap_ms == DAY_MS - 10_000
    assert made.next_ms(LATE_S + 20, NOW_MS + DAY_MS + 10_000, NOW_MS + 10_000) == NOW_MS + 20_000
    assert made.next_ms(LATE_S + 30, NOW_MS + 30_000, NOW_MS + 20_000) == NOW_MS + 30_000
    assert made.leap_ms == 0, "they were set right"


def test_an_operator_s_word_is_enough_once() -> None:
    made = clock()
    assert made.next_ms(LATE_S + 10, NOW_MS + DAY_MS, NOW_MS) == NOW_MS + 10_000
    made.accept()
    later_ms = NOW_MS + DAY_MS + 5_000
    assert made.next_ms(LATE_S + 15, later_ms, NOW_MS + 10_000) == later_ms and made.leap_ms == 0
    assert made.next_ms(LATE_S + 16, later_ms + DAY_MS, later_ms) == later_ms + 1_000, "the next leap is another"


@pytest.mark.parametrize("leap_ms", [1_000, LEAP_MS])
def test_a_small_leap_is_believed(leap_ms: int) -> None:
    made = clock()
    assert made.next_ms(LATE_S, NOW_MS + leap_ms, NOW_MS) == NOW_MS + leap_ms and made.leap_ms == 0


def test_a_cluster_that_was_down_for_a_week_is_believed() -> None:
    """No process has run long enough to judge a leap, so the voters' clocks are believed."""
    made = LogClock()
    made.start(LATE_S, NOW_MS)
    assert made.next_ms(LATE_S + 1, NOW_MS + 7 * DAY_MS, NOW_MS) == NOW_MS + 7 * DAY_MS
    assert made.leap_ms == 0


@pytest.mark.parametrize("boot_ms", [NOW_MS - 30 * DAY_MS, NOW_MS, NOW_MS + 60_000])
def test_clocks_that_are_set_just_after_the_start_are_believed(boot_ms: int) -> None:
    """Hosts without a clock of their own begin in the past, or where they were switched off, until NTP sets them."""
    made = LogClock()
    made.start(LATE_S, NOW_MS)
    last_ms = made.next_ms(LATE_S + 1, boot_ms, NOW_MS)
    assert made.next_ms(LATE_S + 60, NOW_MS + 7 * DAY_MS, last_ms) == NOW_MS + 7 * DAY_MS


def test_clocks_that_were_behind_the_log_are_believed_once_they_catch_up() -> None:
    """The clocks are believed however late they catch up: the log or the clocks were wrong, and nobody knows which."""
    made = LogClock()
    made.start(0, NOW_MS)
    last_ms = NOW_MS
    for second in range(1, 2_000):
        last_ms = made.next_ms(second, NOW_MS - 30 * DAY_MS + second * 1000, last_ms)
    assert made.next_ms(2_001, NOW_MS + DAY_MS, last_ms) == NOW_MS + DAY_MS


def test_a_follower_knows_how_late_it_is_when_it_leads() -> None:
    """A follower whose clock agreed with the leader's entries detects a leap, however long ago the last entry came."""
    made = LogClock()
    made.start(0, NOW_MS)
    made.heard(LATE_S, NOW_MS + 20_000, NOW_MS)
    assert made.next_ms(LATE_S + 3 * 86_400, NOW_MS + 9 * DAY_MS, NOW_MS) == NOW_MS + 20_000 + 3 * DAY_MS
    assert made.leap_ms == 6 * DAY_MS - 20_000


def test_old_entries_that_come_late_tell_a_follower_nothing() -> None:
    """A server receives entries that are three days old, and then leads: its own clock is believed."""
    made = LogClock()
    made.start(0, NOW_MS - DAY_MS)
    made.heard(LATE_S, NOW_MS + 3 * DAY_MS, NOW_MS)
    assert made.next_ms(LATE_S + 1, NOW_MS + 3 * DAY_MS, NOW_MS) == NOW_MS + 3 * DAY_MS


def test_a_host_that_was_suspended_is_believed() -> None:
    made = clock()
    made.slept(8 * 3600.0)
    assert made.next_ms(LATE_S + 1, NOW_MS + 8 * 3_600_000, NOW_MS) == NOW_MS + 8 * 3_600_000
    assert made.leap_ms == 0
