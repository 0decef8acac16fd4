"""The elections of the 2012 draft, taken at its word, for comparison only; logs are their last id alone.

All timeouts are equal. A passive server whose timeout runs out stands at once. A refused candidate that outranks the
holder of the vote (last id, then server id) asks it to defer; votes, and votes held by those that deferred, make a
majority: a new cycle. A voter with a longer log refuses, and the candidate drops out. Nothing ends a cycle by time.

The draft leaves open from when a candidate that dropped out waits. ``patient``: its timeout begins anew. Otherwise at
its word: the timeout counts from the last message *of a leader or a candidate*, and a refusal is neither.
"""

from __future__ import annotations

from typing import NamedTuple

from .arena import Arena, Server


class Timers(NamedTuple):
    """Seconds."""

    timeout_s: float
    heartbeat_s: float


class RequestVote(NamedTuple):
    term: int
    last_id: int


class VoteReply(NamedTuple):
    """``holder``: 0 granted; the asked itself with ``longer``; else who has the vote, and its last id if known."""

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


class Heartbeat(NamedTuple):
    term: int


class HeartbeatReply(NamedTuple):
    term: int


class DraftServer(Server):
    """One server; ``last_id`` of its log."""

    def __init__(
        self, arena: Arena, id: int, timers: Timers, *, term: int, vote: int, last_id: int, patient: bool
    ) -> None:
        super().__init__(arena, id)
        self.timers = timers
        self.term, self.vote, self.last_id = term, vote, last_id
        self.patient = patient
        self.state = "passive"
        self.number = 0
        self.own_vote = 0  # the write that it waits for
        self.heard_s = arena.now_s  # the last message of a leader or a candidate
        self.known: dict[int, int] = {}  # candidates of this term -> last id
        self.votes: dict[int, bool] = {}
        self.held: dict[int, int] = {}  # voter -> holder
        self.deferred: dict[int, bool] = {}
        self._wait()

    @property
    def majority(self) -> int:
        return len(self.arena.ids) // 2 + 1

    def _wait(self) -> None:
        self.arena.wake(self, self.heard_s + self.timers.timeout_s)

    def _hear(self) -> None:
        self.heard_s = self.arena.now_s
        if self.state == "passive":
            self._wait()

    def _passive(self) -> None:
        self.state = "passive"
        self._wait()

    def _to_all(self, message: NamedTuple) -> list[tuple[int, NamedTuple]]:
        return [(id, message) for id in self.arena.ids if id != self.id]

    def _save(self, then: list[tuple[int, NamedTuple]]) -> None:
        self.number += 1
        self.arena.write(self, self.number, then)

    def _say(self, target: int, message: NamedTuple, changed: bool = False) -> None:
        if changed or self.writing or self.committing:
            self._save([(target, message)])
        else:
            self.arena.send(self.id, target, message)

    def lead(self) -> None:
        self.state = "leader"
        self.arena.wins_term(self.id, self.term)
        self._beat()

    def _beat(self) -> None:
        for target, message in self._to_all(Heartbeat(self.term)):
            self.arena.send(self.id, target, message)
        self.arena.wake(self, self.arena.now_s + self.timers.heartbeat_s)

    def woken(self) -> None:
        if self.state == "leader":
            self._beat()
        elif self.state == "passive":
            self._stand()

    def _stand(self) -> None:
        self.state = "candidate"
        self._set_term(self.term + 1, self.id)
        self.votes, self.held, self.deferred = {}, {}, {}
        self.own_vote = self.number + 1
        self.arena.stands(self.term)
        self._save(self._to_all(RequestVote(self.term, self.last_id)))

    def _set_term(self, term: int, vote: int) -> None:
        self.term, self.vote = term, vote
        self.known = {}

    def written(self, number: int) -> None:
        if self.own_vote and number >= self.own_vote:
            self.own_vote = 0
            if self.state == "candidate":
                self.votes[self.id] = True
                self._count()

    def _count(self) -> None:
        if len(self.votes) >= self.majority:
            self.lead()
        elif len(self.votes) + sum(holder in self.deferred for holder in self.held.values()) >= self.majority:
            self._stand()

    def _adopt(self, term: int) -> bool:
        if term <= self.term:
            return False
        self._set_term(term, 0)
        if self.state == "leader":
            self.heard_s = self.arena.now_s  # of itself
        if self.state != "passive":
            self._passive()
        return True

    # -- messages ---------------------------------------------------------------------------------------

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
        self._hear()
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
            self.votes[source] = True
            self._count()
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
