"""Messages on their way: finds the one that a line of a schedule names, and the words by which to name one."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.messages import Envelope

from .scenario import Seen
from .shapes import Fields, main_fields, more_fields


class OnItsWay:
    """Message that was sent, and of which at least one copy has not arrived. ``main``: the main fields."""

    __slots__ = ("_more", "envelope", "main")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.main = main_fields(envelope.message)
        self._more: Fields | None = None

    @property
    def more(self) -> Fields:
        """The fields that are not main fields."""
        if self._more is None:
            self._more = more_fields(self.envelope.message)
        return self._more

    def fits(self, wanted: Fields) -> bool:
        """True if the message has the fields ``wanted``, with these values."""
        mine = dict(self.main + self.more)
        return all(mine.get(name) == value for name, value in wanted)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.main) or "(no fields)"


def find_like(x: Seen, waiting: Sequence[OnItsWay]) -> int:
    """The index of the message most like ``x``: one with equal fields, else the newest with equal main fields, else the
    one with as many newer ones behind it as ``x`` had."""
    alike = [at for at, each in enumerate(waiting) if each.main == x.main]
    for at in alike:
        if waiting[at].more == x.more:
            return at
    if alike:
        return alike[-1]
    return max(0, len(waiting) - 1 - x.behind)


def pattern(waiting: Sequence[OnItsWay], at: int) -> tuple[Fields, int]:
    """The fields, and ``nth``, by which a line names message ``at``: the main fields, and as few others as are needed
    to tell the message from earlier ones."""
    found = waiting[at]
    fields = found.main
    for extra in found.more:
        if not any(each.fits(fields) for each in waiting[:at]):
            break
        fewer = sum(each.fits((*fields, extra)) for each in waiting[:at])
        if fewer < sum(each.fits(fields) for each in waiting[:at]) and extra[0] != "wall":
            fields = (*fields, extra)
    return fields, 1 + sum(each.fits(fields) for each in waiting[:at])
