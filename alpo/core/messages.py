"""Messages between servers: plain tuples, which `alpo.wire` turns into bytes and back.

Every message travels in an `Envelope` that names the cluster, and sender and target by (id, incarnation). A message
from or for another incarnation does not count (R27). In an answer ``term`` is the answerer's, ``request_term`` the
request's.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from .disk import SessionRow
from .entries import Entry
from .members import Identity, StartStatus
from .ranks import Rank


class Canvass(IntEnum):
    """Answers to a canvass (R2). YES: would vote; TERM: its term is higher, or its vote in that term is given; LEADER:
    it has a live leader; OUTRANKED: its log is newer; RIVAL: it canvasses or stands itself, and ranks higher."""

    YES = 1
    TERM = 2
    LEADER = 3
    OUTRANKED = 4
    RIVAL = 5


class Vote(IntEnum):
    """Answers to a vote request (R4). OUTRANKED: the voter's log is newer; HELD: another candidate has its vote;
    LEADER: it has a live leader; STALE: the request's term is lower (R1)."""

    GRANTED = 1
    OUTRANKED = 2
    HELD = 3
    LEADER = 4
    STALE = 5


class Defer(IntEnum):
    """Answers to a defer request (R6). LEADER: the answerer leads; DEFERRED: it is passive now; OUTRANKED: it is a
    candidate that ranks higher; STALE: the request's term is lower (R1)."""

    LEADER = 1
    DEFERRED = 2
    OUTRANKED = 3
    STALE = 4


class Room(IntEnum):
    """The space on a server's disk. LOW: below its low-water mark; NONE: enough for votes and marks, not for
    entries."""

    PLENTY = 0
    LOW = 1
    NONE = 2


class CanvassRequest(NamedTuple):
    """A canvass (R2). ``term``: the one that the sender *would* use; no receiver adopts it. ``again``: RIVAL
    is no answer to this round."""

    term: int
    round: int
    rank: Rank
    again: bool


class CanvassAnswer(NamedTuple):
    """The answer to a canvass (R2). ``term``: the answerer's current one; ``round``: the request's."""

    term: int
    round: int
    answer: Canvass


class VoteRequest(NamedTuple):
    """A candidate's request for a vote (R3). ``handed_over``: the leader itself told the sender to stand (R28)."""

    term: int
    rank: Rank
    handed_over: bool


class VoteAnswer(NamedTuple):
    """The answer to a vote request (R4). With HELD ``holder`` is the id of the candidate that has the vote (else 0),
    and ``holder_rank`` its rank (None if unknown). ``wall_ms``: the voter's clock, ms since 1970."""

    term: int
    request_term: int
    answer: Vote
    holder: int
    holder_rank: Rank | None
    wall_ms: int


class DeferRequest(NamedTuple):
    """A candidate's request that a rival become passive: voters have refused the candidate, as the rival has their
    votes; its rank is lower than ``rank``, or not known (R6)."""

    term: int
    rank: Rank


class DeferAnswer(NamedTuple):
    """The answer to a defer request (R6)."""

    term: int
    request_term: int
    answer: Defer


class AppendRequest(NamedTuple):
    """Entries and marks from the leader; without entries a heartbeat (R12, R16, R17, R25).

    ``prev_id`` and ``prev_term``: of the entry before ``entries``, which must match. ``round``: the newest read round,
    echoed by the answer; 0: the request only carries the marks (R16), and is answered only if it is refused.
    """

    term: int
    prev_id: int
    prev_term: int
    guaranteed_id: int
    fully_replicated_id: int
    round: int
    entries: list[Entry]


class AppendAnswer(NamedTuple):
    """The answer to an append request (R12, R14).

    ``ok``: everything up to ``match_id`` is accepted, durably, and equal to the leader's; everything up to ``last_id``
    is equal, on disk or not yet. If the answerer counts less than it has on its disk, because an entry there is damaged
    (R31), ``conflict_id`` is the last id on its disk; else it is 0. (Older leaders ignore it.)

    Refused: ``last_id`` is the refuser's last id, and (``conflict_term``, ``conflict_id``) the term of its entry at
    ``prev_id`` and the first id of that term there (0, 0 when its log is shorter); ``prev_id`` names the request
    refused. ``wall_ms``: the answerer's clock, ms since 1970; ``stopping``: it is about to leave (R28); ``room``: the
    space on its disk.
    """

    term: int
    ok: bool
    match_id: int
    prev_id: int
    last_id: int
    conflict_term: int
    conflict_id: int
    round: int
    wall_ms: int
    stopping: bool
    room: Room = Room.PLENTY


class HandOver(NamedTuple):
    """The leader's order to stand for election at once, in the next term (R28); ``term``: the leader's."""

    term: int


