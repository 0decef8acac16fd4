"""Checks that what messages say of the sender's disk is on it: terms, votes, acceptances, first starts (R14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from alpo.core.disk import StartState, Write
from alpo.core.members import Identity, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    CanvassAnswer,
    DeferAnswer,
    DeferRequest,
    Envelope,
    HandOver,
    StartAnswer,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.ready import Input, Ready

from ..broken import Broken
from ..host import Host
from ..stage import Watcher


class SendChecks(Watcher):
    """Check *durable before sent* of every message as it leaves. ``accepted``: disk -> id of the last entry that its
    server has told a leader to have accepted; `Safety` lowers it when entries are expunged."""

    def __init__(self) -> None:
        self.accepted: dict[Identity, int] = {}

    def sent(self, host: Host, envelope: Envelope) -> None:
        check = _BEFORE_SENT.get(type(envelope.message))
        if check is not None:
            check(self, host, envelope)

    @staticmethod
    def too_soon(host: Host, what: str) -> None:
        """Raise `Broken`: the server says ``what``, which is not on its disk."""
        raise Broken(
            "durable before sent",
            f"server {host.id} tells {what}; on disk: term {host.disk_term}, vote {host.disk_vote}, "
            f"last entry {host.disk_last_id}",
        )

    def _check_term(self, host: Host, envelope: Envelope) -> None:
        message: Any = envelope.message
        if message.term > host.disk_term:
            self.too_soon(host, f"{type(message).__name__} of term {message.term}")

    def _check_own_vote(self, host: Host, envelope: Envelope) -> None:
        message: Any = envelope.message
        if host.disk_term < message.term or (host.disk_term == message.term and host.disk_vote != host.id):
            self.too_soon(host, f"{type(message).__name__} of term {message.term}")

    def _check_vote(self, host: Host, envelope: Envelope) -> None:
        answer: Any = envelope.message
        self._check_term(host, envelope)
        replica = host.replica
        if answer.answer is Vote.GRANTED and replica is not None and not replica.first_start.started:
            raise Broken("first start", f"server {host.id} votes for {envelope.target.id}, and has not started")
        if answer.answer is Vote.GRANTED and host.disk_term == answer.request_term:
            if host.disk_vote != envelope.target.id:
                self.too_soon(host, f"its vote of term {answer.request_term} to {envelope.target.id}")

    def _check_acceptance(self, host: Host, envelope: Envelope) -> None:
        answer: Any = envelope.message
        self._check_term(host, envelope)
        if answer.ok and answer.term == host.disk_term and answer.match_id > host.disk_last_id:
            self.too_soon(host, f"its acceptance of entry {answer.match_id}")
        who = envelope.sender
        if answer.ok and answer.match_id > self.accepted.get(who, 0) and answer.term == host.disk_term:
            self.accepted[who] = answer.match_id

    def _check_defer(self, host: Host, envelope: Envelope) -> None:
        self._check_own_vote(host, envelope)
        replica, message = host.running, envelope.message
        cycle = replica.election.cycle
        if cycle is not None and isinstance(message, DeferRequest) and message.term == replica.term:
            if len(cycle.granted) + len(cycle.held) < replica.members.latest.majority:
                raise Broken("electable", f"server {host.id} asks {envelope.target.id} to defer, and is not electable")


_BEFORE_SENT: dict[type, Callable[[SendChecks, Host, Envelope], None]] = {
    CanvassAnswer: SendChecks._check_term,
    VoteRequest: SendChecks._check_own_vote,
    VoteAnswer: SendChecks._check_vote,
    DeferRequest: SendChecks._check_defer,
    DeferAnswer: SendChecks._check_term,
    AppendRequest: SendChecks._check_own_vote,
    AppendAnswer: SendChecks._check_acceptance,
    HandOver: SendChecks._check_own_vote,
}


class StartChecks(Watcher):
    """Check *durable before sent* of first starts: what a server says of its own is, or just was, on its disk."""

    def __init__(self) -> None:
        #: Disk -> the states through which its last commit went. A message that waited for one write of a commit leaves
        #: after the whole commit, and speaks of the state at that write.
        self._starts: dict[Identity, list[StartState]] = {}

    def booted(self, host: Host) -> None:
        self._starts[host.running.me] = [host.running.first_start.state]

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        self._starts[host.running.me].extend(write.start for write in writes if write.start is not None)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        del self._starts[host.running.me][:-1]

    def sent(self, host: Host, envelope: Envelope) -> None:
        if type(envelope.message) is StartAnswer:
            self._check_start_answer(host, envelope.message)

    def _check_start_answer(self, host: Host, answer: StartAnswer) -> None:
        states = self._starts[host.running.me]
        starting = answer.status is StartStatus.STARTING
        if not any(
            answer.status is state.status and (not starting or answer.incarnations == state.incarnations)
            for state in states
        ):
            SendChecks.too_soon(host, f"that it is {answer.status.name}, and is {states[-1].status.name}")
