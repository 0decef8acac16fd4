"""Servers one at a time: what each state of one does with each thing that may happen to it, worked out once.

A state of the whole cluster is a tuple of such states and of messages on their way, all by number; an action moves one
server. There are far fewer states of one server than of all, so the real core runs once for each pair of a state and
an action, and the search itself only looks up numbers.

Laws:

* Equal states (`canon`) have one number, in the order in which they were first met: the same in every process.
* A message delivered, or a write that becomes durable, is a step of its own: what a server that is busy takes in one
  step with others is not searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from alpo.core.disk import Write
from alpo.core.entries import Entry
from alpo.core.inputs import Input
from alpo.core.invariants import InvariantBroken, check_all
from alpo.core.messages import CanvassAnswer, DeferAnswer, Envelope, VoteAnswer
from alpo.core.ranks import State
from alpo.core.ready import Ready, Reply

from ..broken import Broken
from ..checks.lists import Lists
from ..checks.safety import Safety
from ..host import Host
from ..scenario import CORE_ERRORS, CRASHED
from ..stage import Stage
from . import copies
from .canon import digest, host_tree, tree
from .facts import Facts, check_alone, facts_of
from .timeless import MIDDLE, Timer, fall_silent, run_out, stop_clocks, timers


class Outcome(NamedTuple):
    """What became of one server: its state, the messages that left, in order of number, and replies to clients.

    ``broken``: a check that concerns it alone failed, and the rest is void.
    """

    local: int
    sends: tuple[int, ...]
    replies: tuple[Reply, ...]
    broken: Broken | None = None


class Message(NamedTuple):
    envelope: Envelope
    source: int
    target: int


class Servers:
    """All states of single servers that were met, each under a number; ``stage`` does what happens to them.

    ``prompt``: what a step writes is on disk, and what it reads is there, before anything else happens to that server.
    ``alone``: no answer to a canvass ever arrives after the action that it belongs to, so rounds need no numbers.
    """

    def __init__(self, stage: Stage, *, prompt: bool = False, alone: bool = False) -> None:
        self.stage = stage
        self._prompt = prompt
        self._alone = alone
        self.ids = tuple(stage.hosts)
        self.frozen: list[bytes] = []
        self.facts: list[Facts] = []
        self.messages: list[Message] = []
        self.steps = 0  # of the real core
        self._outcomes: dict[tuple[Any, ...], Outcome] = {}
        self._forgot: dict[int, int] = {}
        self._due: dict[int, list[Timer]] = {}
        self._numbers: dict[bytes, int] = {}
        self._message_numbers: dict[bytes, int] = {}
        self._sent: list[Envelope] = []
        self._replied: list[Reply] = []
        stage.watchers = [_Alone(stage)]
        stage.on_send = lambda host, envelope: self._sent.append(envelope)
        stage.on_reply = lambda host, reply: self._replied.append(reply)

    # -- states -----------------------------------------------------------------------------------------

    def keep(self, host: Host) -> int:
        """The number of the state that ``host`` is in."""
        stop_clocks(host)
        if self._alone and host.replica is not None and host.replica.election.round is None:
            host.replica.election._round_number = 0
        key = bytes([host.id]) + digest(host_tree(host))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.frozen)
            self.frozen.append(copies.freeze(host))
            self.facts.append(facts_of(host))
        return number

    def take(self, id: int, local: int) -> Host:
        """``id``, put into that state."""
        host = self.stage.hosts[id]
        copies.thaw(self.frozen[local], host)
        return host

    def message(self, envelope: Envelope) -> int:
        """The number of a message."""
        key = digest(tree(envelope))
        number = self._message_numbers.get(key)
        if number is None:
            number = self._message_numbers[key] = len(self.messages)
            self.messages.append(Message(envelope, envelope.sender.id, envelope.target.id))
        return number

    def _outcome(self, id: int, local: int, what: tuple[Any, ...], do: Callable[[Host], None]) -> Outcome:
        """What comes of ``do``, which is all said by ``what``."""
        key = (local, *what)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._done(id, local, do)
        return outcome

    def _done(self, id: int, local: int, do: Callable[[Host], None]) -> Outcome:
        self.steps += 1
        self._sent.clear()
        self._replied.clear()
        host = self.take(id, local)
        try:
            do(host)
            while self._prompt and (host.writes or host.loads):
                self._settle(host)
            check_alone(host)
        except Broken as broken:
            return Outcome(local, (), (), broken)
        except CORE_ERRORS as error:
            return Outcome(local, (), (), Broken(CRASHED, f"server {id}: {type(error).__name__}: {error}"))
        sends = sorted([self.message(envelope) for envelope in self._sent if envelope.target.id in self.stage.hosts])
        return Outcome(self.keep(host), tuple(sends), tuple(self._replied))

    def _settle(self, host: Host) -> None:
        if host.writes:
            self.stage.persist(host.id, 1)
        else:
            self.stage.serve(host.id)
        self._step(host)

    # -- what may happen --------------------------------------------------------------------------------

    def boot(self, id: int) -> Outcome:
        """A process starts on what ``id``'s disk holds now; to be called before any other state is taken."""
        self._sent.clear()
        self._replied.clear()
        host = self.stage.hosts[id]
        self._boot(host)
        sends = sorted([self.message(envelope) for envelope in self._sent])
        return Outcome(self.keep(host), tuple(sends), ())

    def forget(self, id: int, local: int) -> int:
        """The state in which the leader that it heard is no longer live to it."""
        known = self._forgot.get(local)
        if known is None:
            host = self.take(id, local)
            assert host.replica is not None
            host.replica.heard_s = None
            known = self._forgot[local] = self.keep(host)
        return known

    def _boot(self, host: Host) -> None:
        self.stage.boot(host.id)
        assert host.replica is not None
        host.replica.rng = MIDDLE
        host.replica.connected = dict.fromkeys([id for id in self.ids if id != host.id], True)

    def _step(self, host: Host) -> None:
        host.due_us = 0  # a tick with it: then nothing waits for more
        self.stage.step(host.id)

    def deliver(self, id: int, local: int, message: int, *, forgets: bool = False) -> Outcome:
        """``forgets``: after the leader that it heard is no longer live to it."""

        def do(host: Host) -> None:
            assert host.replica is not None
            if forgets:
                host.replica.heard_s = None
            self.stage.deliver(self.messages[message].envelope)
            self._step(host)

        return self._outcome(id, local, ("deliver", message, forgets), do)

    def ask(self, id: int, local: int, request: Input) -> Outcome:
        def do(host: Host) -> None:
            self.stage.ask(id, request)
            self._step(host)

        return self._outcome(id, local, ("ask", repr(request)), do)

    def time(self, id: int, local: int, timer: Timer) -> Outcome:
        """``timer`` runs out."""

        def do(host: Host) -> None:
            assert host.replica is not None
            run_out(host.replica, timer)
            self._step(host)

        return self._outcome(id, local, ("time", timer), do)

    def miss(self, id: int, local: int, peer: int) -> Outcome:
        """A leader has not heard ``peer`` for 2h, and asks who is there."""

        def do(host: Host) -> None:
            assert host.replica is not None
            fall_silent(host.replica, peer)
            self._step(host)

        return self._outcome(id, local, ("miss", peer), do)

    def persist(self, id: int, local: int) -> Outcome:
        """The oldest write under way is durable, what waited for it leaves, and the server hears of it."""

        def do(host: Host) -> None:
            self.stage.persist(id, 1)
            self._step(host)

        return self._outcome(id, local, ("persist",), do)

    def serve(self, id: int, local: int) -> Outcome:
        def do(host: Host) -> None:
            self.stage.serve(id)
            self._step(host)

        return self._outcome(id, local, ("serve",), do)

    def restart(self, id: int, local: int, kept: int, *, wiped: bool = False) -> Outcome:
        """A crash that left the first ``kept`` writes under way on disk, and a new process; ``wiped``: a new disk."""

        def do(host: Host) -> None:
            self.stage.crash(id, kept)
            if wiped:
                self.stage.wipe(id)
            self._boot(host)

        return self._outcome(id, local, ("restart", kept, wiped), do)

    def is_dead(self, id: int, local: int, message: int) -> bool:
        """Can that answer never matter again to a server in that state?

        One to a canvass, a vote or a defer request that the server has done with, from a term not above its own, and
        that leaves it as it is now: terms and rounds only grow, so the server never comes back to what was asked.
        Requests, and answers to appends, are never called dead, however old: what fences them is under test.
        """
        what: Any = self.messages[message].envelope.message
        r: Any = self.take(id, local).replica
        if type(what) is CanvassAnswer:
            behind = what.term <= r.term and (r.election.round is None or r.election.round.number != what.round)
        elif type(what) in (VoteAnswer, DeferAnswer):
            behind = what.term <= r.term and (what.request_term < r.term or r.state is not State.CANDIDATE)
        else:
            return False
        if not behind:
            return False
        outcome = self.deliver(id, local, message)
        return outcome.broken is None and outcome.local == local and not outcome.sends

    # -- what is there to happen ------------------------------------------------------------------------

    def writes(self, id: int, local: int) -> int:
        """So many are under way."""
        return len(self.take(id, local).writes)

    def loads(self, id: int, local: int) -> int:
        return len(self.take(id, local).loads)

    def entries(self, id: int, local: int) -> list[Entry]:
        """The whole log, which is on disk but for what is under way."""
        host = self.take(id, local)
        replica = host.replica
        assert replica is not None
        disk = host.store.read_entries(1, replica.log.last_id, 1 << 40)
        return [replica.log.entry(id) or disk[id - 1] for id in range(1, replica.log.last_id + 1)]

    def hears_leader(self, id: int, local: int) -> bool:
        """Does it know a live one, other than itself?"""
        replica = self.take(id, local).replica
        return replica is not None and replica.heard_s is not None and replica.leadership is None

    def timers(self, id: int, local: int) -> list[Timer]:
        due = self._due.get(local)
        if due is None:
            replica = self.take(id, local).replica
            assert replica is not None
            due = self._due[local] = timers(replica)
        return due

    def line(self, id: int, local: int) -> str:
        """The state, for a reader."""
        host = self.take(id, local)
        r: Any = host.replica
        parts = [f"{r.state.value} term {r.term} vote {r.vote}", r.status_text] if r.first_start.started else [
            r.status_text, *([f"term {r.term} vote {r.vote}"] if r.term else [])
        ]
        if r.log.last_id:
            terms = " ".join(str(r.log.term_at(each)) for each in range(1, r.log.last_id + 1))
            parts.append(f"log [{terms}] on disk {r.log.stable_id} guaranteed {r.guaranteed_id}")
        return ", ".join(parts)


class _Alone:
    """The checks that concern one server; those between servers are the search's own (`past`)."""

    def __init__(self, stage: Stage) -> None:
        safety = Safety(stage)
        self.sent, self._lists = safety.sent, Lists(stage, safety)

    def booted(self, host: Host) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        assert host.replica is not None
        try:
            check_all(host.replica)
        except InvariantBroken as broken:
            raise Broken("alarm", f"server {host.id}: {broken}") from broken
        self._lists.stepped(host, inputs, ready)
