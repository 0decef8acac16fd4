"""Names of messages in a schedule: a kind and fields, as text; and the messages on their way that have them.

The main fields of a kind are those that explain what happens. A schedule gives others (clocks, round numbers, marks)
only where it needs them to tell messages apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

from alpo.core import messages as m
from alpo.core.messages import Envelope, Room
from alpo.core.ranks import Rank

from .scenario import Seen


def _text(value: Any) -> str | None:
    """The text of a field by its value; None if the field is left out."""
    if value is None or value is False or (isinstance(value, Room) and not value):
        return None
    if value is True:
        return "yes"
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value, Room) else value.name
    if isinstance(value, Rank):
        return ".".join(map(str, value))
    if isinstance(value, list):
        return f"{value[0].id}..{value[-1].id}" if value else "none"
    return value.hex() if isinstance(value, bytes) else str(value)


#: Kind -> its main fields, and after a bar the others: NAME=ATTRIBUTE, or NAME alone if that is the attribute's too.
_SHAPES: dict[type, str] = {
    m.CanvassRequest: "term rank | again round",
    m.CanvassAnswer: "answer | own_term=term round",
    m.VoteRequest: "term rank | handed_over",
    m.VoteAnswer: "term=request_term answer | own_term=term holder holder_rank wall=wall_ms",
    m.DeferRequest: "term rank |",
    m.DeferAnswer: "term=request_term answer | own_term=term",
    m.AppendRequest: "term after entries | guaranteed=guaranteed_id fully=fully_replicated_id round",
    m.AppendAnswer: "term accepted refused | last=last_id conflict round stopping prev=prev_id room wall=wall_ms",
    m.HandOver: "term |",
    m.WrongIncarnation: "| asked",
    m.StartQuestion: "| number",
    m.StartAnswer: "status | number",
    m.SnapshotPart: "term part | number rows",
    m.SnapshotAnswer: "term wanted base=base_id | number",
    m.Retired: "|",
    m.WentBack: "term held=held_id |",
    m.CopyRequest: "entry |",
    m.CopyAnswer: "entry=id entries | base=base_id",
}
#: Fields that are made of several attributes.
_MADE: dict[tuple[type, str], Callable[[Any], object]] = {
    (m.AppendRequest, "after"): lambda x: f"{x.prev_id}.{x.prev_term}",
    (m.AppendAnswer, "accepted"): lambda x: x.match_id if x.ok else None,
    (m.AppendAnswer, "refused"): lambda x: None if x.ok else x.prev_id,
    (m.AppendAnswer, "conflict"): lambda x: f"{x.conflict_id}.{x.conflict_term}",
    (m.SnapshotPart, "part"): lambda x: f"{x.part}/{x.parts}",
    (m.SnapshotPart, "rows"): lambda x: len(x.rows),
    (m.CopyRequest, "entry"): lambda x: f"{x.id}.{x.entry_term}",
}
_Fields = dict[str, Callable[[Any], object]]


def _getters(kind: type, shape: str) -> _Fields:
    pairs = [field.partition("=") for field in shape.split()]
    return {name: _MADE.get((kind, name)) or attrgetter(attribute or name) for name, _, attribute in pairs}


_MAIN = {kind: _getters(kind, shape.partition("|")[0]) for kind, shape in _SHAPES.items()}
_MORE = {kind: _getters(kind, shape.partition("|")[2]) for kind, shape in _SHAPES.items()}
#: Kind -> the names of all its fields, the main ones first.
KINDS: dict[str, tuple[str, ...]] = {kind.__name__: (*_MAIN[kind], *_MORE[kind]) for kind in _MAIN}
#: Names of kinds in scenario files that an older release wrote -> their names now.
FORMER_KINDS = {"BasePart": "SnapshotPart", "BaseAnswer": "SnapshotAnswer"}

Fields = tuple[tuple[str, str], ...]


def main_fields(message: object) -> Fields:
    """The main fields of a message, each (name, text)."""
    return _fields(message, _MAIN)


def more_fields(message: object) -> Fields:
    """All fields of a message but the main ones, each (name, text)."""
    return _fields(message, _MORE)


def _fields(message: object, table: dict[type, _Fields]) -> Fields:
    found = []
    for name, get in table[type(message)].items():
        text = _text(get(message))
        if text is not None:
            found.append((name, text))
    return tuple(found)


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
