"""Checks of candidates against the answers that they got: only an electable candidate asks others to defer (R5), and
one with enough votes, and only such a one, stands anew (R7)."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.members import Identity
from alpo.core.messages import Defer, DeferAnswer, DeferRequest, Envelope, Vote, VoteAnswer
from alpo.core.ranks import State
from alpo.core.ready import Input, Ready, Received
from alpo.core.replica import Replica

from ..broken import Broken
from ..host import Host
from ..stage import Watcher


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
