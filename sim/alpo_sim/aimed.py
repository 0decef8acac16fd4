"""Faults at critical moments: while a base, a new member list, a handover or an election is under way."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.ready import Input, Ready

from .cluster import Cluster
from .faults import Faults
from .host import Host
from .options import MS
from .stage import Watcher

#: Event that a server reports -> the probability that a fault follows.
_CHANCE = {
    "base_sent": 0.5, "base_installed": 0.4, "member_change": 0.5, "lost_disk": 0.4, "handing_over": 0.4,
    "leader": 0.1, "candidate": 0.05,
}


class Aimed(Watcher):
    """Watcher that lets faults follow on events; each fault ends by itself."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self._cluster, self._faults = cluster, faults
        self._bases = 0  # number of transfers begun so far

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        cluster = self._cluster
        for event in ready.events:
            self._bases += event.name == "base_sent"
            chance = _CHANCE.get(event.name)
            if chance is not None and self._faults.on and cluster.rng.random() < chance:
                within_us = cluster.rng.choice((MS, 5 * MS, 30 * MS))
                cluster.after(cluster.rng.randrange(within_us), self._happen, host.id)

    def _happen(self, id: int) -> None:
        """Let a fault happen: to the server that reported the event, or to any other."""
        cluster, faults = self._cluster, self._faults
        if not faults.on:
            return
        if cluster.rng.random() < 0.4:
            id = cluster.rng.choice(cluster.disks.in_use())
        chance = cluster.rng.random()
        if chance < 0.5:
            faults.restart(id)
        elif chance < 0.7:
            faults.isolate(id)
        elif chance < 0.85:
            faults.reset(id)
        else:
            faults.wipe_one_more()

    def restart_in_transfer(self) -> None:
        """Lose one more disk once all else is whole, and restart its server while its base is on the way."""
        cluster = self._cluster
        fit = cluster.disks.that_may_go()
        if not fit:
            return
        id, bases = cluster.rng.choice(fit), self._bases
        cluster.wipe(id)
        cluster.boot(id)
        patience_us = 30 * cluster.options.election_timeout_us
        if cluster.run_until(cluster.now_us + patience_us, lambda: self._bases > bases):
            cluster.run_until(cluster.now_us + cluster.rng.randrange(20 * MS))
            cluster.crash(id)
            cluster.boot(id)
