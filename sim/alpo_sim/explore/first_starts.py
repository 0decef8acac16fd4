"""The space of the first start (R29): three servers without a cluster, whose disks may be lost on the way.

Laws, besides those of `messages`:

* An unstarted server moves on when it has an answer of each of the others. What it was told stays on its way, so it may
  hear any of it again just then: hearing one answer of each is one action, and what it remembers of answers that led
  nowhere makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from alpo.core.members import StartStatus
from alpo.core.messages import StartAnswer

from .messages import Action, Arrival, Messages
from .search import State, Step
from .servers import Outcome


class FirstStarts(Messages):
    """The space; ``bounds.timers`` counts questions asked again, and what started servers do."""

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
                    for action, outcome in self._hear(state[at], each).moves:
                        if done.setdefault((outcome.local, outcome.sends), True) or outcome.broken is not None:
                            done[outcome.local, outcome.sends] = False
                            yield self._step(action, state, at, outcome, budget, net)

    def _hear(self, local: int, answers: State) -> Arrival:
        known = self._heard.get((local, answers))
        if known is None:
            known = self._heard[local, answers] = self._hearing(local, answers)
        return known

    def _hearing(self, local: int, answers: State) -> Arrival:
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
        self._combined.append(answers)
        action = self._number(Action("hear", id, len(self._combined) - 1))
        return Arrival([(action, Outcome(local, sends, (), outcome.broken))], ())
