"""Compare copies of a log: first digests of ranges, then by bisection where they differ, down to single entries.

Laws:

* Every entry that at least two copies vouch for is compared, between all that do.
* A difference is reported for the one entry that differs. Entries damaged or missing in one copy are compared between
  the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from alpo.core.entries import Entry
from alpo.offline import Span

from ..origin import SourceError
from .checking import DAMAGE, DIFFERENCE, FAULTS_MAX, Fault
from .copies import Copy, DamagedCopy, FileCopy, Look

#: Entries in one task.
RANGE_ENTRIES = 50_000


@dataclass(frozen=True)
class CompareTask:
    """Task to compare entries ``first_id`` … ``last_id`` of all copies that vouch for any of them."""

    copies: tuple[Copy, ...]
    first_id: int
    last_id: int


class _Open(NamedTuple):
    copy: Copy
    look: Look


def compare(task: CompareTask) -> list[Fault]:
    """Faults: differences, and what a copy cannot give. Raises `SourceError`."""
    with ExitStack() as stack:
        return _Comparison(
            [_Open(copy, stack.enter_context(copy.open())) for copy in task.copies]
        ).run(task.first_id, task.last_id)


class _Comparison:
    def __init__(self, copies: Sequence[_Open]) -> None:
        self._copies = copies
        #: The first id that each copy holds; grows if it cleans meanwhile.
        self._first_ids = [one.copy.first_id for one in copies]
        self._faults: list[Fault] = []
        #: (index of a copy, id) of damaged entries.
        self._damaged: set[tuple[int, int]] = set()

    def run(self, first_id: int, last_id: int) -> list[Fault]:
        """Compare these entries; returns the faults."""
        to_do = [(first_id, last_id)]
        while to_do:
            at, last = to_do.pop()
            active, upto = self._active(at, last)
            spans, upto = self._spans(active, at, upto)
            if upto < last:
                to_do.append((max(upto + 1, at), last))
            if len({span.digest for span in spans.values()}) < 2:
                continue
            if upto == at or len(self._faults) >= FAULTS_MAX:
                self._faults.append(self._difference(spans, at, upto))
            else:
                middle = (at + upto) // 2
                to_do += [(middle + 1, upto), (at, middle)]
        return self._faults

    def _active(self, at: int, last: int) -> tuple[list[int], int]:
        """Indexes of the copies that vouch for entry ``at``, and the last id up to which exactly these do."""
        active = []
        for place, (copy, _) in enumerate(self._copies):
            if self._first_ids[place] > at:
                last = min(last, self._first_ids[place] - 1)
            elif copy.end_id >= at and (place, at) not in self._damaged:
                active.append(place)
                last = min(last, copy.end_id)
        return active, min([last, *(id - 1 for place, id in self._damaged if id > at and place in active)])

    def _spans(self, active: Sequence[int], at: int, upto: int) -> tuple[dict[int, Span], int]:
        """Digests of one range from ``at`` on, by copy, and its last id (``at - 1``: look again)."""
        if any(id == at for _, id in self._damaged):
            upto = at  # one copy has nothing here
        while True:
            spans: dict[int, Span] = {}
            for place in active:
                copy, look = self._copies[place]
                try:
                    span = look.digest(at, upto)
                except DamagedCopy as damage:
                    self._damage(place, copy, damage)
                    return {}, at - 1
                if span.first_id > at:
                    self._first_ids[place] = span.first_id
                    return {}, at - 1
                if span.last_id < at:
                    raise SourceError(
                        f"{copy.name} vouched for entry {at} and does not any more (was it restarted?): run it again"
                    )
                spans[place] = span
                upto = min(upto, span.last_id)
            if all(span.last_id == upto for span in spans.values()):
                return spans, upto

    def _damage(self, place: int, copy: Copy, damage: DamagedCopy) -> None:
        self._damaged.add((place, damage.id))
        if sum(1 for where, _ in self._damaged if where == place) > FAULTS_MAX:
            self._first_ids[place] = copy.end_id + 1  # too much damage to go on
            self._faults.append(
                Fault(damage.id, copy.end_id, 0, 0, DAMAGE, copy.name, "too much of it: not compared from here on")
            )
        elif not isinstance(copy, FileCopy):  # a file's damage is reported by its check
            self._faults.append(Fault(damage.id, damage.id, 0, 0, DAMAGE, copy.name, str(damage)))

    def _difference(self, spans: dict[int, Span], first_id: int, last_id: int) -> Fault:
        """Fault that names the copies in the minority; of two, both."""
        counts = Counter(span.digest for span in spans.values())
        most = max(counts.values())
        winners = [digest for digest, count in counts.items() if count == most]
        names = {place: self._copies[place].copy.name for place in spans}
        odd = [place for place, span in spans.items() if len(winners) > 1 or span.digest != winners[0]]
        others = [names[place] for place in spans if place not in odd]
        lsns = [(span.first_lsn, span.last_lsn) for span in spans.values()]
        verb = "has" if len(others) == 1 else "have"
        what = f"not what {', '.join(others)} {verb}" if others else "they do not agree"
        if first_id == last_id:
            what += self._fields(spans, first_id)
        else:
            what += "; there may be more than one difference"
        first_lsn, last_lsn = min(lsns)[0], max(lsns)[1]
        if last_lsn < first_lsn:  # an entry without payloads
            first_lsn = last_lsn = 0
        return Fault(first_id, last_id, first_lsn, last_lsn, DIFFERENCE, ", ".join(names[place] for place in odd), what)

    def _fields(self, spans: dict[int, Span], id: int) -> str:
        """Text naming the fields that differ, if two of the copies can show the entry."""
        entries = [entry for place in spans if (entry := self._copies[place].look.entry(id)) is not None]
        differing = [name for at, name in enumerate(Entry._fields[:-1]) if len({entry[at] for entry in entries}) > 1]
        if "body" in differing:
            differing.remove("digest")  # which then says nothing new
        return f" ({', '.join(differing)})" if differing else ""
