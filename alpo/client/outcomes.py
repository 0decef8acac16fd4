"""Telling outcomes: errors to handles, and to `settle` what became of those told as unknown.

Laws: an outcome is told once. What nobody was told is kept for closing; what was told as unknown is kept, once it is
settled, for whoever asks. Both keep the newest `KEPT_MAX`.
"""

from __future__ import annotations

from collections import deque

from alpo.errors import AlpoError

from .handle import REPORTED, RESOLVED, Handle
from .verdicts import unknown

KEPT_MAX = 1024


class Outcomes:
    """What was told of one client's appends."""

    def __init__(self) -> None:
        #: Requests told as unknown whose outcome is not known yet.
        self.unknown = 0
        self._settled: dict[int, int | None | AlpoError] = {}
        self._unheard: deque[Handle] = deque(maxlen=KEPT_MAX)

    def fail(self, handle: Handle, error: AlpoError) -> None:
        """Tell a request its error."""
        handle.fail(error)
        if handle.unheard:
            self._unheard.append(handle)

    def report(self, handle: Handle, text: str) -> None:
        """Tell a request that stays in line that its outcome is unknown."""
        handle.state |= REPORTED
        self.unknown += 1
        self.fail(handle, unknown(text, handle.client, handle.serial, handle.epoch))

    def resolve(self, handle: Handle, outcome: int | None | AlpoError, duplicate: bool = False) -> None:
        """The cluster's last word on a request."""
        if handle.state & RESOLVED:
            return
        handle.state |= RESOLVED
        if handle.state & REPORTED:
            self.unknown -= 1
            self._settled[handle.serial] = outcome
            if len(self._settled) > KEPT_MAX:
                del self._settled[next(iter(self._settled))]
        elif isinstance(outcome, AlpoError):
            self.fail(handle, outcome)
        else:
            handle.finish(outcome, duplicate)

    def take_settled(self) -> dict[int, int | None | AlpoError]:
        """Outcomes, by serial, of those settled since the last call."""
        settled, self._settled = self._settled, {}
        return settled

    def first_unheard(self) -> AlpoError | None:
        """The first error that nobody was told; told now."""
        return next((h.error for h in self._unheard if h.unheard), None)
