"""What servers are compared by: states, ranks, majorities of marks (rules.md#states, rules.md#ranks)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Rank(NamedTuple):
    """Compared field by field, as tuples are."""

    last_term: int
    last_id: int
    priority: int
    id: int

    @property
    def log(self) -> tuple[int, int]:
        """The log rank: what a vote is granted by (R4)."""
        return self[:2]


class State(StrEnum):
    """passive, candidate or leader."""

    PASSIVE = "passive"
    CANDIDATE = "candidate"
    LEADER = "leader"


def majority_mark(marks: Sequence[int]) -> int:
    """The highest mark that a majority has reached; 0 when there is nobody."""
    if not marks:
        return 0
    return sorted(marks)[(len(marks) - 1) // 2]


def lower_median(values: Sequence[int]) -> int:
    """The middle value, the lower of the two middle ones of an even number."""
    return sorted(values)[(len(values) - 1) // 2]
