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
from operator import add
from typing import NamedTuple

WINDOW_S = 60.0
WINDOWS = 5
#: Upper ends of the buckets of a `Histogram` of seconds, and of one of numbers; beyond the last one there is one more.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)
POWERS_OF_TWO = tuple(float(1 << power) for power in range(13))
#: Four buckets for each doubling, from 50 µs to 41 s.
_FINE_SECONDS = tuple(0.00005 * 2 ** (bucket / 4) for bucket in range(79))


class Histogram:
    """Counts by fixed buckets, the sum of all values, and the greatest one. One thread adds; any thread may read."""

    __slots__ = ("bounds", "counts", "most", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.most = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times, at least once."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        if value > self.most:
            self.most = value

    def percentile(self, share: float) -> float:
        """The upper end of the bucket below or in which ``share`` of all values lie, at most the greatest value; 0
        without any."""
        reached = list(accumulate(self.counts))
        bucket = bisect_left(reached, math.ceil(reached[-1] * share))
        return min(self.bounds[bucket], self.most) if bucket < len(self.bounds) else self.most


class Spread(NamedTuple):
    """Percentiles in milliseconds; all 0 if ``samples`` is 0."""

    samples: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Timings:
    """Sliding histogram of durations. ``now_s``: monotonic seconds, from the same clock in all calls."""

    def __init__(self) -> None:
        self._windows: deque[tuple[int, Histogram]] = deque(maxlen=WINDOWS)

    def add(self, took_s: float, now_s: float) -> None:
        """Count one duration of ``took_s`` seconds."""
        number = int(now_s / WINDOW_S)
        if not self._windows or self._windows[-1][0] != number:
            self._windows.append((number, Histogram(_FINE_SECONDS)))
        self._windows[-1][1].add(took_s)

    def spread(self, now_s: float) -> Spread:
        """Percentiles of the durations added in the last `WINDOWS` minutes, the present one included."""
        oldest, all_ = int(now_s / WINDOW_S) - WINDOWS, Histogram(_FINE_SECONDS)
        for number, window in tuple(self._windows):
            if number > oldest:
                all_.counts = list(map(add, all_.counts, window.counts))
                all_.most = max(all_.most, window.most)
        return Spread(sum(all_.counts), all_.percentile(0.5) * 1000, all_.percentile(0.99) * 1000, all_.most * 1000)
