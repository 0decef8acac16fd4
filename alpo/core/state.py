"""The three states of a server (protocol, section 1)."""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """passive, candidate or leader."""

    PASSIVE = "passive"
    CANDIDATE = "candidate"
    LEADER = "leader"
