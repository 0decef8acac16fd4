"""Words of hosting: what it sees, tells other servers, and asks its shell to do (rules.md#logs)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from alpo.core.directory import Listing, NamedLog
from alpo.core.members import Identity, MemberList
from alpo.core.requests import ChangeMember


class StoreState(IntEnum):
    """The state of one log's store on one server. EMPTY: made, on disk, in no cluster yet. STARTED: it belongs to the
    log. STOPPED: the log is deleted, and the store was moved away, durably: it never runs again."""

    EMPTY = 1
    STARTED = 2
    STOPPED = 3


class Standing(NamedTuple):
    """The latest member list in a store: id of the entry that made it (0: the first list), the voters, and the ids of
    all members that hold a copy. ``members_id`` -1: the store has none."""

    members_id: int = -1
    voters: tuple[Identity, ...] = ()
    replicas: tuple[int, ...] = ()


#: The standing of a store that has no list.
NO_LIST = Standing()


def standing_of(members_id: int, members: MemberList) -> Standing:
    """The standing of a store with this list."""
    voters = tuple(member.identity for member in members.voters)
    return Standing(members_id, voters, tuple(member.id for member in members.replicas))


class FoundStore(NamedTuple):
    """A store that a server finds when it starts, also among those that were moved away (STOPPED). ``cluster``: id of
    the first log that the store was made for; ``standing``: as of the last close."""

    number: int
    incarnation: bytes
    state: StoreState
    cluster: bytes
    standing: Standing = NO_LIST


class ToldLog(NamedTuple):
    """One log as a server tells of it. ``leader``: the id of the log's leader, 0 if not known."""

    number: int
    incarnation: bytes
    state: StoreState
    leader: int = 0
    standing: Standing = NO_LIST


class LogHello(NamedTuple):
    """Word of a server on all its logs besides the first: to each peer, at each new connection and each change."""

    logs: tuple[ToldLog, ...]


class Follow(NamedTuple):
    """Word of the first log's leader to the leader of log ``number``: its members are to be those of ``members``, the
    guaranteed list that entry ``members_id`` of the first log made."""

    number: int
    members_id: int
    members: MemberList


class Deleted(NamedTuple):
    """Word to a server that has left the cluster, and so hears of no deletion: these logs of its stores are deleted, by
    the guaranteed directory of ``cluster``."""

    cluster: bytes
    numbers: tuple[int, ...]


#: Messages between the hostings of two servers.
HostMessage: TypeAlias = LogHello | Follow | Deleted


class LogFacts(NamedTuple):
    """One log that runs here. ``members_id``: the entry that made the latest list; ``changing``: a change of members is
    asked for, or not guaranteed yet; ``ready``: voters that could lead at once, besides this server: up, caught up,
    with room; ``retired``: this store is out of the log, for good (R30)."""

    state: StoreState
    leads: bool
    leader: int
    members_id: int
    members: MemberList
    changing: bool = False
    ready: tuple[int, ...] = ()
    retired: bool = False


class Facts(NamedTuple):
    """View of a server's hosting at a step.

    ``cluster``: id of the first log, b"" before it has started here. ``listing``: the directory as of the guaranteed
    mark; ``head``: at the head of the log. ``members``, ``members_id``: the latest list of the first log and the entry
    that made it, ``members_sure``: it is guaranteed. ``leads``: this server leads the first log, and has an entry of
    its own term guaranteed. ``logs``: the logs that run here, by number.
    """

    cluster: bytes
    listing: Listing
    head: Listing
    members: MemberList
    members_id: int
    members_sure: bool
    leads: bool
    logs: dict[int, LogFacts]


class MakeStore(NamedTuple):
    """Make an empty store with a fresh incarnation, fsync it, then call `Hosting.made`."""

    number: int
    name: str


class RunLog(NamedTuple):
    """Run the replica of a store. If it is EMPTY and ``first_list`` is there, it begins with that (`Begin`); else it
    waits to be added by the log's leader."""

    log: NamedLog
    first_list: MemberList | None


class StopLog(NamedTuple):
    """Stop the replica of a log, with all its clients, close its store, then call `Hosting.stopped` with the standing
    that it was closed with."""

    number: int


class MoveStore(NamedTuple):
    """Move a store that does not run, of a deleted log or ``retired``, to where deleted ones are kept, fsync that, then
    call `Hosting.moved`."""

    number: int
    retired: bool = False


class Tell(NamedTuple):
    """Send a message to a server, or to all that are connected (None)."""

    peer: int | None
    message: HostMessage


class Found(NamedTuple):
    """Give the first log's replica `alpo.core.requests.FoundLog`."""

    number: int
    first_list: MemberList


class Change(NamedTuple):
    """Give the replica of a log a request to change its members."""

    number: int
    request: ChangeMember


class HandLog(NamedTuple):
    """Have the replica of a log hand leadership over to ``target``."""

    number: int
    target: int


class HostEvent(NamedTuple):
    """A line for the server's log."""

    name: str
    number: int
    why: str = ""


Action: TypeAlias = MakeStore | RunLog | StopLog | MoveStore | Tell | Found | Change | HandLog | HostEvent

#: The asker of a change of members that a hosting asks for: nobody is told.
HOSTING = "hosting"

