"""The exception that checks raise."""

from __future__ import annotations


class Broken(Exception):
    """Failure of a check. ``invariant``: its name, one of `checks.INVARIANTS`; ``detail``: what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail
