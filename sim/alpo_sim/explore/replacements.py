"""The space of replacement (R30): a server whose disk is lost comes back with another, under a leader of term 1.

Laws, besides those of `messages`:

* A leader that misses somebody goes on missing him until it hears him; whom it misses is a choice, and costs a timer.
* A server that waits to be listed asks once: what it asked, and what it was told, stay on their way.
* The replicated state is saved with every entry that is guaranteed, so that a base is there when it is wanted.
* What was guaranteed need not be on a majority of the disks that there are: one may be the lost one. What follows from
  it is checked: whoever leads holds it.
"""

from __future__ import annotations

from .messages import TIMER, Action, Bounds, Messages, Way
from .timeless import Timer

FIRST_LEADER = 1


class Replacements(Messages):
    """The space; ``bounds.wipes`` disks are lost, anybody's."""

    def __init__(self, bounds: Bounds, size: int = 3) -> None:
        super().__init__(bounds, size, limits={"table_save_entries": 1})

    def _start(self, locals: list[int], net: list[int]) -> list[int]:
        """Then the first election, as it goes when nothing goes wrong."""
        locals = super()._start(locals, net)
        at = FIRST_LEADER - 1
        locals[at] = self._run(self.servers.time(FIRST_LEADER, locals[at], Timer.CANVASS), net)
        arrived = self._settle(locals, net)
        targets = [self.servers.messages[message].target for message in arrived]
        done = [Action("deliver", target, message) for target, message in zip(targets, arrived, strict=True)]
        self.prelude = list(map(self._number, [Action("timer", FIRST_LEADER, int(Timer.CANVASS)), *done]))
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
                        ways.append(Way(self._number(Action("miss", id, peer)), TIMER, outcome))
        return ways
