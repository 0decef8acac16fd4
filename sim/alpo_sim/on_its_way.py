"""Messages that were sent and have not arrived: which of them a line of a schedule means."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.messages import Envelope

from .scenario import Seen
from .shapes import Fields, main_fields, more_fields


class OnItsWay:
    """A message that was sent and has not arrived (or a copy of it has not)."""

    __slots__ = ("_more", "envelope", "main")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.main = main_fields(envelope.message)
        self._more: Fields | None = None

    @property
    def more(self) -> Fields:
        if self._more is None:
            self._more = more_fields(self.envelope.message)
        return self._more

    def fits(self, wanted: Fields) -> bool:
        mine = dict(self.main + self.more)
        return all(mine.get(name) == value for name, value in wanted)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.main) or "(no fields)"


def find_like(x: Seen, waiting: Sequence[OnItsWay]) -> int:
    """The same, else one that matters as much, else one of as many steps behind the newest."""
    alike = [at for at, each in enumerate(waiting) if each.main == x.main]
    for at in alike:
        if waiting[at].more == x.more:
            return at
    if alike:
        return alike[-1]
    return max(0, len(waiting) - 1 - x.behind)


def pattern(waiting: Sequence[OnItsWay], at: int) -> tuple[Fields, int]:
    """As few fields as tell the message from those sent before it, the main ones in any case."""
    found = waiting[at]
    fields = found.main
    for extra in found.more:
        if not any(each.fits(fields) for each in waiting[:at]):
            break
        fewer = sum(each.fits((*fields, extra)) for each in waiting[:at])
        if fewer < sum(each.fits(fields) for each in waiting[:at]) and extra[0] != "wall":
            fields = (*fields, extra)
    return fields, 1 + sum(each.fits(fields) for each in waiting[:at])
