"""A leader's knowledge of each peer (R12, R16, R17), what a voter may lack, and the order in which heirs are tried."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from .entries import Entry
from .members import Identity
from .messages import Room

NEVER_S = float("-inf")
#: Entries that a voter may be behind the guaranteed mark and still count as caught up.
CAUGHT_UP_ENTRIES = 10_000
#: Election timeouts for which a voter may owe the acceptance of what it was sent, and still count as one that accepts.
OWING_TIMEOUTS = 2


class Lack(StrEnum):
    """Reasons why no append can count on a voter now, with words for them, the gravest first."""

    SILENT = "does not answer"
    FULL = "is low on disk space and takes no entries"
    LOW = "is low on disk space"
    DAMAGED = "holds damaged entries"
    NEW = "has not confirmed its log yet"
    OWES = "confirms no entries"
    BEHIND = "has yet to catch up"


class Progress:
    """The leader's knowledge of one peer. Times are monotonic seconds."""

    def __init__(self, who: Identity, next_id: int, now_s: float) -> None:
        self.who = who
        self.match_id = 0  # the peer has durably accepted the log up to here in this reign
        self.base_id = next_id - 1  # the last id up to which its log is believed to equal ours
        self.next_id = next_id  # the next entry to send
        self.probing = False  # True while heartbeats ask about base_id: no entries are sent
        self.matched = False  # True once it has accepted base_id in this reign
        self.last_id = 0  # the peer's log equals ours up to here, on disk or not, by its last answer
        self.in_flight: deque[tuple[int, int, float]] = deque()  # (last id, bytes, when it was sent) of each request
        self.in_flight_bytes = 0
        self.waiting_since_s = now_s  # time since which requests are in flight and nothing more was accepted
        self.moved_s = now_s  # time when the peer last owed no acceptance, or accepted more, or took part of a message
        self.took_s = 0.0  # seconds from sending the entries that the peer accepted last to its acceptance
        self.heard_s = now_s
        self.sending_s = now_s  # time when part of a message last left for the peer
        self.really_heard = False
        self.asked_s = NEVER_S  # time when the peer was last sent a message that it answers
        self.sent_guaranteed_id = -1
        self.sent_fully_id = -1
        self.round = 0  # newest read round that it answered
        self.accepted_round = 0  # newest read round that it answered by an acceptance
        self.loading: int | None = None  # generation of the load under way
        self.loaded: list[Entry] | None = None
        self.stopping = False
        self.room = Room.PLENTY  # space on its disk, by its last answer
        self.doubted_round = 0  # the answer to this round tells whether the peer's disk went back; 0: no doubt
        self.doubted_id = 0  # last entry that it had acknowledged when the doubt began
        self.parting_until_s: float | None = None  # time until which a removed member is informed; None: a member

    def rewind(self) -> None:
        """Forget what is in flight and loaded, and send again from ``base_id`` on (R17)."""
        self.next_id = self.base_id + 1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.loading = None
        self.loaded = None

    def took(self, match_id: int, at_s: float) -> None:
        """Note that the peer holds everything up to ``match_id``, durably, and said so at ``at_s``."""
        self.matched = True
        self.probing = False
        if match_id > self.match_id:
            self.match_id = match_id
        self.base_id = self.match_id
        if self.next_id <= self.match_id:
            self.next_id = self.match_id + 1
        self._arrived(self.match_id, at_s)

    def wrote(self, written_id: int, at_s: float) -> bool:
        """Note that the peer has the log up to ``written_id`` on its disk, although not all of it counts as accepted,
        because some is damaged (R31). Returns True if that was not known."""
        self.next_id = max(self.next_id, written_id + 1)
        return self._arrived(written_id, at_s)

    def _arrived(self, id: int, at_s: float) -> bool:
        """Take what is in flight up to ``id`` off the pipeline; returns True if there was any."""
        before = len(self.in_flight)
        while self.in_flight and self.in_flight[0][0] <= id:
            _, size, sent_s = self.in_flight.popleft()
            self.in_flight_bytes -= size
            self.took_s = at_s - sent_s
        return len(self.in_flight) < before

    def owed_s(self, now_s: float) -> float:
        """The time for which the peer owes an acceptance, or that its last one took if that is longer; round trips are
        in it."""
        return max(self.took_s, now_s - self.in_flight[0][2] if self.in_flight else 0.0)

    def forgot(self) -> None:
        """Begin to match anew with a learner whose disk has forgotten entries: it counts for no majority (R31)."""
        self.match_id = self.last_id = self.doubted_round = 0
        self.matched = False


def next_in_turn(fit: list[Progress], tried: list[int]) -> Progress | None:
    """The first of ``fit`` whose id is not in ``tried``, which gets that id; None if ``fit`` is empty. Once all were
    tried, ``tried`` is emptied and all have another turn."""
    untried = [peer for peer in fit if peer.who.id not in tried]
    if not untried:
        tried.clear()
        untried = fit
    if not untried:
        return None
    tried.append(untried[0].who.id)
    return untried[0]
