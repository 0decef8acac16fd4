"""Leaders' part in the logs besides the first: the first log's leader founds logs and tells which members they are to
have; the leader of each log changes its members accordingly, and hands over to the server that should lead.

Laws:

* A log is founded with those who told its empty store: all voters of the first log, or a majority of them once two
  election timeouts have passed. Fewer would let an append rest on one disk. (The directory refuses a second founding.)
* Safety of a log never rests on what its members are told to be: its leader asks its own replica for one change at a
  time, which the rules of membership judge. What is older than what was followed before is ignored.
* The leader follows no older word than this server's own directory and list, and none from before its reign.
* No voter is taken out while the voters left would be fewer than a majority of those that are wanted.
* A log is deleted for good once a majority of the voters of one of its lists have moved their stores away, and had no
  later list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from alpo.core.directory import DeletedLog, NamedLog
from alpo.core.members import Identity, Member, MemberList, Role
from alpo.core.requests import ChangeMember, MemberStep

from .words import (
    HOSTING,
    Action,
    Change,
    Facts,
    Follow,
    Found,
    HandLog,
    LogFacts,
    Standing,
    StoreState,
    Tell,
    ToldLog,
    standing_of,
)

#: Election timeouts after which a majority of the stores is enough to found a log.
FOUND_TIMEOUTS = 2
#: Seconds that the preferred leader must have been fit, and between two handovers.
FIT_S, BETWEEN_S = 60.0, 5.0


#: Stores of a deleted log that were moved away -> how each stood when it was closed.
Ended: TypeAlias = dict[Identity, Standing]


def over(gone: DeletedLog, ended: Mapping[Identity, Standing]) -> bool:
    """True if no append to a deleted log can be acknowledged any more: of some list, a majority of its voters were
    closed with that as their latest; or all voters of all lists were that the closed ones tell of.

    A later list would need one of them to be guaranteed, and any majority of the list before has one of them. A store
    that was never begun, though the first list has it, stands as that list says.
    """
    first = MemberList.from_plain(gone.first_list) if gone.first_list is not None else None
    if first is None:
        return True  # never founded, and never will be
    begun = standing_of(0, first)
    lists: dict[tuple[int, tuple[Identity, ...]], int] = {}
    known = set(begun.voters)
    for who, standing in ended.items():
        stood = begun if standing.members_id < 0 else standing
        known.update(stood.voters)
        if who in stood.voters:
            key = stood.members_id, stood.voters
            lists[key] = lists.get(key, 0) + 1
    return known <= ended.keys() or any(count > len(voters) // 2 for (_, voters), count in lists.items())


class Leading:
    """A leader's part of one server's hosting."""

    def __init__(self, me: int, timeout_s: float, fit_s: float) -> None:
        self._me = me
        self._timeout_s, self._fit_s = timeout_s, fit_s
        self.deadline_s = math.inf
        #: Number -> time at which this server, leading the first log, first saw that the log waits to be founded.
        self._since_s: dict[int, float] = {}
        #: (number, what) -> time from which it is asked for again, if nothing has come of it.
        self._again_s: dict[tuple[int, str], float] = {}
        self._followed: dict[int, Follow] = {}
        #: Number -> how many changes of members were asked for: one that cannot be does not hold up the others.
        self._turns: dict[int, int] = {}
        #: Number -> (server that should lead, time since when it could).
        self._fit: dict[int, tuple[int, float]] = {}
        self._handed_s = -math.inf

    def follow(self, follow: Follow) -> None:
        """Take word of the members that a log is to have."""
        before = self._followed.get(follow.number)
        if before is None or follow.members_id >= before.members_id:
            self._followed[follow.number] = follow

    def step(
        self, facts: Facts, told: Mapping[int, Mapping[int, ToldLog]], who: Mapping[int, Identity], now_s: float,
        actions: list[Action],
    ) -> None:
        """Add what is to be done now; ``told``: what each server tells, this one too; ``who``: the peers."""
        self.deadline_s = math.inf
        self._forget(facts)
        if facts.cluster and facts.leads and facts.members_sure:
            for log in facts.listing.logs:
                if log.first_list is None:
                    self._found(log, facts, told, who, now_s, actions)
                else:
                    self._lead_members(log, facts, told, now_s, actions)
        else:
            self._since_s.clear()
        for number, runs in facts.logs.items():
            if runs.leads:
                self._follow(number, runs, facts, now_s, actions)
            else:
                self._followed.pop(number, None)

    def _forget(self, facts: Facts) -> None:
        """Drop what is known of logs that are deleted."""
        for known in (self._since_s, self._followed, self._fit, self._turns):
            for number in [number for number in known if facts.listing.lacks(number)]:
                del known[number]
        for what in [what for what in self._again_s if facts.listing.lacks(what[0])]:
            del self._again_s[what]

    def _due(self, number: int, what: str, now_s: float) -> bool:
        """True if it is time to ask for this, again or for the first time."""
        again_s = self._again_s.get((number, what), -math.inf)
        if now_s < again_s:
            self.deadline_s = min(self.deadline_s, again_s)
            return False
        self._again_s[number, what] = now_s + self._timeout_s
        self.deadline_s = min(self.deadline_s, now_s + self._timeout_s)
        return True

    # -- the first log's leader -------------------------------------------------------------------------

    def _found(
        self, log: NamedLog, facts: Facts, told: Mapping[int, Mapping[int, ToldLog]], who: Mapping[int, Identity],
        now_s: float, actions: list[Action],
    ) -> None:
        since_s = self._since_s.setdefault(log.number, now_s)
        first: list[Member] = []
        for voter in facts.members.voters:
            store = told.get(voter.id, {}).get(log.number)
            listed = voter.id == self._me or who.get(voter.id) == voter.identity
            if listed and store is not None and store.state is StoreState.EMPTY:
                first.append(Member(voter.id, voter.address, voter.priority, store.incarnation, Role.VOTER))
        enough_s = since_s + FOUND_TIMEOUTS * self._timeout_s
        if len(first) < facts.members.majority:
            return
        if len(first) < len(facts.members.voters) and now_s < enough_s:
            self.deadline_s = min(self.deadline_s, enough_s)
        elif self._due(log.number, "found", now_s):
            actions.append(Found(log.number, MemberList.of(first)))

    def _lead_members(
        self, log: NamedLog, facts: Facts, told: Mapping[int, Mapping[int, ToldLog]], now_s: float,
        actions: list[Action],
    ) -> None:
        """Tell the leader of a log which members it is to have, if it has others."""
        wanted = {member.id for member in facts.members.replicas}
        for id, logs in told.items():
            there = logs.get(log.number)
            if there is not None and there.leader == id and set(there.standing.replicas) != wanted:
                if self._due(log.number, f"follow {id}", now_s):
                    follow = Follow(log.number, facts.members_id, facts.members)
                    if id == self._me:
                        self.follow(follow)
                    else:
                        actions.append(Tell(id, follow))

    # -- the leader of a log ----------------------------------------------------------------------------

    def _follow(self, number: int, runs: LogFacts, facts: Facts, now_s: float, actions: list[Action]) -> None:
        """Ask for the next change of a log's members, if they are not those that it was told to have. A leader that is
        to go tries to hand over first: servers that joined after it left the cluster are unknown to it."""
        follow = self._followed.get(number)
        if follow is None or runs.changing or (facts.members_sure and follow.members_id < facts.members_id):
            return
        steps: list[Action] = [Change(number, change) for change in next_changes(runs.members, follow.members)]
        if not follow.members.is_replica(self._me):
            steps = [HandLog(number, id) for id in runs.ready if follow.members.is_replica(id)] + steps
        if steps and self._due(number, "change", now_s):
            turn = self._turns[number] = self._turns.get(number, -1) + 1
            actions.append(steps[turn % len(steps)])

    def balance(self, facts: Facts, now_s: float, actions: list[Action]) -> None:
        """Hand one log over to the server that should lead it, if that could for long."""
        for number, runs in facts.logs.items():
            log = facts.listing.get(number) or facts.head.get(number)
            wanted = 0 if log is None or not runs.leads or runs.changing else preferred(log, runs.members)
            if wanted in (0, self._me) or wanted not in runs.ready:
                self._fit.pop(number, None)
                continue
            id, since_s = self._fit.get(number, (0, 0.0))
            if id != wanted:
                self._fit[number] = wanted, now_s
                since_s = now_s
            due_s = max(since_s + self._fit_s, self._handed_s + BETWEEN_S)
            if now_s < due_s:
                self.deadline_s = min(self.deadline_s, due_s)
            else:
                self._handed_s = now_s
                self._fit[number] = wanted, now_s  # others come first if this one fails
                actions.append(HandLog(number, wanted))


def preferred(log: NamedLog, members: MemberList) -> int:
    """The id of the server that should lead a log: the one that an operator chose, if it votes, or one by number."""
    voters = [member.id for member in members.voters]
    if log.options.lead in voters:
        return log.options.lead
    return voters[log.number % len(voters)] if voters else 0


def next_changes(now: MemberList, wanted: MemberList) -> list[ChangeMember]:
    """The changes that may come next to make ``now`` have the servers of ``wanted``, the best first; [] if it has them.

    Additions come first, but for one at the address of a server that is to go. A voter goes only if enough are left.
    """
    there, target = {m.id for m in now.replicas}, {m.id for m in wanted.replicas}
    removed = [member for member in now.replicas if member.id not in target]
    taken = [member.address for member in removed]
    added = [member for member in wanted.replicas if member.id not in there]
    adds = [ChangeMember(HOSTING, MemberStep.ADD, m.id, m.address, m.priority) for m in added if m.address not in taken]
    enough = len(now.voters) > wanted.majority
    removes = [
        ChangeMember(HOSTING, MemberStep.REMOVE, m.id, "", 0) for m in removed if m.role is not Role.VOTER or enough
    ]
    return adds + removes
