"""Latencies in bounded memory: counts in buckets 1 % apart, from 1 µs to 1,000 s, and the exact maximum."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

#: Buckets per factor e: neighbours differ by 1 %.
_PER_E = 100
_MIN_S = 1e-6
_BUCKETS = int(math.log(1e9) * _PER_E) + 2


@dataclass(slots=True)
class Latencies:
    """Histogram of operations' durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    count: int = 0
    max_s: float = 0.0

    def add(self, latency_s: float, operations: int = 1) -> None:
        """Count ``operations`` (0: none) that took ``latency_s`` each."""
        if not operations:
            return
        bucket = int(math.log(latency_s / _MIN_S) * _PER_E) if latency_s > _MIN_S else 0
        self.counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += operations
        self.count += operations
        if latency_s > self.max_s:
            self.max_s = latency_s

    def percentile_s(self, percent: float) -> float:
        """The latency within which ``percent`` of all operations stayed (to 1 %); 0 without any."""
        rank = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return min(bucket_start_s(bucket + 0.5), self.max_s)
        return 0.0

    def merge(self, other: Latencies) -> None:
        """Add the counts of ``other``."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.max_s = max(self.max_s, other.max_s)

    def bars(self, bars_max: int) -> list[tuple[float, float, int]]:
        """(from_s, to_s, count) over the range that occurred, in at most ``bars_max`` equal steps of a log scale."""
        seen = [bucket for bucket, count in enumerate(self.counts) if count]
        if not seen:
            return []
        first, past = seen[0], seen[-1] + 1
        step = max(1, math.ceil((past - first) / bars_max))
        return [
            (bucket_start_s(at), bucket_start_s(at + step), sum(self.counts[at : at + step]))
            for at in range(first, past, step)
        ]


def bucket_start_s(bucket: float) -> float:
    """Start of a bucket, in seconds."""
    return _MIN_S * math.exp(bucket / _PER_E)


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

        at = self.latencies.percentile_s
        return {
            "ops_per_s": round(self.operations / self.elapsed_s, 1) if self.elapsed_s else 0.0,
            "mb_per_s": round(self.payload_bytes / self.elapsed_s / 1e6, 3) if self.elapsed_s else 0.0,
            "p50_ms": ms(at(50)), "p99_ms": ms(at(99)), "p999_ms": ms(at(99.9)), "max_ms": ms(self.latencies.max_s),
            "errors": self.errors,
        }
