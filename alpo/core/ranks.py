"""Server states and their transitions, ranks, and majorities of marks (rules.md#states, rules.md#ranks).

A file of its own: messages, the wire and every part of the core stand on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Rank(NamedTuple):
    """The rank of a server or candidate, compared field by field."""

    last_term: int
    last_id: int
    priority: int
    id: int

    @property
    def log(self) -> tuple[int, int]:
        """The log rank (term, id of the last entry), by which votes are granted (R4)."""
        return self[:2]


class State(StrEnum):
    """The states of a server."""

    PASSIVE = "passive"
    CANDIDATE = "candidate"
    LEADER = "leader"


#: (state, next state) -> the reasons for that change. A server starts passive; all other changes are forbidden.
TRANSITIONS = {
    (State.PASSIVE, State.CANDIDATE): "a majority would vote for it (R2, R3), or the leader hands over to it (R28)",
    (State.CANDIDATE, State.CANDIDATE): "a majority made way for it: it stands again, in the next term (R7)",
    (State.CANDIDATE, State.LEADER): "a majority voted for it (R10)",
    (State.CANDIDATE, State.PASSIVE): "a leader or a higher term is heard (R1), it makes way (R6), it is outranked by "
    "too many (R8), its time is up (R9), its disk is found damaged (R31), or it was taken out of the list (R30)",
    (State.LEADER, State.PASSIVE): "a higher term is heard (R1), a majority is silent (R15), or it was taken out of "
    "the list (R27, R30)",
}


def majority_mark(marks: Sequence[int]) -> int:
    """The highest id that a majority of ``marks`` has reached; 0 if there are none."""
    if not marks:
        return 0
    return sorted(marks)[(len(marks) - 1) // 2]


def lower_median(values: Sequence[int]) -> int:
    """The middle value; the lower of the two middle ones if their number is even. ``values`` is not empty."""
    return sorted(values)[(len(values) - 1) // 2]
