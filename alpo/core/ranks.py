"""Rank: how servers are compared (rules.md#ranks). The first two fields are the log rank."""

from __future__ import annotations

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
