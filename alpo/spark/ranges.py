"""Partitioning of LSNs at fixed multiples, so that the same span is always divided alike."""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """LSNs ``first`` … ``last``; ``turn`` counts partitions, so that neighbours go to different replicas."""

    first: int
    last: int
    turn: int


def cut(first: int, last: int, size: int) -> list[Range]:
    """Divide ``first`` … ``last`` after every multiple of ``size``; [] if it is empty."""
    ranges = []
    while first <= last:
        end = min(last, -(-first // size) * size)
        ranges.append(Range(first, end, (first - 1) // size))
        first = end + 1
    return ranges
