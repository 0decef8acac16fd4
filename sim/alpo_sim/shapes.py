"""Names of messages in a schedule: a kind and fields, as text; and the messages on their way that have them.

The main fields of a kind are those that explain what happens. A schedule gives others (clocks, round numbers, marks)
only where it needs them to tell messages apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from alpo.core import messages as m
from alpo.core.entries import Entry
from alpo.core.messages import Envelope
from alpo.core.ranks import Rank

from .scenario import Seen


def _rank(rank: Rank | None) -> str | None:
    return None if rank is None else ".".join(map(str, rank))


def _span(entries: list[Entry]) -> str:
    return f"{entries[0].id}..{entries[-1].id}" if entries else "none"


def _flag(value: bool) -> str | None:
    return "yes" if value else None


_Fields = dict[str, Callable[[Any], object]]

_MAIN: dict[type, _Fields] = {
    m.CanvassRequest: {"term": lambda x: x.term, "rank": lambda x: _rank(x.rank)},
    m.CanvassAnswer: {"answer": lambda x: x.answer.name},
    m.VoteRequest: {"term": lambda x: x.term, "rank": lambda x: _rank(x.rank)},
    m.VoteAnswer: {"term": lambda x: x.request_term, "answer": lambda x: x.answer.name},
    m.DeferRequest: {"term": lambda x: x.term, "rank": lambda x: _rank(x.rank)},
    m.DeferAnswer: {"term": lambda x: x.request_term, "answer": lambda x: x.answer.name},
    m.AppendRequest: {
        "term": lambda x: x.term, "after": lambda x: f"{x.prev_id}.{x.prev_term}",
        "entries": lambda x: _span(x.entries),
    },
    m.AppendAnswer: {
        "term": lambda x: x.term, "accepted": lambda x: x.match_id if x.ok else None,
        "refused": lambda x: None if x.ok else x.prev_id,
    },
    m.HandOver: {"term": lambda x: x.term},
    m.WrongIncarnation: {},
    m.StartQuestion: {},
    m.StartAnswer: {"status": lambda x: x.status.name},
    m.SnapshotPart: {"term": lambda x: x.term, "part": lambda x: f"{x.part}/{x.parts}"},
    m.SnapshotAnswer: {"term": lambda x: x.term, "wanted": lambda x: x.wanted, "base": lambda x: x.base_id},
    m.Retired: {},
    m.WentBack: {"term": lambda x: x.term, "held": lambda x: x.held_id},
    m.CopyRequest: {"entry": lambda x: f"{x.id}.{x.entry_term}"},
    m.CopyAnswer: {"entry": lambda x: x.id, "entries": lambda x: _span(x.entries)},
}

_MORE: dict[type, _Fields] = {
    m.CanvassRequest: {"again": lambda x: _flag(x.again), "round": lambda x: x.round},
    m.CanvassAnswer: {"own_term": lambda x: x.term, "round": lambda x: x.round},
    m.VoteRequest: {"handed_over": lambda x: _flag(x.handed_over)},
    m.VoteAnswer: {
        "own_term": lambda x: x.term, "holder": lambda x: x.holder, "holder_rank": lambda x: _rank(x.holder_rank),
        "wall": lambda x: x.wall_ms,
    },
    m.DeferRequest: {},
    m.DeferAnswer: {"own_term": lambda x: x.term},
    m.AppendRequest: {
        "guaranteed": lambda x: x.guaranteed_id, "fully": lambda x: x.fully_replicated_id, "round": lambda x: x.round,
    },
    m.AppendAnswer: {
        "last": lambda x: x.last_id, "conflict": lambda x: f"{x.conflict_id}.{x.conflict_term}",
        "round": lambda x: x.round, "stopping": lambda x: _flag(x.stopping), "prev": lambda x: x.prev_id,
        "room": lambda x: x.room.name.lower() if x.room else None,
        "wall": lambda x: x.wall_ms,
    },
    m.HandOver: {},
    m.WrongIncarnation: {"asked": lambda x: x.asked.hex()},
    m.StartQuestion: {"number": lambda x: x.number},
    m.StartAnswer: {"number": lambda x: x.number},
    m.SnapshotPart: {"number": lambda x: x.number, "rows": lambda x: len(x.rows)},
    m.SnapshotAnswer: {"number": lambda x: x.number},
    m.Retired: {},
    m.WentBack: {},
    m.CopyRequest: {},
    m.CopyAnswer: {"base": lambda x: x.base_id},
}

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
        value = get(message)
        if value is not None:
            found.append((name, str(value)))
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
