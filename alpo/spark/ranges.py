"""A span of LSNs as partitions: cut at fixed multiples, so that the same span is always cut alike."""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """LSNs ``first`` … ``last``; ``turn`` counts partitions, so that neighbours go to different replicas."""

    first: int
    last: int
    turn: int


def cut(first: int, last: int, size: int) -> list[Range]:
    """``first`` … ``last``, cut behind every multiple of ``size``; [] if there is nothing."""
    ranges = []
    while first <= last:
        end = min(last, -(-first // size) * size)
        ranges.append(Range(first, end, (first - 1) // size))
        first = end + 1
    return ranges
