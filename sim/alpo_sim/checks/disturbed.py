"""A server that comes back from a partition deposes no healthy leader (R2).

A majority that says yes to a canvass holds nobody who has heard a live leader ever since the canvass began. So when a
leader falls to a higher term although a majority followed it all along, there was no such canvass. And whoever follows
a live leader refuses its vote and stays in its term (R4): else a request for votes that comes late deposes the leader.
Nobody gives up what he has won, nor a better candidacy, because he is asked to defer (R6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from alpo.core.disk import Write
from alpo.core.inputs import Input, Received
from alpo.core.members import Identity
from alpo.core.messages import DeferRequest, Envelope, HandOver, VoteRequest
from alpo.core.ranks import State
from alpo.core.ready import Ready

from ..broken import Broken
from ..host import Host

if TYPE_CHECKING:
    from ..stage import Stage

NEVER_US = -1


class Disturbed:
    """Knows of every server since when it follows, or is, a leader; of every term when its latest canvass began."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._seen: dict[int, tuple[int, State, float | None]] = {}  # server -> term, state, when it heard the leader
        self._since_us: dict[int, int] = {}
        self._canvass_us: dict[int, int] = {}
        self._began_us: dict[int, int] = {}
        self._leader: dict[int, Identity | None] = {}  # whom each followed after its last step

    def booted(self, host: Host) -> None:
        replica = host.replica
        assert replica is not None
        self._seen[host.id] = replica.term, replica.state, replica.heard_s
        self._since_us[host.id] = self._stage.now_us
        self._leader[host.id] = None
        self._canvass_us.pop(host.id, None)

    def sent(self, host: Host, envelope: Envelope) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        assert replica is not None
        before, leader = self._seen.get(host.id), self._leader.get(host.id)
        self._leader[host.id] = replica.leader
        now = term, state, _ = replica.term, replica.state, replica.heard_s
        for event in ready.events:
            if event.name == "canvass":
                self._canvass_us[host.id] = self._stage.now_us
            elif event.name == "deferred":
                self._check_deferred(host, before, inputs, ready)
        if now == before:
            return
        self._seen[host.id] = now
        if before is not None and term > before[0]:
            self._check_refused(host, before, leader, inputs)
        if before is None or before[:2] != (term, state) or _was_alone(host, before[2]):
            if before is not None and before[1] is State.LEADER and term > before[0]:
                self._check(host, before[0], term)
            self._since_us[host.id] = self._stage.now_us
        if state is State.CANDIDATE and (before is None or before[0] != term):
            self._stands(host, term)

    @staticmethod
    def _check_deferred(
        host: Host, before: tuple[int, State, float | None] | None, inputs: Sequence[Input], ready: Ready
    ) -> None:
        """``host`` was ``before``, and has made way for somebody."""
        replica = host.replica
        assert replica is not None and before is not None
        leads = before[1] is State.LEADER
        for event in ready.events:
            if event.name == "deferred" and leads:
                raise Broken("disturbed", f"leader {host.id} of term {replica.term} makes way when asked to defer")
            leads = event.name == "leader" or (leads and event.name != "passive")
        received = [each.envelope.message for each in inputs if isinstance(each, Received)]
        if before[:2] == (replica.term, State.CANDIDATE) and len(received) == 1:
            asked = received[0]
            if isinstance(asked, DeferRequest) and asked.rank < replica.rank:
                raise Broken("disturbed", f"candidate {host.id} of term {replica.term} makes way for one of lower rank")

    def _check_refused(
        self, host: Host, before: tuple[int, State, float | None], leader: Identity | None, inputs: Sequence[Input]
    ) -> None:
        """``host`` was ``before``, followed ``leader``, and has moved to a higher term."""
        term, state, heard_s = before
        messages: list[Any] = [each.envelope.message for each in inputs if isinstance(each, Received)]
        higher = [message for message in messages if getattr(message, "term", 0) > term]
        if len(higher) != 1 or not isinstance(higher[0], VoteRequest) or any(isinstance(m, HandOver) for m in messages):
            return  # something else may have moved it
        asker = next(e.envelope.sender for e in inputs if isinstance(e, Received) and e.envelope.message is higher[0])
        live = heard_s is not None and host.mono_s(self._stage.now_us) - heard_s < _patience_s(host)
        if (live or state is State.LEADER) and leader != asker and not higher[0].handed_over:
            raise Broken("disturbed", f"server {host.id} of term {term} has a live leader, and moves to term "
                         f"{higher[0].term} for server {asker.id}, which asks for votes")

    def _stands(self, host: Host, term: int) -> None:
        replica = host.replica
        assert replica is not None
        cycle = replica.election.cycle
        if cycle is not None and cycle.handed_over:  # the leader itself wished it
            self._began_us[term] = NEVER_US
        elif self._began_us.get(term) != NEVER_US:
            began_us = self._canvass_us.get(host.id, self._stage.now_us)
            self._began_us[term] = max(began_us, self._began_us.get(term, 0))

    def _check(self, host: Host, led: int, term: int) -> None:
        """``host`` led term ``led``, and knows of a higher one now."""
        replica = host.replica
        assert replica is not None
        began_us, members = self._began_us.get(term, NEVER_US), replica.members.latest
        followers = [
            voter.id for voter in members.voters
            if self._since_us.get(voter.id, 1 << 62) <= began_us and self._follows(voter.id, led, host)
        ]
        if len(followers) >= members.majority:
            raise Broken(
                "disturbed", f"leader {host.id} of term {led} is deposed by term {term}; servers {followers} followed "
                f"it since before anybody canvassed for that term"
            )

    def _follows(self, id: int, led: int, leader: Host) -> bool:
        host = self._stage.hosts[id]
        replica = host.replica
        if host is leader:
            return True
        if replica is None or replica.term != led or replica.leader is None or replica.leader.id != leader.id:
            return False
        heard_s, patience_s = replica.heard_s, _patience_s(host)
        return heard_s is not None and host.mono_s(self._stage.now_us) - heard_s < patience_s


def _patience_s(host: Host) -> float:
    replica = host.replica
    assert replica is not None
    return replica.cfg.election_timeout_s - replica.cfg.heartbeat_s


def _was_alone(host: Host, heard_s: float | None) -> bool:
    """Was there a time since ``heard_s`` at which it would have said yes?"""
    replica = host.replica
    assert replica is not None
    return heard_s is None or replica.heard_s is None or replica.heard_s - heard_s >= _patience_s(host)
