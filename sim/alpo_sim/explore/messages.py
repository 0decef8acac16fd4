"""Spaces in which each message and each write is an action: elections, and those in which disks are lost, which are the
first start (R29) and the replacement of a lost disk (R30).

Laws:

* A state is (each server's state …, the past, what is left of the bounds, messages on their way in order of number).
* A message that was sent stays on its way for ever. So every loss (no delivery), every order and every number of copies
  is searched without a bound, and needs no action of its own.
* More messages on their way never make less possible. So a message that does not change its target is delivered at
  once, again and again, for its answers: that is no choice. The real core, not a rule of the protocol, tells for each
  state of the target which messages these are.
* Messages to a process that has ended are lost with its connections, unless ``late_arrivals``.
* States that differ by a permutation of servers are not merged: rank and timers depend on ids. Payloads are
  interchangeable: they are taken in one order.

Laws of the first start:

* An unstarted server moves on when it has an answer of each other server. All answers stay on their way, so the server
  may hear any of them again just then: hearing one answer of each server is one action, and earlier answers that led
  nowhere make no difference.

Laws of replacement:

* A leader that misses a server goes on missing it until it hears it; which server is missed is a choice, and costs a
  timer.
* A server that waits to be listed asks once: its question, and the answers, stay on their way.
* The replicated state is saved with every entry that is guaranteed, so that there is a base whenever one is needed.
* A guaranteed entry need not be on a majority of the present disks, as one may have been lost. The consequence is
  checked instead: every leader holds the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from alpo.core.members import StartStatus
from alpo.core.messages import StartAnswer
from alpo.core.requests import AppendRun

from ..checks import Broken
from ..stage import Stage
from .search import Numbered, State, Step
from .servers import Outcome, Pasts, Servers
from .state import Timer

_NOTHING = -1
#: Most questions to missing servers, and bases sent, in one reign.
NEWCOMERS_MAX = 2


class Bounds(NamedTuple):
    """Bounds of the space.

    ``terms``: highest term. ``timers``: timers that run out. ``rounds``: canvasses of one process. ``wipes``: disks
    lost. ``writes``: most writes under way on one server; 0: all writes are on disk at once. ``late_arrivals``:
    messages also reach a process that started after they were sent.
    """

    terms: int = 2
    entries: int = 1
    timers: int = 2
    rounds: int = 2
    crashes: int = 0
    wipes: int = 0
    writes: int = 0
    late_arrivals: bool = False


#: Costs of an action: the bound that it uses up, as `Messages._spend` takes it; FREE: none.
TIMER, CRASH, WIPE, ENTRY, FREE = range(5)


class Action(NamedTuple):
    """Action on one server. ``what``, by ``kind``: number of a message, timer, id of a peer, or number of writes."""

    kind: str
    server: int
    what: int = 0


class Way(NamedTuple):
    """Action that is possible without a message, its cost and its outcome."""

    action: int
    cost: int
    outcome: Outcome
    restarts: bool = False


class Arrival(NamedTuple):
    """Effect of a message on its target: actions with outcomes, or, if it changes nothing, only the answers."""

    moves: list[tuple[int, Outcome]]
    answers: State


class Messages:
    """Space of a cluster's messages and writes. ``started``: the first start is done before the search begins."""

    def __init__(
        self, bounds: Bounds, size: int = 3, *, started: bool = True, limits: dict[str, int] | None = None
    ) -> None:
        self.bounds = bounds
        self.size = size
        self.fixed = size + 2
        self.servers = Servers(Stage(size, 0, limits=limits), prompt=not bounds.writes)
        self.pasts = Pasts(self.servers.facts, size // 2 + 1)
        self.prelude: list[int] = []  # actions between the start and the first state
        self.combined: list[State] = []  # several messages in one action: the "hear" of `FirstStarts`
        self._actions: Numbered[Action] = Numbered()
        self._budgets: Numbered[tuple[int, ...]] = Numbered()
        # Worked out once for each pair of numbers.
        self.arrival = cache(self._find_arrival)
        self._is_dead = cache(self._find_dead)
        self._ways = cache(self._find_ways)
        self._after_spending = cache(self._spend)
        self._first = self._begin(started)

    @property
    def actions(self) -> list[Action]:
        """All actions so far, by number."""
        return self._actions.known

    def first(self) -> State:
        return self._first

    # -- the beginning ----------------------------------------------------------------------------------

    def _begin(self, started: bool) -> State:
        locals, net = self.servers.boot()
        if started:
            locals, net = self._start(locals, net), []
        net = list(self._all_sent(tuple(locals), 0, (), tuple(net)))
        bounds = self.bounds
        budget = self._budgets.number((bounds.timers, bounds.crashes, bounds.wipes, bounds.entries))
        return (*locals, 0, budget, *net)

    def _start(self, locals: list[int], net: list[int]) -> list[int]:
        """Run the first start without faults; then let all live leaders be forgotten."""
        self.servers.settle(locals, net)
        return self.servers.quiet(locals)

    def _spend(self, budget: int, cost: int) -> int:
        """The number of the budget that is left after ``cost``, or `_NOTHING` if it does not suffice."""
        if cost == FREE:
            return budget
        left = self._budgets.known[budget]
        if not left[cost]:
            return _NOTHING
        return self._budgets.number((*left[:cost], left[cost] - 1, *left[cost + 1 :]))

    # -- the ways on ------------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[Step]:
        budget, net = state[self.size + 1], state[self.fixed :]
        yield from self._deliveries(state, budget, net)
        for at in range(self.size):
            yield from self._own_ways(state, at, budget, net)

    def _deliveries(self, state: State, budget: int, net: State) -> Iterator[Step]:
        for message in net:
            at = self.servers.messages[message].target - 1
            for action, outcome in self.arrival(state[at], message).moves:
                yield self._step(action, state, at, outcome, budget, net)

    def _own_ways(self, state: State, at: int, budget: int, net: State) -> Iterator[Step]:
        for way in self._ways(at + 1, state[at], self._budgets.known[budget][ENTRY]):
            left = self._after_spending(budget, way.cost)
            if left == _NOTHING:
                continue
            kept = net
            if way.restarts and not self.bounds.late_arrivals:
                kept = tuple([m for m in net if self.servers.messages[m].target != at + 1])
            yield self._step(way.action, state, at, way.outcome, left, kept)

    def _step(self, action: int, state: State, at: int, outcome: Outcome, budget: int, net: State) -> Step:
        """The step in which the server at index ``at`` gets to ``outcome``, checked against the other servers."""
        if outcome.broken is not None:
            return Step(action, None, outcome.broken)
        size, local = self.size, outcome.local
        past = state[size]
        locals = (*state[:at], local, *state[at + 1 : size])
        if local != state[at]:
            try:
                past = self.pasts.moved(past, locals, (at,), disks=not self.bounds.wipes)
            except Broken as broken:
                return Step(action, None, broken)
        return Step(action, (*locals, past, budget, *self._all_sent(locals, at, net, outcome.sends)))

    def _all_sent(self, locals: State, moved: int, net: State, sends: State) -> State:
        """The messages on their way after server ``moved`` + 1 has moved and all possible answers have been sent."""
        messages = self.servers.messages
        known = dict.fromkeys(net)
        fresh = []
        for message in net:
            if messages[message].target == moved + 1:
                if self._is_dead(locals[moved], message):
                    del known[message]
                else:
                    fresh.append(message)
        todo = [*fresh, *self._new(locals, known, sends)]
        while todo:
            message = todo.pop()
            answers = self.arrival(locals[messages[message].target - 1], message).answers
            if answers:
                todo += self._new(locals, known, answers)
        return tuple(sorted(known))

    def _new(self, locals: State, known: dict[int, None], sends: State) -> list[int]:
        """Add to ``known`` the messages of ``sends`` that are not on their way yet, and matter. Returns these."""
        found = []
        for message in sends:
            if message not in known and not self._is_dead(locals[self.servers.messages[message].target - 1], message):
                known[message] = None
                found.append(message)
        return found

    # -- worked out once --------------------------------------------------------------------------------

    def _within(self, outcome: Outcome) -> bool:
        if outcome.broken is not None:
            return True
        facts = self.servers.facts[outcome.local]
        return (
            facts.term <= self.bounds.terms and facts.rounds <= self.bounds.rounds
            and facts.newcomers <= NEWCOMERS_MAX
            and facts.writes <= max(1, self.bounds.writes)
        )

    def _find_dead(self, local: int, message: int) -> bool:
        """True if ``message`` never matters again to its target in state ``local``, see `Servers.is_dead`.

        False where rounds may begin anew under old numbers.
        """
        target = self.servers.messages[message].target
        return not self.bounds.late_arrivals and self.servers.is_dead(target, local, message)

    def _find_arrival(self, local: int, message: int) -> Arrival:
        """Work out the effect of ``message`` on its target in state ``local``."""
        servers = self.servers
        id = servers.messages[message].target
        plain = servers.deliver(id, local, message)
        moves: list[tuple[int, Outcome]] = []
        answers: State = ()
        if plain.broken is None and plain.local == local:
            answers = plain.sends
        elif self._within(plain):
            moves.append((self._actions.number(Action("deliver", id, message)), plain))
        if servers.hears_leader(id, local):
            forgot = servers.deliver(id, local, message, forgets=True)
            if forgot.sends != plain.sends and self._within(forgot):
                moves.append((self._actions.number(Action("forget", id, message)), forgot))
        return Arrival(moves, answers)

    def _timers(self, id: int, local: int) -> list[Timer]:
        """The timers that may run out and are worth searching."""
        return self.servers.timers(id, local)

    def _find_ways(self, id: int, local: int, entries_left: int) -> list[Way]:
        """Work out what server ``id`` in state ``local`` may do without a message."""
        servers, bounds = self.servers, self.bounds
        writes = servers.writes(id, local)
        ways: list[Way] = []

        def add(cost: int, outcome: Outcome, kind: str, what: int = 0, restarts: bool = False) -> None:
            if self._within(outcome):
                ways.append(Way(self._actions.number(Action(kind, id, what)), cost, outcome, restarts))

        if writes:
            add(FREE, servers.persist(id, local), "persist")
        if servers.loads(id, local):
            add(FREE, servers.serve(id, local), "serve")
        for timer in self._timers(id, local):
            if bounds.timers:
                add(TIMER, servers.time(id, local, timer), "timer", int(timer))
        if bounds.crashes:
            for kept in range(writes + 1):
                add(CRASH, servers.restart(id, local, kept), "crash", kept, True)
        if bounds.wipes:
            add(WIPE, servers.restart(id, local, 0, wiped=True), "wipe", 0, True)
        if entries_left and servers.facts[local].leads:
            what = bounds.entries - entries_left + 1
            add(ENTRY, servers.ask(id, local, request(what)), "append", what)
        return ways


def request(number: int) -> AppendRun:
    """Make append number ``number``; each is of a client of its own."""
    client = f"~018bcfe5-6800-7000-8000-{number:012x}"
    return AppendRun(number, client, 0, 1, [(1, b"%d" % number)])


FIRST_LEADER = 1


class FirstStarts(Messages):
    """Space of servers without a cluster. ``bounds.timers`` counts repeated questions, and started servers' timers."""

    def __init__(self, bounds: Bounds, size: int = 3) -> None:
        self._hearing = cache(self._find_hearing)
        super().__init__(bounds, size, started=False)

    def _deliveries(self, state: State, budget: int, net: State) -> Iterator[Step]:
        heard: list[dict[int, list[int]]] = [{} for _ in range(self.size)]
        for message in net:
            envelope, source, target = self.servers.messages[message]
            what, local = envelope.message, state[target - 1]
            if type(what) is StartAnswer and what.status is not StartStatus.STARTED:
                if not self.servers.facts[local].cluster:
                    heard[target - 1].setdefault(source, []).append(message)
                continue
            for action, outcome in self.arrival(local, message).moves:
                yield self._step(action, state, target - 1, outcome, budget, net)
        for at, answers in enumerate(heard):
            if len(answers) == self.size - 1:
                done: dict[tuple[int, State], bool] = {}  # most that it may hear comes to the same
                for each in product(*(answers[source] for source in sorted(answers))):
                    for action, outcome in self._hearing(state[at], each).moves:
                        if done.setdefault((outcome.local, outcome.sends), True) or outcome.broken is not None:
                            done[outcome.local, outcome.sends] = False
                            yield self._step(action, state, at, outcome, budget, net)

    def _find_hearing(self, local: int, answers: State) -> Arrival:
        """Work out the effect of hearing one answer of each other server on a server in state ``local``."""
        servers = self.servers
        id = servers.messages[answers[0]].target
        began = local
        sends: State = ()
        for message in answers:
            outcome = servers.deliver(id, local, message)
            if outcome.broken is not None:
                break
            local, sends = outcome.local, tuple(sorted({*sends, *outcome.sends}))
        if outcome.broken is None and not sends and servers.facts[local].start == servers.facts[began].start:
            return Arrival([], ())
        self.combined.append(answers)
        action = self._actions.number(Action("hear", id, len(self.combined) - 1))
        return Arrival([(action, Outcome(local, sends, (), outcome.broken))], ())


class Replacements(Messages):
    """Space of a cluster under a leader of term 1, in which ``bounds.wipes`` disks, of any servers, are lost."""

    def __init__(self, bounds: Bounds, size: int = 3) -> None:
        super().__init__(bounds, size, limits={"table_save_entries": 1})

    def _start(self, locals: list[int], net: list[int]) -> list[int]:
        """Run the first start and the first election without faults."""
        locals = super()._start(locals, net)
        at = FIRST_LEADER - 1
        locals[at] = self.servers.run(self.servers.time(FIRST_LEADER, locals[at], Timer.CANVASS), net)
        arrived = self.servers.settle(locals, net)
        targets = [self.servers.messages[message].target for message in arrived]
        done = [Action("deliver", target, message) for target, message in zip(targets, arrived, strict=True)]
        self.prelude = list(map(self._actions.number, [Action("timer", FIRST_LEADER, int(Timer.CANVASS)), *done]))
        return self.servers.quiet(locals)

    def _timers(self, id: int, local: int) -> list[Timer]:
        return [timer for timer in super()._timers(id, local) if timer is not Timer.QUESTION]

    def _find_ways(self, id: int, local: int, entries_left: int) -> list[Way]:
        ways = super()._find_ways(id, local, entries_left)
        if self.bounds.timers and self.servers.facts[local].leads:
            for peer in self.servers.ids:
                if peer != id:
                    outcome = self.servers.miss(id, local, peer)
                    if self._within(outcome):
                        ways.append(Way(self._actions.number(Action("miss", id, peer)), TIMER, outcome))
        return ways
