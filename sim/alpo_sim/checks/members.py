"""Checks of member lists: which may be in force, and how one follows from the other (R27, R30).

Laws:

* A list changes one member by one step, in a log that held the list before it.
* A new incarnation comes in as a LEARNER, its predecessor retired; it becomes a VOTER in another entry, once the entry
  that made it a LEARNER is on its disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpo.core.disk import Write
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.members import Member, MemberList, Role
from alpo.core.ranks import State
from alpo.core.ready import Input, Ready
from alpo.core.replica import Replica
from alpo.core.requests import ChangeMember, HandedOver, MembersChanged, MemberStep, Origin

from ..host import Host
from ..stage import Stage, Watcher
from . import Broken
from .safety import Safety

_MEMBERS = int(Kind.MEMBERS)


def list_of(entry: Entry) -> MemberList:
    """The member list in the body of a MEMBERS entry."""
    return MemberList.from_plain(parse_body(entry)["members"])


class MemberChecks(Watcher):
    """Check *members*: keeps an account of all member lists, and checks how one follows from the other.

    ``guaranteed``: (entry id, list) of the one log, the first start's with 0. ``floors``: operators' requests -> the
    last entry that any answer rested on when they were made; `History` keeps it.
    """

    def __init__(self, stage: Stage, safety: Safety, floors: Mapping[Origin, int] | None = None) -> None:
        self._stage, self._safety = stage, safety
        self._floors = {} if floors is None else floors
        self.guaranteed: list[tuple[int, MemberList]] = []
        self._made: dict[tuple[int, int], MemberList] = {}  # (entry id, term) -> list, if not known as guaranteed
        self._asked: set[tuple[int, str, int]] = set()  # (id, address, priority) that somebody asked to be added

    @property
    def latest(self) -> MemberList | None:
        """The last list known to be guaranteed; None before the first start."""
        return self.guaranteed[-1][1] if self.guaranteed else None

    def in_force(self) -> list[MemberList]:
        """All lists that a server may use that knows everything that is guaranteed."""
        return [self.guaranteed[-1][1], *self._made.values()] if self.guaranteed else []

    def taken(self, entry: Entry) -> None:
        """Take the next entry of the one log."""
        if entry.kind == _MEMBERS:
            self.guaranteed.append((entry.id, list_of(entry)))
            self._made = {at: members for at, members in self._made.items() if at[0] > entry.id}

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        """Take the first list of a server that starts: of those that start before anything is guaranteed the last one's
        counts. The first to start may lose its disk before the others found the cluster, with another list (R29)."""
        for write in writes:
            if write.start is not None and write.start.cluster and not self._safety.guaranteed:
                self.guaranteed[:] = [(0, MemberList.from_plain(write.start.first_list))]

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        for each in inputs:
            if type(each) is ChangeMember and each.step is MemberStep.ADD:
                self._asked.add((each.id, each.address, each.priority))
        if ready.write is not None:
            for entry in ready.write.entries:
                if entry.kind == _MEMBERS:
                    self._wrote(host, replica, entry)
        for reply in ready.replies:
            if isinstance(reply, MembersChanged):
                self._check_told(host, replica, reply)
            elif isinstance(reply, HandedOver):
                leader = self._safety.leaders.get(reply.term)
                if reply.leader == host.id:
                    self._check_leads(host, reply)
                if leader is None or leader.id != reply.leader:
                    raise Broken("acknowledged", f"server {host.id} says that {reply.leader} leads term {reply.term}")

    def _wrote(self, host: Host, replica: Replica, entry: Entry) -> None:
        if self.guaranteed and entry.id > self.guaranteed[-1][0]:
            self._made.setdefault((entry.id, entry.term), list_of(entry))
        if replica.state is State.LEADER and entry.term == replica.term:
            self.check_step(host, replica.members.at(entry.id - 1)[1], list_of(entry))

    def _check_told(self, host: Host, replica: Replica, reply: MembersChanged) -> None:
        told = MemberList.from_plain(reply.members)
        if told not in [members for _, members in self.guaranteed]:
            raise Broken("acknowledged", f"server {host.id} tells of a member list that is not guaranteed")
        floor_id = self._floors.get(reply.origin, 0)
        since = [members for at, (_, members) in enumerate(self.guaranteed)
                 if at + 1 == len(self.guaranteed) or self.guaranteed[at + 1][0] > floor_id]
        if told not in since:
            raise Broken("linearizable", f"server {host.id} tells of a member list that was history before entry "
                         f"{floor_id}, which was known before it was asked")

    def _check_leads(self, host: Host, reply: HandedOver) -> None:
        """Check a reply that says that its server leads: at the request no later leader had answered anything."""
        floor_id = self._floors.get(reply.origin, 0)
        if floor_id and self._safety.guaranteed[floor_id - 1].term > reply.term:
            raise Broken("linearizable", f"server {host.id} says that it leads, in term {reply.term}; entry {floor_id} "
                         "of a later one was known before it was asked")

    def check_step(self, host: Host, before: MemberList, after: MemberList) -> None:
        """Check that a leader may make ``after`` of ``before`` in one entry. Raises `Broken`."""
        changed = [m for m in after.members if before.get(m.id) != m]
        if len(changed) != 1 or len(after.members) - len(before.members) not in (0, 1):
            raise Broken("members", f"leader {host.id} changes members {[m.id for m in changed]} in one entry")
        new = changed[0]
        old = before.get(new.id)
        added = old is None or (old.role is Role.GONE and new.role is not Role.GONE)
        if added and (new.id, new.address, new.priority) not in self._asked:
            raise Broken("members", f"leader {host.id} adds server {new.id} at {new.address} with priority "
                         f"{new.priority}, which nobody asked for")
        if old is not None and old.incarnation != new.incarnation:
            if old.incarnation not in new.retired or new.incarnation in old.retired:
                raise Broken("members", f"leader {host.id} lists another disk of {new.id}, and does not retire the old")
            old = None if new.role is Role.LEARNER else old
        if new.role is Role.VOTER and old != new._replace(address=old.address if old is not None else ""):
            self._check_promoted(host, old, new)
            self._check_counted(host, new)

    def _check_promoted(self, host: Host, old: Member | None, new: Member) -> None:
        if old is None or old != new._replace(address=old.address, role=Role.LEARNER):
            raise Broken("members", f"leader {host.id} makes {new.id} a voter, and it was no learner before")
        listed_id = next((id for id, members in self.guaranteed if members.holds(new.identity)), 0)
        if listed_id and self._safety.disk_term_at(new.identity, listed_id) is None:
            raise Broken("members", f"leader {host.id} makes {new.id} a voter, and list {listed_id} is not on its disk")

    def _check_counted(self, host: Host, new: Member) -> None:
        """Check that entries that a leader counts as accepted by a new voter are on the voter's disk: cleaning rests
        on that. (Not checked while no list is guaranteed: `explore` runs one server at a time, without the others.)"""
        leadership = host.running.leadership
        assert leadership is not None
        peer = leadership.peers[new.id]
        term = host.running.log.term_at(peer.match_id)
        if self.guaranteed and term and self._safety.disk_term_at(new.identity, peer.match_id) != term:
            raise Broken("members", f"leader {host.id} makes {new.id} a voter that it counts as having entry "
                         f"{peer.match_id}, which is not on its disk")
