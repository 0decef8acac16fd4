"""Checks of what leaves a server, and of the runs that leaders make.

What messages say of the sender's disk is on it: terms, votes, acceptances, first starts (R14). What is still on its way
is not sent again (R17). Runs keep their size, and what they add to what is in flight (R21, R32).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from alpo.core.disk import StartState, Write
from alpo.core.entries import RUN_BYTES_MAX, Entry, Kind, parse_body, parts, serials_of
from alpo.core.members import Identity, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    CanvassAnswer,
    DeferAnswer,
    DeferRequest,
    Envelope,
    HandOver,
    SnapshotAnswer,
    StartAnswer,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.ranks import State
from alpo.core.ready import Connected, Disconnected, Input, Moving, Ready, Received

from ..host import Host
from ..stage import Stage, Watcher
from . import Broken


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


#: Part of an election timeout within which bytes must have moved: clocks run at different rates.
_RECENT = 0.9


class _Told:
    """Record of what one leader has sent one peer, over one connection, in one reign."""

    def __init__(self, term: int, boots: int, base_id: int, now_us: int) -> None:
        self.reign = term, boots, base_id
        self.last_id = 0
        self.moved_us = now_us  # time when bytes last moved, or nothing was in flight
        self.moves = False  # bytes have moved since nothing was in flight


class ResendChecks(Watcher):
    """Check *sent once*: entries that a leader has sent, and of which bytes still leave, are not sent a second time.

    A connection that is made anew or stood still for an election timeout, a refusal, a snapshot and a cleaning are
    reasons to begin again.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._told: dict[tuple[int, int], _Told] = {}

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for each in inputs:
            if isinstance(each, Connected | Disconnected):
                self._told.pop((host.id, each.peer), None)
            elif isinstance(each, Moving) and not each.incoming:
                pair = host.id, each.who.id
                told = self._told.get(pair)
                if told is not None and self._stands(told):  # entries sent may count as lost; the link moves again
                    told = self._told[pair] = _Told(*told.reign, self._stage.now_us)
                if told is not None:
                    told.moved_us, told.moves = self._stage.now_us, True
            elif isinstance(each, Received):
                message = each.envelope.message
                if isinstance(message, SnapshotAnswer) or (isinstance(message, AppendAnswer) and not message.ok):
                    self._told.pop((host.id, each.envelope.sender.id), None)

    def sent(self, host: Host, envelope: Envelope) -> None:
        message = envelope.message
        if not isinstance(message, AppendRequest) or not message.entries:
            return
        pair, replica = (host.id, envelope.target.id), host.running
        told, reign = self._told.get(pair), (message.term, host.boots, replica.log.base_id)
        if told is None or told.reign[:2] != reign[:2]:
            told = self._told[pair] = _Told(*reign, self._stage.now_us)
        elif told.reign != reign or self._stands(told):  # neither means that what is in flight has moved
            told = self._told[pair] = _Told(*reign, told.moved_us)
        if told.moves and message.entries[0].id <= told.last_id:
            what = f"entry {message.entries[0].id} to {envelope.target.id}"
            raise Broken("sent once", f"server {host.id} sends {what} again while it is still on its way")
        leadership = replica.leadership
        if leadership is not None and len(leadership.peers[pair[1]].in_flight) == 1:
            told.moved_us, told.moves = self._stage.now_us, False
        told.last_id = max(told.last_id, message.entries[-1].id)

    def _stands(self, told: _Told) -> bool:
        """True if nothing has moved for so long that what is in flight may count as lost."""
        return self._stage.now_us - told.moved_us >= self._stage.timers.election_timeout_s * _RECENT * 1e6


_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)


class RunChecks(Watcher):
    """Check *bounds*: of the size of runs, and of the number of serials in flight."""

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        if ready.write is not None and host.running.state is State.LEADER:
            self._check_appended(host, ready.write.entries)

    def _check_appended(self, host: Host, entries: Sequence[Entry]) -> None:
        """Check the entries that a leader has just appended."""
        for entry in entries:
            if serials_of(entry.digest) > 1 and sum(len(part.body) for part in parts(entry)) > RUN_BYTES_MAX:
                raise Broken("bounds", f"entry {entry.id} is a run of more than {RUN_BYTES_MAX} bytes")
        if all(entry.kind != _DATA for entry in entries):
            return
        settings, flying = host.running.settings, self._flying(host)
        if flying is None:
            return
        if flying.total() > settings.window_total:
            raise Broken("bounds", f"leader {host.id} has {flying.total()} serials in flight")
        for client in {entry.client for entry in entries if entry.kind == _DATA}:
            if flying[client] > settings.window:
                raise Broken("bounds", f"leader {host.id} has {flying[client]} serials of {client} in flight")

    def _flying(self, host: Host) -> Counter[str] | None:
        """Count the serials of each client that a server holds and does not know as guaranteed; None if the window
        changes there: a smaller one may forget what is in flight."""
        replica = host.running
        flying: Counter[str] = Counter()
        known_id = max(replica.guaranteed_id, replica.applied_id)  # entries in its table on disk are guaranteed
        for id in range(known_id + 1, replica.log.last_id + 1):
            entry = replica.log.entry(id) or host.store.read_entries(id, id, 1)[0]
            if entry.kind == _DATA:
                flying[entry.client] += serials_of(entry.digest)
            elif entry.kind == _SESSION and parse_body(entry).get("op") == "drop":
                del flying[entry.client]  # its serials are no longer remembered
            elif entry.kind == _SETTINGS:
                return None
        return flying
