"""What has happened so far, as far as the checks need it, and the checks between servers.

Laws:

* A `Past` is part of the state that is searched: two ways to the same servers and messages are one state only if the
  same servers have led the same terms and the same entries have been guaranteed.
* Everything that is worked out is worked out once for each pair of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from alpo.core.members import Identity

from ..broken import Broken
from .facts import Entries, Facts


class Past(NamedTuple):
    """``leaders``: (term, who), by term. ``guaranteed``: the one log, as far as any server ever called it so;
    ``by``: for each entry of it the term in which that was first done."""

    leaders: tuple[tuple[int, Identity], ...] = ()
    guaranteed: Entries = ()
    by: tuple[int, ...] = ()


class Pasts:
    """All pasts that were met, and what each server's state makes of one."""

    def __init__(self, facts: list[Facts], majority: int) -> None:
        self.known: list[Past] = [Past()]
        self._numbers = {self.known[0]: 0}
        self._facts = facts
        self._majority = majority
        self._after: dict[tuple[int, int], int] = {}
        self._holds: dict[tuple[int, int], bool] = {}
        self._agree: dict[tuple[int, int], Broken | None] = {}

    def after(self, past: int, local: int) -> int:
        """The past once a server is in state ``local``. Raises `Broken`."""
        number = self._after.get((past, local))
        if number is None:
            now = self._told(self.known[past], self._facts[local])
            number = self._numbers.setdefault(now, len(self.known))
            if number == len(self.known):
                self.known.append(now)
            self._after[past, local] = number
        return number

    def _told(self, past: Past, facts: Facts) -> Past:
        mark, known = facts.log[: facts.guaranteed_id], past.guaranteed
        common = min(len(mark), len(known))
        if mark[:common] != known[:common]:
            raise Broken("one log", f"server {facts.me.id} calls other entries guaranteed than was done before")
        if len(mark) > len(known):
            by = past.by + (facts.own_term,) * (len(mark) - len(known))
            past = past._replace(guaranteed=mark, by=by)
        if facts.leads:
            past = self._leads(past, facts)
        return past

    @staticmethod
    def _leads(past: Past, facts: Facts) -> Past:
        leaders = dict(past.leaders)
        known = leaders.get(facts.leads)
        if known is None:
            # Late votes may make a leader of a term when the next has begun its work: it owes nothing to that.
            before = sum(term < facts.leads for term in past.by)
            if facts.log[:before] != past.guaranteed[:before]:
                raise Broken(
                    "leader completeness", f"server {facts.me.id} leads term {facts.leads} without all that was "
                    f"guaranteed in terms before, up to entry {before}",
                )
            leaders[facts.leads] = facts.me
            return past._replace(leaders=tuple(sorted(leaders.items())))
        if known != facts.me:
            raise Broken("one leader a term", f"servers {known.id} and {facts.me.id} both lead term {facts.leads}")
        return past

    def check_disks(self, past: int, locals: Sequence[int]) -> None:
        """Whatever was called guaranteed is on the disks of a majority, now and ever after. Raises `Broken`."""
        if not self.known[past].guaranteed:
            return
        holders = 0
        for local in locals:
            held = self._holds.get((past, local))
            if held is None:
                guaranteed = self.known[past].guaranteed
                held = self._holds[past, local] = self._facts[local].disk[: len(guaranteed)] == guaranteed
            holders += held
        if holders < self._majority:
            last = len(self.known[past].guaranteed)
            raise Broken("guaranteed on a majority", f"entry {last} was called guaranteed; it is on {holders} disks")

    def check_pair(self, one: int, other: int) -> None:
        """Two servers' logs match (R12), with equal tables where they are equal; and one first list (R29)."""
        key = (one, other)
        if key not in self._agree:
            self._agree[key] = _disagreement(self._facts[one], self._facts[other])
        broken = self._agree[key]
        if broken is not None:
            raise broken


def _disagreement(a: Facts, b: Facts) -> Broken | None:
    if a.cluster and b.cluster and a.cluster != b.cluster:
        return Broken("one first list", f"servers {a.me.id} and {b.me.id} have started with different lists")
    for at in range(min(len(a.log), len(b.log)) - 1, -1, -1):
        if a.log[at][0] == b.log[at][0]:  # equal id and term: equal up to there
            if a.log[: at + 1] != b.log[: at + 1]:
                return Broken(
                    "log matching", f"servers {a.me.id} and {b.me.id} hold entry {at + 1} of term {a.log[at][0]}, and "
                    "differ there or before",
                )
            break
    if a.log == b.log and a.cluster == b.cluster and a.table != b.table and not a.ahead and not b.ahead:
        return Broken("equal tables", f"servers {a.me.id} and {b.me.id} hold equal logs and different sessions")
    return None
