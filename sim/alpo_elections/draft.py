"""The elections of ALPO's 2012 draft, taken at its word, for comparison only; of a log there is only its last id.

All timeouts are equal. A passive server whose timeout runs out stands at once. A refused candidate that outranks the
holder of the vote (last id, then server id) asks it to defer. Once the votes granted, and those held by servers that
deferred, are a majority, a new cycle begins. A voter with a longer log refuses, and the candidate drops out. No cycle
ends by time.

The draft does not say from when the timeout of a candidate that dropped out counts. ``patient``: from the refusal.
Otherwise literally: from the last message *of a leader or a candidate*, and a refusal is neither.
"""

from __future__ import annotations

from typing import NamedTuple

from .arena import Arena, Heartbeat, HeartbeatReply, Voter


class RequestVote(NamedTuple):
    term: int
    last_id: int


class VoteReply(NamedTuple):
    """Answer to a request for a vote. ``holder``: 0 if granted; the answering server, with ``longer``, if its log is
    longer; else the server that has the vote, and its last id if known."""

    term: int
    asked: int
    holder: int
    holder_last_id: int
    longer: bool


class Defer(NamedTuple):
    term: int


class DeferReply(NamedTuple):
    term: int
    asked: int
    leads: bool


class DraftServer(Voter):
    """Server of the draft; ``last_id`` is the last id of its log. States: passive, candidate, leader."""

    def __init__(
        self, arena: Arena, id: int, timeout_s: float, heartbeat_s: float, *, term: int, vote: int, last_id: int,
        patient: bool,
    ) -> None:
        super().__init__(arena, id, heartbeat_s, term=term, vote=vote)
        self.timeout_s, self.last_id, self.patient = timeout_s, last_id, patient
        self.heard_s = arena.now_s  # time when a leader or a candidate was last heard
        self.known: dict[int, int] = {}  # candidates of this term -> last id
        self.held: dict[int, int] = {}  # voter -> holder
        self.deferred: dict[int, bool] = {}
        self._passive()

    def _passive(self) -> None:
        self.state = "passive"
        self.arena.wake(self, self.heard_s + self.timeout_s)

    def woken(self) -> None:
        if self.state == "leader":
            self._beat()
        elif self.state == "passive":
            self._stand()

    def _stand(self) -> None:
        self.state = "candidate"
        self._set_term(self.term + 1, self.id)
        self.votes, self.held, self.deferred = {}, {}, {}
        self._ask_for_votes(RequestVote(self.term, self.last_id))

    def _set_term(self, term: int, vote: int) -> None:
        self.term, self.vote = term, vote
        self.known = {}

    def _granted(self, voter: int) -> None:
        self.votes[voter] = True
        self._count()

    def _count(self) -> None:
        if len(self.votes) >= self.majority:
            self.lead()
        elif len(self.votes) + sum(holder in self.deferred for holder in self.held.values()) >= self.majority:
            self._stand()

    def _adopt(self, term: int) -> bool:
        """Take a higher term, which makes the server passive; False if ``term`` is not higher."""
        if term <= self.term:
            return False
        self._set_term(term, 0)
        if self.state == "leader":
            self.heard_s = self.arena.now_s  # of itself
        if self.state != "passive":
            self._passive()
        return True

    def receive(self, source: int, message: NamedTuple) -> None:
        if isinstance(message, RequestVote):
            self._on_request(source, message)
        elif isinstance(message, VoteReply):
            self._on_reply(source, message)
        elif isinstance(message, Defer):
            self._on_defer(source, message)
        elif isinstance(message, DeferReply):
            self._on_deferred(source, message)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(source, message)
        elif isinstance(message, HeartbeatReply) and self._adopt(message.term):
            self._save([])

    def _on_request(self, source: int, request: RequestVote) -> None:
        changed = self._adopt(request.term)
        self.heard_s = self.arena.now_s
        if self.state == "passive":
            self._passive()
        holder, holder_last_id, longer = self.vote, self.known.get(self.vote, 0), False
        if request.term == self.term:
            self.known[source] = request.last_id
            if self.last_id > request.last_id:
                holder, holder_last_id, longer = self.id, self.last_id, True
            elif self.vote in (0, source):
                changed = changed or self.vote == 0
                self.vote, holder = source, 0
            elif self.vote == self.id:
                holder_last_id = self.last_id
        self._say(source, VoteReply(self.term, request.term, holder, holder_last_id, longer), changed)

    def _on_reply(self, source: int, reply: VoteReply) -> None:
        if self._adopt(reply.term):
            return self._save([])
        if self.state != "candidate" or reply.asked != self.term:
            return
        if reply.longer:
            if self.patient:
                self.heard_s = self.arena.now_s
            self._passive()
        elif reply.holder == 0:
            self._granted(source)
        else:
            self.held[source] = reply.holder
            if (self.last_id, self.id) > (reply.holder_last_id, reply.holder):
                self._say(reply.holder, Defer(self.term))
            self._count()

    def _on_defer(self, source: int, request: Defer) -> None:
        changed = self._adopt(request.term)
        leads = self.state == "leader" and request.term == self.term
        if not leads:
            self.heard_s = self.arena.now_s
            self._passive()
        self._say(source, DeferReply(self.term, request.term, leads), changed)

    def _on_deferred(self, source: int, reply: DeferReply) -> None:
        if self._adopt(reply.term):
            return self._save([])
        if self.state != "candidate" or reply.asked != self.term:
            return
        if reply.leads:
            self.heard_s = self.arena.now_s
            self._passive()
        else:
            self.deferred[source] = True
            self._count()

    def _on_heartbeat(self, source: int, heartbeat: Heartbeat) -> None:
        changed = self._adopt(heartbeat.term)
        if heartbeat.term == self.term and self.state != "leader":
            self.heard_s = self.arena.now_s
            self._passive()
            self.arena.follows(self.id, source)
        self._say(source, HeartbeatReply(self.term), changed)
