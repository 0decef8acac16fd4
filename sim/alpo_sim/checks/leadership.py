"""Checks of how reigns begin and end.

Only an electable candidate asks others to defer (R5), and one with enough votes, and only such a one, stands anew (R7).
Nobody deposes a healthy leader (R2, R4, R6); one that no majority hears steps down (R15); a server whose disk hangs has
no part in it (R34).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from alpo.core.members import Identity
from alpo.core.messages import (
    AppendAnswer,
    CanvassAnswer,
    CanvassRequest,
    Defer,
    DeferAnswer,
    DeferRequest,
    Envelope,
    HandOver,
    SnapshotAnswer,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.ranks import State
from alpo.core.ready import Input, Moving, PeerGone, Ready, Received
from alpo.core.replica import Replica
from alpo.core.requests import (
    Appended,
    AppendRun,
    Initialise,
    Origin,
    ReadIndex,
    Refused,
    Reply,
    Request,
    Transfer,
)

from ..host import Host
from ..stage import Stage, Watcher
from . import Broken


class Answered:
    """Answers that a candidate got in a term. ``granted``: voters that gave it their vote; ``held``: voter -> candidate
    that has its vote (R5); ``deferred``: candidates that made way; ``voters``: all of whom an answer came."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.granted: dict[int, bool] = {}
        self.held: dict[int, int] = {}
        self.deferred: dict[int, bool] = {}
        self.voters: set[Identity] = set()

    def note(self, sender: Identity, answer: VoteAnswer | DeferAnswer) -> None:
        self.voters.add(sender)
        if isinstance(answer, DeferAnswer):
            if answer.answer is Defer.DEFERRED:
                self.deferred[sender.id] = True
        elif answer.answer is Vote.GRANTED:
            self.granted[sender.id] = True
            self.held.pop(sender.id, None)
        elif answer.answer is Vote.HELD:
            self.held[sender.id] = answer.holder

    @property
    def electable(self) -> int:
        """Number of other voters that granted their vote or said who has it."""
        return len(self.granted.keys() | self.held.keys())

    @property
    def free(self) -> int:
        """Number of other voters' votes that were granted, or that a server that made way has (R7)."""
        return len(self.granted) + sum(holder in self.deferred for holder in self.held.values())


class CandidateChecks(Watcher):
    """Check *electable*: counts votes and deferrals by the answers that came in, not by the candidate's own count."""

    def __init__(self) -> None:
        self._answered: dict[int, Answered] = {}  # candidate -> what it was told in its latest term
        self._stood: dict[int, int] = {}  # server -> the term in which it stood after its last step, or 0

    def booted(self, host: Host) -> None:
        self._answered.pop(host.id, None)
        self._stood[host.id] = 0

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        for each in inputs:
            if type(each) is Received and isinstance(each.envelope.message, VoteAnswer | DeferAnswer):
                if each.envelope.target == replica.me:
                    self._note_answer(host, each.envelope.sender, each.envelope.message)
        self._check_stands(host, replica)
        self._check_waits(host, replica)

    def sent(self, host: Host, envelope: Envelope) -> None:
        if type(envelope.message) is DeferRequest:
            self._check_electable(host, envelope.message)

    def _note_answer(self, host: Host, sender: Identity, answer: VoteAnswer | DeferAnswer) -> None:
        known = self._answered.get(host.id)
        if known is None or known.term < answer.request_term:
            known = self._answered[host.id] = Answered(answer.request_term)
        if known.term == answer.request_term:  # else the answer is late
            known.note(sender, answer)

    def _check_electable(self, host: Host, request: DeferRequest) -> None:
        known = self._answered.get(host.id)
        others = known.electable if known is not None and known.term == request.term else 0
        count = host.running.members.i_vote + others  # a candidate that is being removed has no vote
        if count < host.running.members.latest.majority:
            raise Broken("electable", f"server {host.id} asks others to defer; {count} granted or held in its term")

    def _check_waits(self, host: Host, replica: Replica) -> None:
        """Check that no candidate waits that might stand anew, whichever answer came last (R7)."""
        known = self._answered.get(host.id)
        if known is None or known.term != replica.term or replica.state is not State.CANDIDATE:
            return
        members, free = replica.members.latest, replica.members.i_vote + known.free
        if known.deferred and free >= members.majority and known.voters <= {v.identity for v in members.voters}:
            raise Broken("electable", f"candidate {host.id} waits in term {known.term}; {free} votes of it were "
                         "granted or given up")

    def _check_stands(self, host: Host, replica: Replica) -> None:
        """Check that a candidate that stands anew has enough votes, granted or given up by their holders (R7)."""
        stood = self._stood.get(host.id, 0)
        self._stood[host.id] = replica.term if replica.state is State.CANDIDATE else 0
        cycle = replica.election.cycle
        if not stood or cycle is None or replica.term != stood + 1 or cycle.handed_over:
            return
        known = self._answered.get(host.id)
        others = known.free if known is not None and known.term == stood else 0
        free = replica.members.i_vote + others
        if free < replica.members.latest.majority:
            raise Broken("electable", f"candidate {host.id} stands anew, in term {replica.term}; {free} votes of term "
                         f"{stood} were granted or given up")


