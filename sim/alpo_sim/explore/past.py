"""Checks between servers, and the past of a state, as far as the checks need it.

Laws:

* The checks use the `Facts` of single servers, and the `Past`.
* A `Past` is part of the state that is searched: two ways to the same servers and messages lead to one state only if
  the same servers have led the same terms and the same entries have been guaranteed.
* Each check is worked out once for each pair of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from alpo.core.members import Identity, StartStatus
from alpo.core.ranks import State

from ..checks import Broken
from ..host import Host
from .search import Numbered
from .state import digest, tree
from .timeless import MIDDLE

#: (term, checksum) of every entry, from id 1 on.
Entries = tuple[tuple[int, int], ...]


class Facts(NamedTuple):
    """Facts about a server in one state, for the checks between servers.

    ``term``: ``own_term``, or the term that the server canvasses for. ``leads``: the term that it leads, or 0.
    ``newcomers``: number of questions and bases that it sent in its reign to servers that are no voters. ``writes``:
    number under way. ``start``: digest of the state of its first start. ``cluster``: b"" until started. ``table``:
    digest of its sessions; ``ahead``: they came with a base, and are later than its log.
    """

    me: Identity
    term: int
    own_term: int
    rounds: int
    newcomers: int
    writes: int
    leads: int
    start: bytes
    cluster: bytes
    log: Entries
    disk: Entries
    guaranteed_id: int
    table: bytes
    ahead: bool


def facts_of(host: Host) -> Facts:
    """Read the facts off a server that is up."""
    r = host.replica
    assert r is not None
    disk = host.store.content.entries
    log = []
    for id in range(1, r.log.last_id + 1):
        entry = r.log.entry(id) or disk[id - 1]
        log.append((entry.term, entry.check))
    started = r.first_start.state.status is StartStatus.STARTED
    return Facts(
        r.me, r.term + (r.election.round is not None), r.term, r.election.round_number,
        r.changes.newcomers.number - int(MIDDLE.random() * (1 << 40)) if r.changes is not None else 0,
        len(host.writes), r.term if r.state is State.LEADER else 0,
        digest((tree(r.first_start.state), r.first_start.number, r.first_start.commanded, len(host.writes))),
        r.first_start.state.cluster if started else b"",
        tuple(log), tuple([(entry.term, entry.check) for entry in disk]), r.guaranteed_id,
        digest(tree(r.sessions.state())), r.applied_id > r.log.last_id,
    )


def check_alone(host: Host) -> None:
    """Check a server by itself, as it is between steps. Raises `Broken`."""
    r = host.replica
    assert r is not None
    if not r.first_start.started and (r.term or r.vote or r.log.last_id):
        raise Broken("started first", f"server {host.id} is not started: term {r.term}, vote {r.vote}, log ends at "
                     f"{r.log.last_id}")


class Past(NamedTuple):
    """Deeds of servers that bind others later.

    ``leaders``: (term, who), by term. ``guaranteed``: the one log, as far as any server ever called it so; ``by``: for
    each entry of it the term in which that was first done.
    """

    leaders: tuple[tuple[int, Identity], ...] = ()
    guaranteed: Entries = ()
    by: tuple[int, ...] = ()


class Pasts:
    """All pasts found so far, by number; 0 is the empty one. ``facts``: number of a server's state -> its facts."""

    def __init__(self, facts: list[Facts], majority: int) -> None:
        self._pasts: Numbered[Past] = Numbered()
        self._pasts.number(Past())
        self.known = self._pasts.known
        self._facts = facts
        self._majority = majority
        self.after = cache(self._after)
        self._holds = cache(self._find_holds)
        self._disagree = cache(lambda one, other: _disagreement(facts[one], facts[other]))

    def _after(self, past: int, local: int) -> int:
        """The number of the past once a server is in state ``local``. Raises `Broken`."""
        return self._pasts.number(self._told(self.known[past], self._facts[local]))

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
        """Check that all that was called guaranteed is on the disks of a majority. Raises `Broken`."""
        last = len(self.known[past].guaranteed)
        if not last:
            return
        holders = sum([self._holds(past, local) for local in locals])
        if holders < self._majority:
            raise Broken("guaranteed on a majority", f"entry {last} was called guaranteed; it is on {holders} disks")

    def _find_holds(self, past: int, local: int) -> bool:
        guaranteed = self.known[past].guaranteed
        return self._facts[local].disk[: len(guaranteed)] == guaranteed

    def check_pair(self, one: int, other: int) -> None:
        """Check that two servers' logs match (R12), tables are equal if the logs are, and so are first lists (R29).

        Raises `Broken`.
        """
        broken = self._disagree(one, other)
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