class WrongIncarnation(NamedTuple):
    """The answer to a message for incarnation ``asked``; the envelope's sender has the right one (R27)."""

    asked: bytes


class StartQuestion(NamedTuple):
    """A question for another server's start state (R29). ``number`` is echoed; ``digest``: of the asker's configured
    list and settings."""

    number: int
    digest: bytes


class StartAnswer(NamedTuple):
    """The answerer's durable start state (R29). ``number``: the question's; ``incarnations``: (id, incarnation) of each
    configured server, if STARTING; ``cluster``, ``first_list`` and ``settings`` (plain form, JSON text): if STARTED.
    """

    number: int
    status: StartStatus
    digest: bytes
    incarnations: tuple[Identity, ...]
    cluster: bytes
    first_list: str
    settings: str


class SnapshotPart(NamedTuple):
    """One of ``parts`` parts of a snapshot, from a leader to a LEARNER that entries alone cannot bring up (R27, R29).

    ``number`` names the transfer; ``part`` counts from 0. ``head`` (JSON text, in part 0 alone): the base, the
    replicated state without its sessions, the cluster's first list and settings. ``rows``: sessions, each [client,
    epoch, nonce, last serial when opened, last serial, last entry's id and time, entries, birth], an entry being [first
    serial, id, lsn, epoch, digest]. The next part leaves when this one is answered.
    """

    term: int
    number: int
    part: int
    parts: int
    head: str
    rows: tuple[SessionRow, ...]


class SnapshotAnswer(NamedTuple):
    """A learner's answer: the parts before ``wanted`` (1 or more) of transfer (``term``, ``number``) came, that one is
    wanted next. If ``wanted`` is the number of parts, the whole snapshot is on disk and the log goes on after entry
    ``base_id`` (otherwise 0). A part that came before is answered too, one after a gap is not.
    """

    term: int
    number: int
    wanted: int
    base_id: int


class WentBack(NamedTuple):
    """The leader's report that the target acknowledged entry ``held_id`` in this term and holds it no more: its
    disk counts as lost (R31)."""

    term: int
    held_id: int


class CopyRequest(NamedTuple):
    """A request for a copy of entry ``id``, of term ``entry_term``: the sender's copy is damaged (R31)."""

    id: int
    entry_term: int


class CopyAnswer(NamedTuple):
    """The answer to a copy request for ``id``: the entry alone in ``entries``; or no entry, as the answerer has cleaned
    up to ``base_id`` (R31)."""

    id: int
    base_id: int
    entries: list[Entry]


class Retired(NamedTuple):
    """The report that the target's incarnation is no member any more and never will be (R30)."""


Message: TypeAlias = (
    CanvassRequest | CanvassAnswer | VoteRequest | VoteAnswer | DeferRequest | DeferAnswer
    | AppendRequest | AppendAnswer | HandOver | WrongIncarnation | StartQuestion | StartAnswer
    | SnapshotPart | SnapshotAnswer | Retired | WentBack | CopyRequest | CopyAnswer
)

#: Messages that open an exchange: they go over the connection that the sender dialled. Answers go back over the
#: connection that the request came in on.
REQUESTS = (
    CanvassRequest, VoteRequest, DeferRequest, AppendRequest, HandOver, StartQuestion, SnapshotPart, WentBack,
    CopyRequest,
)

#: Requests that a receiver may leave unanswered.
UNANSWERED = (HandOver, SnapshotPart, WentBack, CopyRequest)

#: Answers about the log and terms, which count only from members of the asker's list (R27).
ANSWERS = (CanvassAnswer, VoteAnswer, DeferAnswer, AppendAnswer, CopyAnswer)

#: Requests that a server with a damaged disk leaves unanswered (R31).
ASKS_FOR_VOTES = (CanvassRequest, VoteRequest)

#: The only messages to and from a server that has not started, or whose incarnation is not known (R27).
START_ONLY = (StartQuestion, StartAnswer, WrongIncarnation, SnapshotPart, SnapshotAnswer, Retired)


def wants_answer(message: Message) -> bool:
    """True if a receiver whose disk is neither damaged nor hangs always answers ``message``. (A receiver whose disk is
    damaged or hangs does not answer `ASKS_FOR_VOTES`.)"""
    if type(message) is AppendRequest:
        return message.round > 0 or bool(message.entries)
    return isinstance(message, REQUESTS) and not isinstance(message, UNANSWERED)


class Envelope(NamedTuple):
    """A message with its addresses. ``cluster``: the sender's, 16 bytes; b"" before the first start."""

    cluster: bytes
    sender: Identity
    target: Identity
    message: Message
