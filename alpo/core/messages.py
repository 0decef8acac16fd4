"""What servers say to each other. Plain tuples: the wire layer turns them into bytes and back.

Every message travels in an `Envelope` that names the cluster, the sender and the addressee by (id,
incarnation); whatever comes from or for another incarnation counts for nothing (R27).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from .disk import SessionRow
from .entries import Entry
from .members import Identity, StartStatus
from .ranks import Rank


class Canvass(IntEnum):
    """Answers to a canvass (R2)."""

    YES = 1
    TERM = 2
    LEADER = 3
    OUTRANKED = 4
    RIVAL = 5


class Vote(IntEnum):
    """Answers to a vote request (R4). STALE: the request's term is lower (R1)."""

    GRANTED = 1
    OUTRANKED = 2
    HELD = 3
    LEADER = 4
    STALE = 5


class Defer(IntEnum):
    """Answers to a defer request (R6). STALE: the request's term is lower (R1)."""

    LEADER = 1
    DEFERRED = 2
    OUTRANKED = 3
    STALE = 4


class Room(IntEnum):
    """What a server's disk has room for. LOW: below its low-water mark; NONE: for votes and marks, not for entries."""

    PLENTY = 0
    LOW = 1
    NONE = 2


class CanvassRequest(NamedTuple):
    """R2. ``term`` is the one the sender *would* use; it moves nobody's term."""

    term: int
    round: int
    rank: Rank
    again: bool


class CanvassAnswer(NamedTuple):
    """``term`` is the answerer's current term; ``round`` echoes the request's."""

    term: int
    round: int
    answer: Canvass


class VoteRequest(NamedTuple):
    """R3; ``handed_over``: the leader itself told the sender to stand (R28)."""

    term: int
    rank: Rank
    handed_over: bool


class VoteAnswer(NamedTuple):
    """R4. ``holder`` (id, 0 for none) and ``holder_rank`` (None if unknown) go with HELD.

    ``wall_ms``: the voter's clock.
    """

    term: int
    request_term: int
    answer: Vote
    holder: int
    holder_rank: Rank | None
    wall_ms: int


class DeferRequest(NamedTuple):
    """R6, to the holder of a refused vote."""

    term: int
    rank: Rank


class DeferAnswer(NamedTuple):
    """R6."""

    term: int
    request_term: int
    answer: Defer


class AppendRequest(NamedTuple):
    """R12, R16, R17, R25; without entries a heartbeat.

    ``round``: the newest read round, echoed by the answer; 0: only carries the marks (R16), and is answered
    only if it is refused.
    """

    term: int
    prev_id: int
    prev_term: int
    guaranteed_id: int
    fully_replicated_id: int
    round: int
    entries: list[Entry]


class AppendAnswer(NamedTuple):
    """R12, R14. ``ok``: everything up to ``match_id`` is accepted, durably, and equal to the leader's; everything up to
    ``last_id`` is equal, on disk or not yet.

    Refused: ``last_id`` is the refuser's last, and (``conflict_term``, ``conflict_id``) the term and first id of
    its run at ``prev_id`` (0, 0 when its log is shorter); ``prev_id`` names the request refused.
    ``wall_ms`` is the answerer's clock, ``stopping`` says that it is about to leave (R28), ``room`` what its disk has
    room for.
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
    """R28: stand for election at once, in term + 1."""

    term: int


class WrongIncarnation(NamedTuple):
    """R27: you addressed another incarnation than mine. The envelope's sender says which is mine."""

    asked: bytes


class StartQuestion(NamedTuple):
    """R29. ``number`` is echoed; ``digest`` is `configured_digest` of the asker."""

    number: int
    digest: bytes


class StartAnswer(NamedTuple):
    """R29: the answerer's durable state. ``incarnations``: its map (id, incarnation) when STARTING.

    STARTED: ``cluster`` and ``first_list`` (plain form, JSON text) are given; ``settings`` (JSON text) too.
    """

    number: int
    status: StartStatus
    digest: bytes
    incarnations: tuple[Identity, ...]
    cluster: bytes
    first_list: str
    settings: str


class BasePart(NamedTuple):
    """One of ``parts`` parts of an `Image`, from a leader to a LEARNER that its log cannot reach (R27, R29).

    ``number`` names the transfer. ``head`` (JSON text, in part 0 alone) is all but the sessions, which ``rows`` hold.
    """

    term: int
    number: int
    part: int
    parts: int
    head: str
    rows: tuple[SessionRow, ...]


class BaseAnswer(NamedTuple):
    """Of the transfer (``term``, ``number``) part ``wanted`` (1 or more) is wanted next, all before it are there.

    ``wanted`` is the number of parts: all of it is on disk, and the log goes on from entry ``base_id`` (0 otherwise).
    """

    term: int
    number: int
    wanted: int
    base_id: int


class WentBack(NamedTuple):
    """R31: you acknowledged ``held_id`` in this reign, and do not hold it any more."""

    term: int
    held_id: int


class CopyRequest(NamedTuple):
    """R31: our copy of entry ``id``, of ``entry_term``, is damaged; please send yours."""

    id: int
    entry_term: int


class CopyAnswer(NamedTuple):
    """R31: ``entries`` holds the entry asked for, or nothing: everything up to ``base_id`` was cleaned here."""

    id: int
    base_id: int
    entries: list[Entry]


class Retired(NamedTuple):
    """R30: your incarnation is no member any more and never will be."""


Message: TypeAlias = (
    CanvassRequest | CanvassAnswer | VoteRequest | VoteAnswer | DeferRequest | DeferAnswer
    | AppendRequest | AppendAnswer | HandOver | WrongIncarnation | StartQuestion | StartAnswer
    | BasePart | BaseAnswer | Retired | WentBack | CopyRequest | CopyAnswer
)

#: Sent by whoever opens the exchange, over the connection that it dialled; everything else answers on the
#: connection that the request came in on.
REQUESTS = (
    CanvassRequest, VoteRequest, DeferRequest, AppendRequest, HandOver, StartQuestion, BasePart, WentBack, CopyRequest,
)

#: Requests that a sound receiver may leave unanswered: it does as told, or has nothing to say.
UNANSWERED = (HandOver, BasePart, WentBack, CopyRequest)

#: What a member that was asked says of the log and of terms: only members of the asker's list are heard (R27).
ANSWERS = (CanvassAnswer, VoteAnswer, DeferAnswer, AppendAnswer, CopyAnswer)

#: What a server that gives no votes leaves unanswered (R31).
ASKS_FOR_VOTES = (CanvassRequest, VoteRequest)

#: All that an unstarted server, or one that does not know its addressee's incarnation, may exchange (R27).
START_ONLY = (StartQuestion, StartAnswer, WrongIncarnation, BasePart, BaseAnswer, Retired)


def wants_answer(message: Message) -> bool:
    """Does every sound receiver say something to it? (One whose disk is damaged says nothing to `ASKS_FOR_VOTES`.)"""
    if type(message) is AppendRequest:
        return message.round > 0 or bool(message.entries)
    return isinstance(message, REQUESTS) and not isinstance(message, UNANSWERED)


class Envelope(NamedTuple):
    """A message with its addresses. ``cluster`` is 16 bytes, b"" before the first start."""

    cluster: bytes
    sender: Identity
    target: Identity
    message: Message
