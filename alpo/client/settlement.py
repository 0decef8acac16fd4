"""Telling outcomes: errors to handles, and to `settle` what became of those told as unknown.

Laws: an outcome is told once. What nobody was told is kept for closing; what was told as unknown is kept, once it is
settled, for whoever asks. Both keep the newest `KEPT_MAX`.
"""

from __future__ import annotations

from typing import Protocol

from alpo.errors import AlpoError

from .handle import REPORTED, RESOLVED, Handle
from .verdicts import unknown

KEPT_MAX = 1024


class Hearable(Protocol):
    """A handle, or a future of one. ``unheard``: the error that it ended with, as long as nobody was told."""

    @property
    def unheard(self) -> Exception | None: ...


class Unheard:
    """What failed, in order, for as long as nobody was told: at most the newest `KEPT_MAX`."""

    def __init__(self) -> None:
        self._failed: list[Hearable] = []

    def __len__(self) -> int:
        return len(self._failed)

    def note(self, failed: Hearable) -> None:
        """It ended with an error."""
        if failed.unheard is None:
            return
        if len(self._failed) == KEPT_MAX:  # half of it goes at least, so that this is rare
            self._failed = [each for each in self._failed if each.unheard is not None][-KEPT_MAX // 2 :]
        self._failed.append(failed)

    def take_first(self) -> Exception | None:
        """The first error that nobody was told; told now."""
        while self._failed:
            error = self._failed.pop(0).unheard
            if error is not None:
                return error
        return None


class Outcomes:
    """What was told of one client's appends."""

    def __init__(self) -> None:
        #: Requests told as unknown whose outcome is not known yet.
        self.unknown = 0
        self._settled: dict[int, int | None | AlpoError] = {}
        self.unheard = Unheard()

    def fail(self, handle: Handle, error: AlpoError) -> None:
        """Tell a request its error."""
        handle.fail(error)
        self.unheard.note(handle)

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
