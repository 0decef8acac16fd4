"""A stack of versions of a state that the log makes, for states small enough to be kept whole: an expunge goes back.

Laws:

* The version at the bottom is the newest one known guaranteed; the one on top is in force. An expunge takes off those
  of expunged entries, never the one at the bottom.
* A version is never changed: an entry that changes the state adds another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Versions(Generic[T]):
    """Versions of a state, each with the id of the entry that made it. A subclass computes what it derives from them in
    `_derive`."""

    def __init__(self, state: T) -> None:
        self._stack: list[tuple[int, T]] = [(0, state)]
        self._derive()

    def restore(self, state: T, id: int = 0) -> None:
        """Begin anew with ``state``, which entry ``id`` made (0: the first start)."""
        self._stack = [(id, state)]
        self._derive()

    @property
    def head(self) -> T:
        """The state that is in force at the head of the log."""
        return self._stack[-1][1]

    def add(self, id: int, state: T) -> None:
        """Put ``state`` into force, which entry ``id`` makes, the last of the log."""
        self._stack.append((id, state))
        self._derive()

    def expunge(self, from_id: int) -> None:
        """Take off the versions that entries with id >= ``from_id`` made."""
        while self._stack[-1][0] >= from_id and len(self._stack) > 1:
            self._stack.pop()
        self._derive()

    def settle(self, guaranteed_id: int) -> None:
        """Drop the versions before the newest one that an entry up to ``guaranteed_id`` made: those entries will never
        be expunged."""
        stack = self._stack
        if len(stack) == 1 or stack[1][0] > guaranteed_id:
            return
        count = sum(id <= guaranteed_id for id, _ in stack[1:])
        settled = [state for _, state in stack[1 : count + 1]]
        del stack[:count]
        self._derive()
        self._settled(settled)

    def at(self, id: int) -> tuple[int, T]:
        """The version in force at entry ``id``, (entry id, state); ``id`` is not below the version at the bottom."""
        return next(version for version in reversed(self._stack) if version[0] <= id)

    def _derive(self) -> None:
        """Recompute derived state. Called whenever the versions have changed."""

    def _settled(self, states: Sequence[T]) -> None:
        """Take the states that have just become known guaranteed, oldest first."""
