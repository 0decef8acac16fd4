"""Percentiles of the last few minutes."""

from __future__ import annotations

import random

from alpo.storage.timings import WINDOW_S, WINDOWS, Timings


def test_nothing_measured() -> None:
    assert Timings().spread(100.0) == (0, 0.0, 0.0, 0.0)


def test_percentiles_are_within_a_fifth_and_the_maximum_is_exact() -> None:
    rng = random.Random(5)
    timings, given = Timings(), sorted(rng.lognormvariate(-5, 1) for _ in range(5_000))
    for at, took_s in enumerate(rng.sample(given, len(given))):
        timings.add(took_s, 1000 + at * 0.05)
    samples, p50_ms, p99_ms, max_ms = timings.spread(1250)
    assert samples == 5_000 and max_ms == given[-1] * 1000
    for share, found_ms in ((0.5, p50_ms), (0.99, p99_ms)):
        true_ms = given[int(len(given) * share) - 1] * 1000
        assert true_ms <= found_ms <= true_ms * 1.2


def test_extremes_fit() -> None:
    timings = Timings()
    for took_s in (0.0, 1e-9, 3600.0):
        timings.add(took_s, 5.0)
    spread = timings.spread(5.0)
    assert (spread.samples, spread.max_ms) == (3, 3_600_000.0) and 0 < spread.p50_ms < 1


def test_what_is_old_is_forgotten() -> None:
    timings = Timings()
    timings.add(9.0, 0.0)
    for minute in range(1, WINDOWS):
        timings.add(0.001, minute * WINDOW_S)
    assert timings.spread((WINDOWS - 1) * WINDOW_S).max_ms == 9000
    assert timings.spread(WINDOWS * WINDOW_S).max_ms == 1
    timings.add(0.002, WINDOWS * WINDOW_S)
    assert timings.spread(WINDOWS * WINDOW_S).samples == WINDOWS
    assert timings.spread(1e9).samples == 0
