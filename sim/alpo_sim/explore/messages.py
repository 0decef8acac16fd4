"""A cluster in which every message and every write is on its own: the spaces of elections and of the first start.

Laws:

* A state is (a server's state …, the past, what is left of the bounds, messages on their way in order of number).
* What was sent stays on its way for ever. So every loss (never delivered), every order and every number of copies is
  searched without a bound, and needs no action of its own.
* More on its way never makes less possible. So a message that leaves its target as it is, is delivered at once,
  again and again, for the answers that it brings forth: that is no choice. Which messages these are, the core is
  asked, for each state of the target; no rule of the protocol is relied on.
* Messages to a process that has ended are lost with its connections, unless ``late_arrivals``.
* Servers are not interchanged: rank and timers tell them apart by id. Payloads are: they are taken in one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from alpo.core.inputs import AppendRun

from ..broken import Broken
from ..stage import Stage
from .past import Pasts
from .search import State, Step
from .servers import Outcome, Servers
from .timeless import Timer

_NOTHING = -1
#: Questions to those who are missed, and bases sent, in one reign.
NEWCOMERS_MAX = 2


class Bounds(NamedTuple):
    """How much may happen in all. ``terms``: the highest. ``timers``: those that run out. ``rounds``: canvasses of one
    process. ``wipes``: disks lost.

    ``late_arrivals``: messages also reach a process that was not there when they were sent. ``writes``: so
    many are under way on one server; 0: what it writes is on its disk at once.
    """

    terms: int = 2
    entries: int = 1
    timers: int = 2
    rounds: int = 2
    crashes: int = 0
    wipes: int = 0
    writes: int = 0
    late_arrivals: bool = False


#: What a bound is spent on, by its place in `Messages._spend`.
TIMER, CRASH, WIPE, ENTRY, FREE = range(5)


class Action(NamedTuple):
    """``kind`` as `Messages.perform` knows it; ``what``: a message, a timer, a number of writes."""

    kind: str
    server: int
    what: int = 0


class Way(NamedTuple):
    """One thing that a server may do without a message."""

    action: int
    cost: int
    outcome: Outcome
    restarts: bool = False


class Arrival(NamedTuple):
    """What a message does to a server: ways in which it moves it, or answers that it gets and leaves all as it is."""

    moves: list[tuple[int, Outcome]]
    answers: State


class Messages:
    """The space. ``boot`` runs the first start to its end before the search, or leaves it to the search."""

    def __init__(
        self, bounds: Bounds, size: int = 3, *, started: bool = True, limits: dict[str, int] | None = None
    ) -> None:
        self.bounds = bounds
        self.size = size
        self.fixed = size + 2
        self.servers = Servers(Stage(size, 0, limits=limits), prompt=not bounds.writes)
        self.pasts = Pasts(self.servers.facts, size // 2 + 1)
        self.actions: list[Action] = []
        self.prelude: list[int] = []  # what was done between the start and the first state
        self._action_numbers: dict[Action, int] = {}
        self._arrivals: dict[tuple[int, int], Arrival] = {}
        self._heard: dict[tuple[int, State], Arrival] = {}  # several messages in one action, see `first_starts`
        self._combined: list[State] = []
        self._dead: dict[tuple[int, int], bool] = {}
        self._ways: dict[tuple[int, int], list[Way]] = {}
        self._spent = [bounds.timers, bounds.crashes, bounds.wipes, bounds.entries]
        self._spend: dict[tuple[int, int], int] = {}
        self._budgets: list[tuple[int, ...]] = []
        self._budget_numbers: dict[tuple[int, ...], int] = {}
        self._first = self._begin(started)

    def first(self) -> State:
        return self._first

    def combined(self, number: int) -> State:
        """The messages of a `hear`."""
        return self._combined[number]

    # -- the beginning ----------------------------------------------------------------------------------

    def _begin(self, started: bool) -> State:
        locals: list[int] = []
        net: list[int] = []
        for id in self.servers.ids:
            outcome = self.servers.boot(id)
            locals.append(outcome.local)
            net.extend(outcome.sends)
        if started:
            locals, net = self._start(locals, net), []
        net = list(self._all_sent(tuple(locals), 0, (), tuple(net)))
        return (*locals, 0, self._budget(tuple(self._spent)), *net)

    def _start(self, locals: list[int], net: list[int]) -> list[int]:
        """The first start, as it goes when nothing goes wrong; then a moment of quiet."""
        self._settle(locals, net)
        return self._quiet(locals)

    def _quiet(self, locals: list[int]) -> list[int]:
        """Nobody hears a live leader any more."""
        return [self.servers.forget(id, locals[at]) for at, id in enumerate(self.servers.ids)]

    def _settle(self, locals: list[int], net: list[int]) -> list[int]:
        """Everything in ``net`` and all that comes of it arrives, in order: these messages."""
        arrived: list[int] = []
        while True:
            for at, id in enumerate(self.servers.ids):
                while self.servers.writes(id, locals[at]):
                    locals[at] = self._run(self.servers.persist(id, locals[at]), net)
            if not net:
                return arrived
            message = net.pop(0)
            arrived.append(message)
            id = self.servers.messages[message].target
            locals[id - 1] = self._run(self.servers.deliver(id, locals[id - 1], message), net)

    @staticmethod
    def _run(outcome: Outcome, net: list[int]) -> int:
        if outcome.broken is not None:
            raise outcome.broken
        net.extend(outcome.sends)
        return outcome.local

    # -- bounds -----------------------------------------------------------------------------------------

    def _budget(self, left: tuple[int, ...]) -> int:
        number = self._budget_numbers.setdefault(left, len(self._budgets))
        if number == len(self._budgets):
            self._budgets.append(left)
        return number

    def _after_spending(self, budget: int, cost: int) -> int:
        """The budget that is left, or -1 if there is none for that."""
        if cost == FREE:
            return budget
        found = self._spend.get((budget, cost))
        if found is None:
            left = self._budgets[budget]
            found = _NOTHING
            if left[cost]:
                found = self._budget((*left[:cost], left[cost] - 1, *left[cost + 1 :]))
            self._spend[budget, cost] = found
        return found

    def _number(self, action: Action) -> int:
        number = self._action_numbers.setdefault(action, len(self.actions))
        if number == len(self.actions):
            self.actions.append(action)
        return number

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
        entries_left = self._budgets[budget][ENTRY]
        key = (state[at], entries_left)
        ways = self._ways.get(key)
        if ways is None:
            ways = self._ways[key] = self._find_ways(at + 1, state[at], entries_left)
        for way in ways:
            left = self._after_spending(budget, way.cost)
            if left == _NOTHING:
                continue
            kept = net
            if way.restarts and not self.bounds.late_arrivals:
                kept = tuple([m for m in net if self.servers.messages[m].target != at + 1])
            yield self._step(way.action, state, at, way.outcome, left, kept)

    def _step(self, action: int, state: State, at: int, outcome: Outcome, budget: int, net: State) -> Step:
        """Server ``at`` moves as it does; the others stay."""
        if outcome.broken is not None:
            return Step(action, None, outcome.broken)
        size, local = self.size, outcome.local
        past = state[size]
        locals = (*state[:at], local, *state[at + 1 : size])
        if local != state[at]:
            try:
                past = self.pasts.after(past, local)
                for other in range(size):
                    if other != at:
                        self.pasts.check_pair(local, locals[other])
                if not self.bounds.wipes:
                    self.pasts.check_disks(past, locals)
            except Broken as broken:
                return Step(action, None, broken)
        return Step(action, (*locals, past, budget, *self._all_sent(locals, at, net, outcome.sends)))

    def _all_sent(self, locals: State, moved: int, net: State, sends: State) -> State:
        """What is on its way once server ``moved`` + 1 has moved and all messages have brought forth what they can."""
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
        """Those that are not on their way yet, and matter."""
        found = []
        for message in sends:
            if message not in known and not self._is_dead(locals[self.servers.messages[message].target - 1], message):
                known[message] = None
                found.append(message)
        return found

    def _is_dead(self, local: int, message: int) -> bool:
        """Can it never matter again, see `Servers.is_dead`? Not asked where rounds may begin anew under old numbers."""
        dead = self._dead.get((local, message))
        if dead is None:
            target = self.servers.messages[message].target
            dead = not self.bounds.late_arrivals and self.servers.is_dead(target, local, message)
            self._dead[local, message] = dead
        return dead

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

    def arrival(self, local: int, message: int) -> Arrival:
        """What ``message`` does to its target in state ``local``."""
        arrival = self._arrivals.get((local, message))
        if arrival is None:
            arrival = self._arrivals[local, message] = self._arrival(local, message)
        return arrival

    def _arrival(self, local: int, message: int) -> Arrival:
        servers = self.servers
        id = servers.messages[message].target
        plain = servers.deliver(id, local, message)
        moves: list[tuple[int, Outcome]] = []
        answers: State = ()
        if plain.broken is None and plain.local == local:
            answers = plain.sends
        elif self._within(plain):
            moves.append((self._number(Action("deliver", id, message)), plain))
        if servers.hears_leader(id, local):
            forgot = servers.deliver(id, local, message, forgets=True)
            if forgot.sends != plain.sends and self._within(forgot):
                moves.append((self._number(Action("forget", id, message)), forgot))
        return Arrival(moves, answers)

    def _timers(self, id: int, local: int) -> list[Timer]:
        """Those whose running out is of interest."""
        return self.servers.timers(id, local)

    def _find_ways(self, id: int, local: int, entries_left: int) -> list[Way]:
        servers, bounds = self.servers, self.bounds
        writes = servers.writes(id, local)
        ways: list[Way] = []

        def add(cost: int, outcome: Outcome, kind: str, what: int = 0, restarts: bool = False) -> None:
            if self._within(outcome):
                ways.append(Way(self._number(Action(kind, id, what)), cost, outcome, restarts))

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
    """The append with that number, each of a client of its own."""
    client = f"~018bcfe5-6800-7000-8000-{number:012x}"
    return AppendRun(number, client, 0, 1, [(1, b"%d" % number)])
