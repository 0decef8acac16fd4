"""Majorities over marks: small pure functions, checked against naive ones in the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def majority_mark(marks: Sequence[int]) -> int:
    """The highest mark that a majority has reached; 0 when there is nobody."""
    if not marks:
        return 0
    return sorted(marks)[(len(marks) - 1) // 2]


def lower_median(values: Sequence[int]) -> int:
    """The middle value, the lower of the two middle ones of an even number."""
    return sorted(values)[(len(values) - 1) // 2]


def is_majority(count: int, voters: Iterable[object]) -> bool:
    """Do ``count`` of the ``voters`` make a majority?"""
    return count > len(list(voters)) // 2
