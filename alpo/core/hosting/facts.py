"""The view that a hosting has of the replicas and stores of its server (rules.md#logs). A file of its own: `hosting`
itself, and whatever names its words, needs no replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from alpo.core.disk import Boot
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.members import MemberList
from alpo.core.replica import Replica

from .words import NO_LIST, Facts, LogFacts, Standing, StoreState, standing_of


def facts(first: Replica, logs: Mapping[int, Replica]) -> Facts:
    """The view of a server whose replica of the first log is ``first``; ``logs``: of the others that run, by number."""
    members = first.members
    return Facts(
        first.cluster, first.directory.guaranteed, first.directory.head, members.latest, members.latest_id,
        members.latest_id <= first.guaranteed_id and not first.retired, _leads(first),
        {number: facts_of(replica) for number, replica in logs.items()},
    )


def facts_of(replica: Replica) -> LogFacts:
    """The view of one log besides the first."""
    leadership, members, leads = replica.leadership, replica.members, _leads(replica)
    changing = members.latest_id > replica.guaranteed_id or (
        replica.changes is not None and replica.changes.pending is not None
    )
    state = StoreState.STARTED if replica.first_start.started else StoreState.EMPTY
    ready: tuple[int, ...] = ()
    if leads and leadership is not None:
        # A server that is an entry behind counts too: in a busy log hardly one is never behind.
        ready = tuple(peer.who.id for peer in leadership.voters if leadership.lack_of(peer) is None)
    retired = replica.retired or (
        replica.first_start.started and members.standing == "GONE" and members.latest_id <= replica.guaranteed_id
    )
    return LogFacts(state, leads, replica.leader_id, members.latest_id, members.latest, changing, ready, retired)


def settled(replica: Replica) -> bool:
    """True if the latest list is guaranteed and, on a leader, an entry of its own term is, too."""
    return replica.members.latest_id <= replica.guaranteed_id and (replica.leadership is None or _leads(replica))


def _leads(replica: Replica) -> bool:
    """True if the replica leads, and an entry of its own term is guaranteed."""
    leadership = replica.leadership
    return replica.serves and leadership is not None and leadership.first_id <= replica.guaranteed_id


def standing_in(boot: Boot, entries: Iterable[Entry]) -> Standing:
    """The standing of a store that no replica runs: ``boot``, and all its entries after the saved state."""
    if not boot.start.cluster:
        return NO_LIST
    members_id, plain = boot.members_id, boot.members if boot.members is not None else boot.start.first_list
    for entry in entries:
        if entry.kind == Kind.MEMBERS:
            members_id, plain = entry.id, parse_body(entry)["members"]
    return standing_of(members_id, MemberList.from_plain(plain))