#: Requests that need a leader's answer. (A transfer is answered by a server that has stopped leading; the first start
#: needs no leader.)
_ASKED = frozenset((AppendRun, ReadIndex, *get_args(Request))) - {Transfer, Initialise}
#: Tolerance for the rounding of clocks.
_SLACK_S = 1e-6
#: Value in the place of a canvass's time, for a term to which the leader itself handed over.
_HANDED_OVER_US = -1


class DepositionChecks(Watcher):
    """Check *disturbed*: a server that comes back from a partition deposes no healthy leader (R2).

    A canvass succeeds only if a majority has not heard a live leader all the time since it began. So a leader must not
    fall to a higher term if a majority followed it all along. A server that follows a live leader refuses its vote and
    stays in its term (R4): otherwise a late request for votes would depose the leader. A request to defer makes no
    server give up a won election, or a candidacy of higher rank (R6).
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._seen: dict[int, tuple[int, State, float | None]] = {}  # server -> term, state, when it heard its leader
        self._since_us: dict[int, int] = {}  # server -> since when it follows, or is, this leader
        self._canvass_us: dict[int, int] = {}  # server -> when the first round began whose answers count in its last
        self._began_us: dict[int, int] = {}  # term -> when the latest canvass for it began
        self._gone: set[int] = set()  # servers that were told that their leader is gone, and did not hear it since
        self._leader: dict[int, Identity | None] = {}  # server -> whom it followed after its last step

    def booted(self, host: Host) -> None:
        replica = host.running
        self._seen[host.id] = replica.term, replica.state, replica.heard_s
        self._since_us[host.id] = self._stage.now_us
        self._leader[host.id] = None
        self._gone.discard(host.id)
        self._canvass_us.pop(host.id, None)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        before, leader = self._seen.get(host.id), self._leader.get(host.id)
        self._leader[host.id] = replica.leader
        now = term, state, heard_s = replica.term, replica.state, replica.heard_s
        told = [each.peer for each in inputs if isinstance(each, PeerGone) and each.peer in (leader, replica.leader)]
        if told:
            self._gone.add(host.id)
            self._since_us[host.id] = self._stage.now_us
        for event in ready.events:
            if event.name == "canvass":
                self._canvass_us[host.id] = self._canvassed_us(replica)
            elif event.name == "deferred":
                self._check_deferred(host, before, inputs, ready)
        if now == before:
            return
        self._seen[host.id] = now
        if before is not None and term > before[0]:
            self._check_refused(host, before, leader, inputs)
        if not told and before is not None and heard_s not in (None, before[2]) and host.id in self._gone:
            self._gone.discard(host.id)
            self._since_us[host.id] = self._stage.now_us
        if before is None or before[:2] != (term, state) or _was_alone(host, before[2]):
            if before is not None and before[1] is State.LEADER and term > before[0]:
                self._check(host, before[0], term)
            self._since_us[host.id] = self._stage.now_us
        if state is State.CANDIDATE and (before is None or before[0] != term):
            self._stands(host, term)

    def _canvassed_us(self, replica: Replica) -> int:
        """The time at which the first round began whose answers, which come late, still count."""
        round_now = replica.election.round
        if round_now is None:  # one that was answered at once
            return self._stage.now_us
        first_s = min(round_now.earlier.values(), default=round_now.began_s)
        return self._stage.now_us - round((replica.now_s - first_s) * 1e6)

    @staticmethod
    def _check_deferred(
        host: Host, before: tuple[int, State, float | None] | None, inputs: Sequence[Input], ready: Ready
    ) -> None:
        """Check a step in which a server made way; ``before``: its term, state, and when it had last heard a leader."""
        replica = host.running
        assert before is not None
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
        """Check a step in which a server, which was ``before`` and followed ``leader``, moved to a higher term."""
        term, state, heard_s = before
        messages: list[Any] = [each.envelope.message for each in inputs if isinstance(each, Received)]
        higher = [message for message in messages if getattr(message, "term", 0) > term]
        if len(higher) != 1 or not isinstance(higher[0], VoteRequest) or any(isinstance(m, HandOver) for m in messages):
            return  # other messages may be the reason
        asker = next(e.envelope.sender for e in inputs if isinstance(e, Received) and e.envelope.message is higher[0])
        live = heard_s is not None and host.mono_s(self._stage.now_us) - heard_s < _patience_s(host)
        live = live and host.id not in self._gone
        if (live or state is State.LEADER) and leader != asker and not higher[0].handed_over:
            raise Broken("disturbed", f"server {host.id} of term {term} has a live leader, and moves to term "
                         f"{higher[0].term} for server {asker.id}, which asks for votes")

    def _stands(self, host: Host, term: int) -> None:
        replica = host.running
        cycle = replica.election.cycle
        if cycle is not None and cycle.handed_over:  # its leader handed over
            self._began_us[term] = _HANDED_OVER_US
        elif self._began_us.get(term) != _HANDED_OVER_US:
            began_us = self._canvass_us.get(host.id, self._stage.now_us)
            self._began_us[term] = max(began_us, self._began_us.get(term, 0))

    def _check(self, host: Host, led: int, term: int) -> None:
        """Check a step in which a leader of term ``led`` learnt of the higher term ``term``."""
        replica = host.running
        began_us, members = self._began_us.get(term, _HANDED_OVER_US), replica.members.latest
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
        if id in self._gone:
            return False
        heard_s, patience_s = replica.heard_s, _patience_s(host)
        return heard_s is not None and host.mono_s(self._stage.now_us) - heard_s < patience_s


def _patience_s(host: Host) -> float:
    """Seconds after a leader's message for which a server takes the leader for alive."""
    replica = host.running
    return replica.cfg.election_timeout_s - replica.cfg.heartbeat_s


