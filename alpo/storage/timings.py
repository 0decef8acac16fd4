"""Durations of the last few minutes: percentiles from a histogram of fixed size.

Laws:

* One thread adds; any thread may read.
* Memory is fixed: `WINDOWS` windows of `WINDOW_S`, each with a count for every bucket.
* A percentile is the upper end of its bucket, at most a fifth above the true one; the maximum is exact.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

WINDOW_S = 60.0
WINDOWS = 5
_LEAST_S = 0.00005
_A_DOUBLING = 4  # buckets
_BUCKETS = 80  # buckets up to 48 s; the last one takes all longer times


#: Upper ends of the buckets of a `Histogram` of seconds, and of one of numbers; beyond the last one there is one more.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)
POWERS_OF_TWO = tuple(float(1 << power) for power in range(13))


class Histogram:
    """Counts since the start, by fixed buckets. One thread adds; any thread may read."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        #: Sum of all values.
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Spread(NamedTuple):
    """Percentiles in milliseconds; all 0 if ``samples`` is 0."""

    samples: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class _Window:
    def __init__(self, number: int) -> None:
        self.number = number
        self.counts = [0] * _BUCKETS
        self.max_s = 0.0


class Timings:
    """Sliding histogram of durations. ``now_s``: monotonic seconds, from the same clock in all calls."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)

    def add(self, took_s: float, now_s: float) -> None:
        """Count one duration of ``took_s`` seconds."""
        number = int(now_s / WINDOW_S)
        if not self._windows or self._windows[-1].number != number:
            self._windows.append(_Window(number))
        window = self._windows[-1]
        bucket = math.ceil(math.log2(max(took_s, _LEAST_S) / _LEAST_S) * _A_DOUBLING)
        window.counts[min(bucket, _BUCKETS - 1)] += 1
        window.max_s = max(window.max_s, took_s)

    def spread(self, now_s: float) -> Spread:
        """Percentiles of the durations added in the last `WINDOWS` minutes, the present one included."""
        oldest = int(now_s / WINDOW_S) - WINDOWS
        windows = [window for window in tuple(self._windows) if window.number > oldest]
        counts = [sum(column) for column in zip(*(window.counts for window in windows), strict=True)]
        total = sum(counts)
        if not total:
            return Spread(0, 0.0, 0.0, 0.0)
        max_ms = max(window.max_s for window in windows) * 1000
        p50_ms, p99_ms = (min(_percentile(counts, total, share), max_ms) for share in (0.5, 0.99))
        return Spread(total, p50_ms, p99_ms, max_ms)


def _percentile(counts: list[int], total: int, share: float) -> float:
    wanted = math.ceil(total * share)
    bucket = next(bucket for bucket, seen in enumerate(accumulate(counts)) if seen >= wanted)
    return _LEAST_S * 2 ** (bucket / _A_DOUBLING) * 1000
