"""Faults at the moments that matter: while a base, a new member list, a handover or an election is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpo.core.inputs import Input
from alpo.core.ready import Ready

from .host import Host
from .options import MS
from .stage import Watcher

if TYPE_CHECKING:
    from .world import World

#: How often a fault follows, by what a server says that it has just done.
_CHANCE = {
    "base_sent": 0.5, "base_installed": 0.4, "member_change": 0.5, "lost_disk": 0.4, "handing_over": 0.4,
    "leader": 0.1, "candidate": 0.05,
}


class Aimed(Watcher):
    """A watcher for worlds whose faults are aimed; each ends by itself."""

    def __init__(self, world: World) -> None:
        self._w = world
        self._bases = 0  # begun so far

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        world = self._w
        for event in ready.events:
            self._bases += event.name == "base_sent"
            chance = _CHANCE.get(event.name)
            if chance is not None and world.faults.on and world.rng.random() < chance:
                world.after(world.rng.randrange(world.rng.choice((MS, 5 * MS, 30 * MS))), self._happen, host.id)

    def _happen(self, id: int) -> None:
        """To the server that said so, or to any other."""
        world, faults = self._w, self._w.faults
        if not faults.on:
            return
        if world.rng.random() < 0.4:
            id = world.rng.choice(world.disks.in_use())
        chance = world.rng.random()
        if chance < 0.5:
            faults.restart(id)
        elif chance < 0.7:
            faults.isolate(id)
        elif chance < 0.85:
            faults.reset(id)
        else:
            faults.wipe_one_more()

    def restart_in_transfer(self) -> None:
        """One more disk is lost once all else is whole, and its server starts again while its base is on the way."""
        world = self._w
        fit = world.disks.that_may_go()
        if not fit:
            return
        id, bases = world.rng.choice(fit), self._bases
        world.wipe(id)
        world.boot(id)
        patience_us = 30 * world.options.election_timeout_us
        if world.run_until(world.now_us + patience_us, lambda: self._bases > bases):
            world.run_until(world.now_us + world.rng.randrange(20 * MS))
            world.crash(id)
            world.boot(id)
