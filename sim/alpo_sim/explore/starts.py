"""Spaces in which disks are lost: the first start (R29), and the replacement of a lost disk (R30).

Laws of the first start, besides those of `messages`:

* An unstarted server moves on when it has an answer of each other server. All answers stay on their way, so the server
  may hear any of them again just then: hearing one answer of each server is one action, and earlier answers that led
  nowhere make no difference.

Laws of replacement, besides those of `messages`:

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

from alpo.core.members import StartStatus
from alpo.core.messages import StartAnswer

from .messages import TIMER, Action, Arrival, Bounds, Messages, Way
from .search import State, Step
from .servers import Outcome
from .timeless import Timer

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
        locals[at] = self._run(self.servers.time(FIRST_LEADER, locals[at], Timer.CANVASS), net)
        arrived = self._settle(locals, net)
        targets = [self.servers.messages[message].target for message in arrived]
        done = [Action("deliver", target, message) for target, message in zip(targets, arrived, strict=True)]
        self.prelude = list(map(self._actions.number, [Action("timer", FIRST_LEADER, int(Timer.CANVASS)), *done]))
        return self._quiet(locals)

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
