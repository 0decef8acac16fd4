"""Latencies in bounded memory: counts in buckets 1 % apart, from 1 µs to 1,000 s, and the exact maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass

from alpo.storage.timings import Histogram

#: Upper ends of the buckets.
_BOUNDS_S = tuple(1e-6 * math.exp(bucket / 100) for bucket in range(int(math.log(1e9) * 100) + 2))


class Latencies(Histogram):
    """Histogram of operations' durations in seconds."""

    def __init__(self) -> None:
        super().__init__(_BOUNDS_S)

    @property
    def count(self) -> int:
        """The number of operations."""
        return sum(self.counts)

    def bars(self, bars_max: int) -> list[tuple[float, float, int]]:
        """(from_s, to_s, count) over the range that occurred, in at most ``bars_max`` equal steps of a log scale."""
        seen = [bucket for bucket, count in enumerate(self.counts) if count]
        if not seen:
            return []
        first, past, edges = seen[0], seen[-1] + 1, (_BOUNDS_S[0] / 1.01, *_BOUNDS_S, _BOUNDS_S[-1] * 1.01)
        step = max(1, math.ceil((past - first) / bars_max))
        return [
            (edges[at], edges[min(at + step, len(edges) - 1)], sum(self.counts[at : at + step]))
            for at in range(first, past, step)
        ]


@dataclass(slots=True)
class Result:
    """Result of a bench. An operation is one append (with ``--batch`` one batch) or one record read."""

    operations: int
    payload_bytes: int
    elapsed_s: float
    latencies: Latencies
    errors: int

    def fields(self) -> dict[str, float | int]:
        """The JSON keys that scripts rely on: rates per second, MB = 10^6 bytes of payload, latencies in ms."""
        def ms(seconds: float) -> float:
            return round(seconds * 1000, 3)

        at = self.latencies.percentile
        return {
            "ops_per_s": round(self.operations / self.elapsed_s, 1) if self.elapsed_s else 0.0,
            "mb_per_s": round(self.payload_bytes / self.elapsed_s / 1e6, 3) if self.elapsed_s else 0.0,
            "p50_ms": ms(at(0.5)), "p99_ms": ms(at(0.99)), "p999_ms": ms(at(0.999)), "max_ms": ms(self.latencies.most),
            "errors": self.errors,
        }
