"""Raft's elections as in its paper (section 5.2, 5.4.1), for comparison only; logs are (last term, last id).

Laws: a term and a vote are on disk before anything is said from them; timeouts are drawn afresh for every wait from
[low, high]. ``pre_vote``: the thesis's variants (its sections 9.6 and 6.2): a server first asks whether it could win,
and a leader that has not heard a majority for a lowest timeout steps down.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from .arena import Arena, Server


class Timers(NamedTuple):
    """Seconds."""

    low_s: float
    high_s: float
    heartbeat_s: float


class RequestVote(NamedTuple):
    term: int
    log: tuple[int, int]
    pre: bool


class VoteReply(NamedTuple):
    """``asked`` is the request's term."""

    term: int
    asked: int
    granted: bool
    pre: bool


class Heartbeat(NamedTuple):
    term: int


class HeartbeatReply(NamedTuple):
    term: int


class RaftServer(Server):
    """``log``: (last term, last id). A leader's heartbeats begin at once."""

    def __init__(
        self, arena: Arena, id: int, timers: Timers, seed: int, *, term: int, vote: int, log: tuple[int, int],
        pre_vote: bool = False,
    ) -> None:
        super().__init__(arena, id)
        self.timers = timers
        self.rng = random.Random(seed * 16 + id)
        self.term, self.vote, self.log = term, vote, log
        self.pre_vote = pre_vote
        self.state = "follower"
        self.votes: dict[int, bool] = {}
        self.heard_s = 0.0  # of a leader
        self.answered_s: dict[int, float] = {}  # when, as heard by a leader
        self.number = 0
        self.own_vote = 0  # the write that it waits for
        self._restart_timer()

    @property
    def majority(self) -> int:
        return len(self.arena.ids) // 2 + 1

    def _restart_timer(self) -> None:
        low_s, high_s, _ = self.timers
        self.arena.wake(self, self.arena.now_s + low_s + (high_s - low_s) * self.rng.random())

    def _to_all(self, message: NamedTuple) -> list[tuple[int, NamedTuple]]:
        return [(id, message) for id in self.arena.ids if id != self.id]

    def _save(self, then: list[tuple[int, NamedTuple]]) -> None:
        self.number += 1
        self.arena.write(self, self.number, then)

    def lead(self) -> None:
        self.state = "leader"
        self.arena.wins_term(self.id, self.term)
        self.answered_s = dict.fromkeys(self.arena.ids, self.arena.now_s)
        self._beat()

    def _beat(self) -> None:
        since_s = self.arena.now_s - self.timers.low_s
        self.answered_s[self.id] = self.arena.now_s
        if self.pre_vote and sum(at_s > since_s for at_s in self.answered_s.values()) < self.majority:
            self.state = "follower"
            return self._restart_timer()
        for target, message in self._to_all(Heartbeat(self.term)):
            self.arena.send(self.id, target, message)
        self.arena.wake(self, self.arena.now_s + self.timers.heartbeat_s)

    def woken(self) -> None:
        if self.state == "leader":
            self._beat()
        elif self.pre_vote:
            self.state = "pre-candidate"
            self.votes = {self.id: True}
            self._restart_timer()
            for target, message in self._to_all(RequestVote(self.term + 1, self.log, True)):
                self.arena.send(self.id, target, message)
        else:
            self._stand()

    def _stand(self) -> None:
        self.state = "candidate"
        self.term += 1
        self.vote = self.id
        self.votes = {}
        self.own_vote = self.number + 1
        self._restart_timer()
        self.arena.stands(self.term)
        self._save(self._to_all(RequestVote(self.term, self.log, False)))

    def written(self, number: int) -> None:
        if self.own_vote and number >= self.own_vote:
            self.own_vote = 0
            if self.state == "candidate":
                self._count(self.id)

    def _count(self, voter: int) -> None:
        self.votes[voter] = True
        if len(self.votes) < self.majority:
            return
        if self.state == "candidate":
            self.lead()
        else:
            self._stand()

    def _adopt(self, term: int) -> bool:
        """A higher term makes a follower of anybody."""
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
        self._reply(source, VoteReply(self.term, request.term, granted, True), False)

    def _on_request(self, source: int, request: RequestVote) -> None:
        changed = self._adopt(request.term)
        granted = request.term == self.term and self.vote in (0, source) and request.log >= self.log
        if granted:
            changed = changed or self.vote == 0
            self.vote = source
            self._restart_timer()
        self._reply(source, VoteReply(self.term, request.term, granted, False), changed)

    def _reply(self, target: int, message: NamedTuple, changed: bool) -> None:
        if changed or self.writing or self.committing:
            self._save([(target, message)])
        else:
            self.arena.send(self.id, target, message)

    def _on_reply(self, source: int, reply: VoteReply) -> None:
        if self._adopt(reply.term):
            self._save([])
        elif reply.granted:
            awaited = ("pre-candidate", self.term + 1) if reply.pre else ("candidate", self.term)
            if (self.state, reply.asked) == awaited:
                self._count(source)

    def _on_heartbeat(self, source: int, heartbeat: Heartbeat) -> None:
        changed = self._adopt(heartbeat.term)
        if heartbeat.term == self.term:
            self.state = "follower"
            self.heard_s = self.arena.now_s
            self._restart_timer()
            self.arena.follows(self.id, source)
        self._reply(source, HeartbeatReply(self.term), changed)
