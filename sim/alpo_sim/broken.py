"""What a check raises."""

from __future__ import annotations


class Broken(Exception):
    """An invariant does not hold. ``invariant``: its name, one of `checks.INVARIANTS`; ``detail``: what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail
