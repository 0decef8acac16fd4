"""Transitions of single servers: the outcome of each event in each state, worked out once.

A state of the whole cluster is a tuple of states of servers and messages on their way, all by number; an action changes
one server. One server has far fewer states than the cluster, so the real core runs once for each pair of a state and an
action, and the search itself only looks up numbers.

Laws:

* Equal states (`state`) have one number, in the order in which they were first found: the same in every process.
* Each delivery of a message, and each write that becomes durable, is a step of its own. Steps with several inputs, as a
  busy server makes them, are not searched.

Laws of the checks between servers, and of the past of a state, as far as they need it:

* The checks use the `Facts` of single servers, and the `Past`.
* A `Past` is part of the state that is searched: two ways to the same servers and messages lead to one state only if
  the same servers have led the same terms and the same entries have been guaranteed.
* Each check is worked out once for each pair of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from alpo.core.disk import Write
from alpo.core.entries import Entry
from alpo.core.members import Identity, StartStatus
from alpo.core.messages import CanvassAnswer, DeferAnswer, Envelope, VoteAnswer
from alpo.core.parts import check_all
from alpo.core.ranks import State
from alpo.core.ready import Input, Ready
from alpo.core.requests import Reply
from alpo.core.shared import InvariantBroken

from ..checks import Broken
from ..checks.members import MemberChecks
from ..checks.safety import Safety
from ..host import Host
from ..scenario import CORE_ERRORS, CRASHED
from ..stage import Stage
from .search import Numbered
from .state import MIDDLE, Timer, digest, fall_silent, freeze, host_tree, run_out, stop_clocks, thaw, timers, tree

#: (term, checksum) of every entry, from id 1 on.
Entries = tuple[tuple[int, int], ...]


class Facts(NamedTuple):
    """Facts about a server in one state, for the checks between servers.

    ``term``: ``own_term``, or the term that the server canvasses for. ``leads``: the term that it leads, or 0.
    ``newcomers``: number of questions and bases that it sent in its reign to servers that are no voters. ``writes``:
    number under way. ``start``: digest of the state of its first start. ``cluster``: b"" until started. ``table``:
    digest of its sessions; ``ahead``: they came with a base, and are later than its log.
    """

    me: Identity
    term: int
    own_term: int
    rounds: int
    newcomers: int
    writes: int
    leads: int
    start: bytes
    cluster: bytes
    log: Entries
    disk: Entries
    guaranteed_id: int
    table: bytes
    ahead: bool


def facts_of(host: Host) -> Facts:
    """Read the facts off a server that is up."""
    r = host.replica
    assert r is not None
    disk = host.store.content.entries
    log = []
    for id in range(1, r.log.last_id + 1):
        entry = r.log.entry(id) or disk[id - 1]
        log.append((entry.term, entry.check))
    started = r.first_start.state.status is StartStatus.STARTED
    return Facts(
        r.me, r.term + (r.election.round is not None), r.term, r.election.round_number,
        r.changes.newcomers.number - int(MIDDLE.random() * (1 << 40)) if r.changes is not None else 0,
        len(host.writes), r.term if r.state is State.LEADER else 0,
        digest((tree(r.first_start.state), r.first_start.number, r.first_start.commanded, len(host.writes))),
        r.first_start.state.cluster if started else b"",
        tuple(log), tuple([(entry.term, entry.check) for entry in disk]), r.guaranteed_id,
        digest(tree(r.sessions.state())), r.applied_id > r.log.last_id,
    )


def check_alone(host: Host) -> None:
    """Check a server by itself, as it is between steps. Raises `Broken`."""
    r = host.replica
    assert r is not None
    if not r.first_start.started and (r.term or r.vote or r.log.last_id):
        raise Broken("started first", f"server {host.id} is not started: term {r.term}, vote {r.vote}, log ends at "
                     f"{r.log.last_id}")


class Past(NamedTuple):
    """Deeds of servers that bind others later.

    ``leaders``: (term, who), by term. ``guaranteed``: the one log, as far as any server ever called it so; ``by``: for
    each entry of it the term in which that was first done.
    """

    leaders: tuple[tuple[int, Identity], ...] = ()
    guaranteed: Entries = ()
    by: tuple[int, ...] = ()


class Pasts:
    """All pasts found so far, by number; 0 is the empty one. ``facts``: number of a server's state -> its facts."""

    def __init__(self, facts: list[Facts], majority: int) -> None:
        self._pasts: Numbered[Past] = Numbered()
        self._pasts.number(Past())
        self.known = self._pasts.known
        self._facts = facts
        self._majority = majority
        self.after = cache(self._after)
        self._holds = cache(self._find_holds)
        self._disagree = cache(lambda one, other: _disagreement(facts[one], facts[other]))

    def _after(self, past: int, local: int) -> int:
        """The number of the past once a server is in state ``local``. Raises `Broken`."""
        return self._pasts.number(self._told(self.known[past], self._facts[local]))

    def _told(self, past: Past, facts: Facts) -> Past:
        mark, known = facts.log[: facts.guaranteed_id], past.guaranteed
        common = min(len(mark), len(known))
        if mark[:common] != known[:common]:
            raise Broken("one log", f"server {facts.me.id} calls other entries guaranteed than was done before")
        if len(mark) > len(known):
            by = past.by + (facts.own_term,) * (len(mark) - len(known))
            past = past._replace(guaranteed=mark, by=by)
        if facts.leads:
            past = self._leads(past, facts)
        return past

    @staticmethod
    def _leads(past: Past, facts: Facts) -> Past:
        leaders = dict(past.leaders)
        known = leaders.get(facts.leads)
        if known is None:
            # Late votes may make a leader of a term when the next has begun its work: it owes nothing to that.
            before = sum(term < facts.leads for term in past.by)
            if facts.log[:before] != past.guaranteed[:before]:
                raise Broken(
                    "leader completeness", f"server {facts.me.id} leads term {facts.leads} without all that was "
                    f"guaranteed in terms before, up to entry {before}",
                )
            leaders[facts.leads] = facts.me
            return past._replace(leaders=tuple(sorted(leaders.items())))
        if known != facts.me:
            raise Broken("one leader a term", f"servers {known.id} and {facts.me.id} both lead term {facts.leads}")
        return past

    def moved(self, past: int, locals: Sequence[int], moved: Sequence[int], *, disks: bool = True) -> int:
        """The number of the past once the servers at the indices ``moved`` are in their states ``locals``. All checks
        are made; without ``disks``, not `check_disks`. Raises `Broken`."""
        for at in moved:
            past = self.after(past, locals[at])
            for other, local in enumerate(locals):
                if other != at:
                    self.check_pair(locals[at], local)
        if disks:
            self.check_disks(past, locals)
        return past

    def check_disks(self, past: int, locals: Sequence[int]) -> None:
        """Check that all that was called guaranteed is on the disks of a majority. Raises `Broken`."""
        last = len(self.known[past].guaranteed)
        if not last:
            return
        holders = sum([self._holds(past, local) for local in locals])
        if holders < self._majority:
            raise Broken("guaranteed on a majority", f"entry {last} was called guaranteed; it is on {holders} disks")

    def _find_holds(self, past: int, local: int) -> bool:
        guaranteed = self.known[past].guaranteed
        return self._facts[local].disk[: len(guaranteed)] == guaranteed

    def check_pair(self, one: int, other: int) -> None:
        """Check that two servers' logs match (R12), tables are equal if the logs are, and so are first lists (R29).

        Raises `Broken`.
        """
        broken = self._disagree(one, other)
        if broken is not None:
            raise broken


def _disagreement(a: Facts, b: Facts) -> Broken | None:
    if a.cluster and b.cluster and a.cluster != b.cluster:
        return Broken("one first list", f"servers {a.me.id} and {b.me.id} have started with different lists")
    for at in range(min(len(a.log), len(b.log)) - 1, -1, -1):
        if a.log[at][0] == b.log[at][0]:  # equal id and term: equal up to there
            if a.log[: at + 1] != b.log[: at + 1]:
                return Broken(
                    "log matching", f"servers {a.me.id} and {b.me.id} hold entry {at + 1} of term {a.log[at][0]}, and "
                    "differ there or before",
                )
            break
    if a.log == b.log and a.cluster == b.cluster and a.table != b.table and not a.ahead and not b.ahead:
        return Broken("equal tables", f"servers {a.me.id} and {b.me.id} hold equal logs and different sessions")
    return None


class Outcome(NamedTuple):
    """Outcome of an action on a server: its state, the messages that left, in order of number, and replies to clients.

    ``broken``: a check of the server alone failed, and the other fields are void.
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
    """All states of single servers found so far, by number; ``stage`` carries out actions on them.

    ``prompt``: writes and reads of a step are complete before anything else happens to the server. ``alone``: no answer
    to a canvass arrives after the canvass's own action, so rounds need no numbers.
    """

    def __init__(self, stage: Stage, *, prompt: bool = False, alone: bool = False) -> None:
        self.stage = stage
        self._prompt = prompt
        self._alone = alone
        self.ids = tuple(stage.hosts)
        self.facts: list[Facts] = []
        self._frozen: Numbered[bytes] = Numbered()
        self._messages: Numbered[Message] = Numbered()
        self.messages = self._messages.known
        self._outcomes: dict[tuple[Any, ...], Outcome] = {}
        self.forget = cache(self._forget)
        self.timers = cache(self._find_timers)
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
            host.replica.election.round_number = 0
        number = self._frozen.number(b"", key=bytes([host.id]) + digest(host_tree(host)))
        if number == len(self.facts):
            self._frozen.known[number] = freeze(host)
            self.facts.append(facts_of(host))
        return number

    def take(self, id: int, local: int) -> Host:
        """Put server ``id`` into the state with that number."""
        host = self.stage.hosts[id]
        thaw(self._frozen.known[local], host)
        return host

    def message(self, envelope: Envelope) -> int:
        """The number of a message."""
        message = Message(envelope, envelope.sender.id, envelope.target.id)
        return self._messages.number(message, key=digest(tree(envelope)))

    def _outcome(self, id: int, local: int, what: tuple[Any, ...], do: Callable[[Host], None]) -> Outcome:
        """The outcome of ``do(host)``, worked out once for each ``what``, which must identify all that ``do`` does."""
        key = (local, *what)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._done(id, local, do)
        return outcome

    def _done(self, id: int, local: int, do: Callable[[Host], None]) -> Outcome:
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

    def boot(self) -> tuple[list[int], list[int]]:
        """Start all processes, to be called before any `take`. Returns their states, and the messages that left."""
        locals: list[int] = []
        net: list[int] = []
        for host in self.stage.hosts.values():
            self._sent.clear()
            self._replied.clear()
            self._boot(host)
            net += sorted([self.message(envelope) for envelope in self._sent])
            locals.append(self.keep(host))
        return locals, net

    def settle(self, locals: list[int], net: list[int]) -> list[int]:
        """Deliver all messages in ``net``, and those sent in consequence, in order. Returns the messages delivered."""
        arrived: list[int] = []
        while True:
            for at, id in enumerate(self.ids):
                while self.writes(id, locals[at]):
                    locals[at] = self.run(self.persist(id, locals[at]), net)
            if not net:
                return arrived
            message = net.pop(0)
            arrived.append(message)
            id = self.messages[message].target
            locals[id - 1] = self.run(self.deliver(id, locals[id - 1], message), net)

    @staticmethod
    def run(outcome: Outcome, net: list[int]) -> int:
        """The state of an outcome, whose messages go into ``net``. Raises `Broken`."""
        if outcome.broken is not None:
            raise outcome.broken
        net.extend(outcome.sends)
        return outcome.local

    def quiet(self, locals: list[int]) -> list[int]:
        """The states in which no server hears a live leader any more."""
        return [self.forget(id, locals[at]) for at, id in enumerate(self.ids)]

    def _forget(self, id: int, local: int) -> int:
        """The state after the server no longer takes the leader that it heard for live."""
        host = self.take(id, local)
        assert host.replica is not None
        host.replica.heard_s = None
        return self.keep(host)

    def _boot(self, host: Host) -> None:
        self.stage.boot(host.id)
        assert host.replica is not None
        host.replica.rng = MIDDLE
        host.replica.connected = {id for id in self.ids if id != host.id}

    def _step(self, host: Host) -> None:
        host.due_us = 0  # a tick with it: then nothing waits for more
        self.stage.step(host.id)

    def deliver(self, id: int, local: int, message: int, *, forgets: bool = False) -> Outcome:
        """Deliver a message. ``forgets``: the server first ceases to take the leader that it heard for live."""

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
        """Let ``timer`` run out."""

        def do(host: Host) -> None:
            assert host.replica is not None
            run_out(host.replica, timer)
            self._step(host)

        return self._outcome(id, local, ("time", timer), do)

    def miss(self, id: int, local: int, peer: int) -> Outcome:
        """Let a leader miss ``peer`` for two heartbeat intervals, so that it asks who is there."""

        def do(host: Host) -> None:
            assert host.replica is not None
            fall_silent(host.replica, peer)
            self._step(host)

        return self._outcome(id, local, ("miss", peer), do)

    def persist(self, id: int, local: int) -> Outcome:
        """Make the oldest write under way durable: messages that waited for it leave, and the server learns of it."""

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
        """Crash the process with ``kept`` writes under way on disk, and start another; ``wiped``: on a new disk."""

        def do(host: Host) -> None:
            self.stage.crash(id, kept)
            if wiped:
                self.stage.wipe(id)
            self._boot(host)

        return self._outcome(id, local, ("restart", kept, wiped), do)

    def is_dead(self, id: int, local: int, message: int) -> bool:
        """True if ``message`` is an answer that never matters again to a server in state ``local``.

        Such an answer is to a finished canvass, vote or defer request, from a term not above the server's, and does not
        change the server now: terms and rounds only grow, so the server never returns to that question. Requests, and
        answers to appends, never count as dead, however old: their fencing is under test.
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
        """The number of writes under way."""
        return len(self.take(id, local).writes)

    def loads(self, id: int, local: int) -> int:
        """The number of reads under way."""
        return len(self.take(id, local).loads)

    def entries(self, id: int, local: int) -> list[Entry]:
        """The whole log, on disk or still under way."""
        host = self.take(id, local)
        replica = host.replica
        assert replica is not None
        disk = host.store.read_entries(1, replica.log.last_id, 1 << 40)
        return [replica.log.entry(id) or disk[id - 1] for id in range(1, replica.log.last_id + 1)]

    def hears_leader(self, id: int, local: int) -> bool:
        """True if the server knows a live leader other than itself."""
        replica = self.take(id, local).replica
        return replica is not None and replica.heard_s is not None and replica.leadership is None

    def _find_timers(self, id: int, local: int) -> list[Timer]:
        """Work out which timers may run out on ``id`` in state ``local``."""
        replica = self.take(id, local).replica
        assert replica is not None
        return timers(replica)

    def line(self, id: int, local: int) -> str:
        """The state in words, for a reader."""
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
    """Checks of single servers; the checks between servers are those of `Pasts`."""

    def __init__(self, stage: Stage) -> None:
        safety = Safety(stage)
        self.sent, self._lists = safety.sends.sent, MemberChecks(stage, safety)

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
