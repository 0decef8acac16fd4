"""Words of hosting: what it sees, tells other servers, and asks its shell to do (rules.md#logs)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from alpo.core.directory import Listing, NamedLog
from alpo.core.members import MemberList
from alpo.core.requests import ChangeMember


class StoreState(IntEnum):
    """The state of one log's store on one server. EMPTY: made, on disk, in no cluster yet. STARTED: it belongs to the
    log. STOPPED: the log is deleted, and this server runs it no more."""

    EMPTY = 1
    STARTED = 2
    STOPPED = 3


class FoundStore(NamedTuple):
    """A store that a server finds when it starts. ``cluster``: id of the first log that the store was made for."""

    number: int
    incarnation: bytes
    state: StoreState
    cluster: bytes


class ToldLog(NamedTuple):
    """One log as a server tells of it. ``leader``: the id of the log's leader, 0 if not known; ``members``: ids of the
    members in the latest list there (also of a store that has STOPPED); () while it has none."""

    number: int
    incarnation: bytes
    state: StoreState
    leader: int = 0
    members: tuple[int, ...] = ()


class LogHello(NamedTuple):
    """Word of a server on all its logs besides the first: to each peer, at each new connection and each change."""

    logs: tuple[ToldLog, ...]


class Follow(NamedTuple):
    """Word of the first log's leader to the leader of log ``number``: its members are to be those of ``members``, the
    guaranteed list that entry ``members_id`` of the first log made."""

    number: int
    members_id: int
    members: MemberList


#: Messages between the hostings of two servers.
HostMessage: TypeAlias = LogHello | Follow


class LogFacts(NamedTuple):
    """One log that runs here. ``changing``: a change of members is asked for, or not guaranteed yet; ``ready``: voters
    that could lead at once, besides this server: up, caught up, with room."""

    state: StoreState
    leads: bool
    leader: int
    members: MemberList
    changing: bool = False
    ready: tuple[int, ...] = ()


class Facts(NamedTuple):
    """View of a server's hosting at a step.

    ``cluster``: id of the first log, b"" before it has started here. ``listing``: the directory as of the guaranteed
    mark. ``members``, ``members_id``: the latest list of the first log and the entry that made it, ``members_sure``:
    it is guaranteed. ``leads``: this server leads the first log, and has an entry of its own term guaranteed.
    ``logs``: the logs that run here, by number.
    """

    cluster: bytes
    listing: Listing
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
    """Stop the replica of a deleted log, with all its clients, close its store, then call `Hosting.stopped`."""

    number: int


class MoveStore(NamedTuple):
    """Move the store of a deleted log, which does not run, to where deleted ones are kept, then call
    `Hosting.moved`."""

    number: int


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