def _was_alone(host: Host, heard_s: float | None) -> bool:
    """True if at some time since ``heard_s`` the server would have said yes to a canvass."""
    replica = host.running
    return heard_s is None or replica.heard_s is None or replica.heard_s - heard_s >= _patience_s(host)


class HungDiskChecks(Watcher):
    """Check *hung disk*: a server with a write under way for longer than it waits for its disk has no part in elections
    (R34); a candidacy that it has begun may go on. Times of writes are noted here independently, by the server's own
    monotonic clock."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._handed_s: dict[int, dict[int, float]] = {}  # server -> write under way -> when it was handed out

    def booted(self, host: Host) -> None:
        self._handed_s[host.id] = {}

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        now_s, handed_s = host.mono_s(self._stage.now_us), self._handed_s[host.id]
        patience_s = host.running.cfg.disk_patience_s
        for number in [number for number in handed_s if not host.writes or number < host.writes[0].number]:
            del handed_s[number]
        owed_s = now_s - next(iter(handed_s.values()), now_s)
        if owed_s > patience_s + _SLACK_S:
            for envelope in [*ready.send, *ready.send_after_write]:
                if isinstance(envelope.message, CanvassRequest | CanvassAnswer | VoteAnswer):
                    raise Broken("hung disk", f"server {host.id} says {type(envelope.message).__name__} to "
                                 f"{envelope.target.id}; its disk owes a write for {owed_s:.3f} s")
        if ready.write is not None:
            handed_s[ready.write.number] = now_s


class ReignChecks(Watcher):
    """Checks *steps down*: a leader that no majority answers, or is being sent messages, stops leading (R15); and
    *answered*: no client waits for a server that has stopped leading (R24, R25).

    Times of answers are noted here independently, by the leader's own monotonic clock. A request waits from the moment
    at which a leader takes it until all its replies have left, or until the leader's process ends.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._reign: dict[int, int] = {}  # server -> the term that it led after its last step
        self._heard_s: dict[int, dict[Identity, float]] = {}  # leader -> voter -> when it answered last
        self._waiting: dict[int, dict[Origin, int]] = {}  # server -> request -> replies still to come

    def booted(self, host: Host) -> None:
        self._reign[host.id] = 0
        self._waiting[host.id] = {}

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        waiting = self._waiting[host.id]
        for each in inputs:
            if type(each) in _ASKED:
                asked: Any = each
                waiting[asked.origin] = waiting.get(asked.origin, 0) + (
                    len(asked.bodies) if type(each) is AppendRun else 1
                )
        for reply in ready.replies:
            self._replied(waiting, reply)
        if replica.state is State.LEADER:
            self._leads(host, replica, inputs)
            if not replica.members.i_vote and replica.members.latest_id <= replica.guaranteed_id:
                raise Broken("steps down", f"server {host.id} leads term {replica.term}, and is no member any more")
        else:
            self._reign[host.id] = 0
            if waiting:
                raise Broken("answered", f"server {host.id} does not lead, and has not answered {next(iter(waiting))}")

    @staticmethod
    def _replied(waiting: dict[Origin, int], reply: Reply) -> None:
        done = len(reply.lsns) if isinstance(reply, Appended) else reply.count if isinstance(reply, Refused) else 1
        left = waiting.get(reply.origin, 0) - max(1, done)
        if left > 0:
            waiting[reply.origin] = left
        else:
            waiting.pop(reply.origin, None)

    def _leads(self, host: Host, replica: Replica, inputs: Sequence[Input]) -> None:
        now_s = host.mono_s(self._stage.now_us)
        if self._reign[host.id] != replica.term:
            self._reign[host.id] = replica.term
            self._heard_s[host.id] = {}
        heard_s = self._heard_s[host.id]
        for each in inputs:
            if type(each) is Received and isinstance(each.envelope.message, AppendAnswer | SnapshotAnswer):
                if each.envelope.message.term == replica.term:
                    self._heard(heard_s, each.envelope.sender, each.at_s)
            elif type(each) is Moving and not each.incoming:
                self._heard(heard_s, each.who, min(each.at_s, now_s))
        self._check_heard(host, replica, heard_s, now_s)

    @staticmethod
    def _heard(heard_s: dict[Identity, float], who: Identity, at_s: float) -> None:
        heard_s[who] = max(at_s, heard_s.get(who, at_s))

    @staticmethod
    def _check_heard(host: Host, replica: Replica, heard_s: dict[Identity, float], now_s: float) -> None:
        members = replica.members.latest
        # A voter counts as heard when the reign, or its own membership, begins.
        since_s = now_s - replica.cfg.election_timeout_s - _SLACK_S
        count = sum(v.identity == replica.me or heard_s.setdefault(v.identity, now_s) > since_s for v in members.voters)
        if count < members.majority:
            raise Broken("steps down", f"server {host.id} leads term {replica.term}, and has heard from {count} of "
                         f"{len(members.voters)} within an election timeout")
