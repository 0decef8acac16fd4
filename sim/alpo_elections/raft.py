"""Raft's elections as in its paper (sections 5.2 and 5.4.1), for comparison only; of a log there is only its end.

Laws: every timeout is drawn anew from the range. ``pre_vote``: the extensions of the thesis (its sections 9.6 and 6.2):
a server first asks whether it could win, and a leader that has not heard a majority for the shortest timeout steps
down.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from .arena import Arena, Heartbeat, HeartbeatReply, Voter


class Timers(NamedTuple):
    """Raft's timers; election timeouts are drawn from ``low_s`` to ``high_s``."""

    low_s: float
    high_s: float
    heartbeat_s: float


class RequestVote(NamedTuple):
    term: int
    log: tuple[int, int]
    pre: bool


class VoteReply(NamedTuple):
    """Answer to a request for a vote or a pre-vote; ``asked`` is the request's term."""

    term: int
    asked: int
    granted: bool
    pre: bool


class RaftServer(Voter):
    """Raft server; ``log`` is (last term, last id). States: follower, pre-candidate, candidate, leader."""

    def __init__(
        self, arena: Arena, id: int, timers: Timers, seed: int, *, term: int, vote: int, log: tuple[int, int],
        pre_vote: bool = False,
    ) -> None:
        super().__init__(arena, id, timers.heartbeat_s, term=term, vote=vote)
        self.timers = timers
        self.rng = random.Random(seed * 16 + id)
        self.log = log
        self.pre_vote = pre_vote
        self.state = "follower"
        self.heard_s = 0.0  # when a leader was last heard
        self.answered_s: dict[int, float] = {}  # server -> when it last answered this leader
        self._restart_timer()

    def _restart_timer(self) -> None:
        low_s, high_s, _ = self.timers
        self.arena.wake(self, self.arena.now_s + low_s + (high_s - low_s) * self.rng.random())

    def lead(self) -> None:
        self.answered_s = dict.fromkeys(self.arena.ids, self.arena.now_s)
        super().lead()

    def _beat(self) -> None:
        since_s = self.arena.now_s - self.timers.low_s
        self.answered_s[self.id] = self.arena.now_s
        if self.pre_vote and sum(at_s > since_s for at_s in self.answered_s.values()) < self.majority:
            self.state = "follower"
            return self._restart_timer()
        super()._beat()

    def woken(self) -> None:
        if self.state == "leader":
            self._beat()
        elif self.pre_vote:
            self.state = "pre-candidate"
            self.votes = {self.id: True}
            self._restart_timer()
            self._send_all(RequestVote(self.term + 1, self.log, True))
        else:
            self._stand()

    def _stand(self) -> None:
        self.state = "candidate"
        self.term += 1
        self.vote, self.votes = self.id, {}
        self._restart_timer()
        self._ask_for_votes(RequestVote(self.term, self.log, False))

    def _granted(self, voter: int) -> None:
        self.votes[voter] = True
        if len(self.votes) >= self.majority:
            if self.state == "candidate":
                self.lead()
            else:
                self._stand()

    def _adopt(self, term: int) -> bool:
        """Take a higher term, which makes the server a follower; False if ``term`` is not higher."""
        if term <= self.term:
            return False
        self.term, self.vote = term, 0
        if self.state == "leader":
            self._restart_timer()
        self.state = "follower"
        return True

    def receive(self, source: int, message: NamedTuple) -> None:
        if isinstance(message, RequestVote):
            self._on_pre(source, message) if message.pre else self._on_request(source, message)
        elif isinstance(message, VoteReply):
            self._on_reply(source, message)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(source, message)
        elif isinstance(message, HeartbeatReply):
            self.answered_s[source] = self.arena.now_s
            if self._adopt(message.term):
                self._save([])

    def _on_pre(self, source: int, request: RequestVote) -> None:
        lively = self.state == "leader" or self.arena.now_s - self.heard_s < self.timers.low_s
        granted = request.term > self.term and request.log >= self.log and not lively
        self._say(source, VoteReply(self.term, request.term, granted, True), False)

    def _on_request(self, source: int, request: RequestVote) -> None:
        changed = self._adopt(request.term)
        granted = request.term == self.term and self.vote in (0, source) and request.log >= self.log
        if granted:
            changed = changed or self.vote == 0
            self.vote = source
            self._restart_timer()
        self._say(source, VoteReply(self.term, request.term, granted, False), changed)

    def _on_reply(self, source: int, reply: VoteReply) -> None:
        if self._adopt(reply.term):
            self._save([])
        elif reply.granted:
            awaited = ("pre-candidate", self.term + 1) if reply.pre else ("candidate", self.term)
            if (self.state, reply.asked) == awaited:
                self._granted(source)

    def _on_heartbeat(self, source: int, heartbeat: Heartbeat) -> None:
        changed = self._adopt(heartbeat.term)
        if heartbeat.term == self.term:
            self.state = "follower"
            self.heard_s = self.arena.now_s
            self._restart_timer()
            self.arena.follows(self.id, source)
        self._say(source, HeartbeatReply(self.term), changed)
