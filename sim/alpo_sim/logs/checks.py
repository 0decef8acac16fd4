"""Checks of the directory, and of what servers do by it, against the first log as it is guaranteed. A file of its own:
operators of logs need it, and it knows of no world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from alpo.core.directory import Listing, changed
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.hosting.facts import facts_of
from alpo.core.hosting.words import Follow, FoundStore, LogHello, StoreState, ToldLog
from alpo.core.members import Identity, MemberList
from alpo.core.replica import Replica
from alpo.core.requests import ChangeMember, MemberStep

from ..checks import Broken
from ..checks.members import list_of

_LOGS, _MEMBERS = int(Kind.LOGS), int(Kind.MEMBERS)


class DirectoryChecks:
    """The directory as all guaranteed entries make it, and checks of each server's. Told of each entry, in order."""

    def __init__(self) -> None:
        self.listings: list[tuple[int, Listing]] = [(0, Listing())]
        self._members: MemberList | None = None
        self._last_number = 1
        self._founded: dict[int, bytes] = {}
        #: Server -> its directory, as it was last found equal to the log's, and the log's.
        self._equal: dict[int, tuple[Listing, Listing]] = {}

    @property
    def now(self) -> Listing:
        return self.listings[-1][1]

    def taken(self, entry: Entry, first: MemberList | None) -> None:
        """Take the next entry of the one first log; ``first``: the list that it began with, once known."""
        self._members = self._members or first
        if entry.kind == _MEMBERS:
            self._members = list_of(entry)
        elif entry.kind == _LOGS:
            fields = parse_body(entry)
            self._last_number = max(self._last_number, fields["number"])
            try:
                self.listings.append((entry.id, changed(self.now, fields)))
            except ValueError as error:
                raise Broken("directory", f"entry {entry.id} makes no sense: {error}") from error
            if self.now.next_number != self._last_number + 1:
                raise Broken("founding", f"after entry {entry.id} the next number is {self.now.next_number} again")
            if len({log.name for log in self.now.logs}) < len(self.now.logs):
                raise Broken("directory", f"after entry {entry.id} two logs have one name: {self.now.logs}")
            if fields["op"] == "found":
                self._check_found(fields["number"], MemberList.from_plain(fields["members"]))

    def _check_found(self, number: int, first: MemberList) -> None:
        if self._members is not None and len(first.voters) < self._members.majority:
            raise Broken("founding", f"log {number} is founded by {[m.id for m in first.voters]} alone")
        if number in self._founded or first.digest() in self._founded.values():
            raise Broken("founding", f"log {number} is founded twice, or has the id of another one")
        self._founded[number] = first.digest()

    def compare(self, replica: Replica) -> None:
        """Check that a server's guaranteed directory is that of the one log."""
        upto_id = max(replica.guaranteed_id, replica.applied_id)
        wanted = next(listing for id, listing in reversed(self.listings) if id <= upto_id)
        has, equal = replica.directory.guaranteed, self._equal.get(replica.me.id)
        if equal is None or has is not equal[0] or wanted is not equal[1]:
            if has != wanted:
                self._differs(replica, wanted)
            self._equal[replica.me.id] = has, wanted

    def _differs(self, replica: Replica, wanted: Listing) -> None:
        raise Broken("directory", f"server {replica.me.id}'s directory as of entry {replica.guaranteed_id} is "
                     f"{replica.directory.guaranteed}, the log's is {wanted}")

    def may_move(self, id: int, number: int) -> None:
        """Check that the store of a log may be moved away."""
        if not self.now.lacks(number):
            raise Broken("files", f"server {id} moves the store of log {number} away, which is not deleted")

    def told(self, id: int, log: ToldLog, stores: Mapping[int, FoundStore], moved: Iterable[FoundStore]) -> None:
        """Check that what a server tells of a log is on its disk; ``stores``, ``moved``: what is there."""
        ended = log.state is StoreState.STOPPED
        there = [(store.number, store.incarnation) for store in (moved if ended else stores.values())]
        if (log.number, log.incarnation) not in there:
            raise Broken("durable before sent", f"server {id} tells {log}, which is not on its disk")

    def may_change(self, id: int, number: int, change: ChangeMember, lists: Iterable[MemberList]) -> None:
        """Check that a change of a log's members is a step to one of ``lists`` of the first log: those that are no
        older than what the log's leader knows and has followed."""
        adds = change.step is MemberStep.ADD
        if not any((change.id in {member.id for member in each.replicas}) is adds for each in lists):
            raise Broken("follows", f"server {id} has log {number} {change.step.name} {change.id}, by an old list")

    def should_lead(self, number: int, members: MemberList) -> int:
        """The server that is to lead a log: whom an operator has named, if it votes, or the voter at the log's place;
        0 for a log that is deleted."""
        log, voters = self.now.get(number), sorted(member.id for member in members.voters)
        if log is None:
            return 0
        return log.options.lead if log.options.lead in voters else voters[number % len(voters)]


def are_too_few(voters: MemberList | None, first: MemberList | None, replicas: Iterable[Replica]) -> bool:
    """True if a majority of a log's voters are on hosts that have left the cluster and have lost the first log's store,
    so that they run no log. ``first``: the members of the first log; ``replicas``: those of it that are up."""
    if voters is None or first is None:
        return False
    there = {*(member.id for member in first.replicas), *(r.me.id for r in replicas if r.first_start.started)}
    return sum(member.id in there for member in voters.voters) < voters.majority


class HeardOf:
    """Account of what the hostings of hosts that are up have heard from others."""

    def __init__(self) -> None:
        self._stores: dict[int, dict[Identity, int]] = {}
        self._followed: dict[tuple[int, int, int], int] = {}

    def told(self, id: int, peer: int, message: LogHello) -> None:
        """Note of which stores host ``peer`` tells host ``id``."""
        known = self._stores.setdefault(id, {})
        for told in message.logs:
            if told.state is not StoreState.STOPPED:
                known[Identity(peer, told.incarnation)] = told.number

    def followed(self, id: int, message: Follow, replica: Replica | None) -> None:
        """Note what host ``id`` is to follow; ``replica``: of that log, if it runs there."""
        if replica is not None and facts_of(replica).leads:
            key = id, message.number, replica.term
            self._followed[key] = max(message.members_id, self._followed.get(key, 0))

    def forget(self, id: int) -> None:
        """Note that a host has crashed."""
        self._stores.pop(id, None)
        self._followed = {key: at for key, at in self._followed.items() if key[0] != id}

    def stores(self, id: int) -> Mapping[Identity, int]:
        """The stores that a host was told of, by number of their log, the one told last at the end."""
        return self._stores.get(id, {})

    def followed_id(self, id: int, number: int, reign: int) -> int:
        """The newest list of the first log that this leader of a log was told to follow; 0 if none."""
        return self._followed.get((id, number, reign), 0)
