"""The three states of a server (rules.md#states)."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """passive, candidate or leader."""

    PASSIVE = "passive"
    CANDIDATE = "candidate"
    LEADER = "leader"
