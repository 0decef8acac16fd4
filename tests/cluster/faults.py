"""Random faults of a whole cluster, all of them drawn from one seed: `schedule` draws, `Injector` inflicts.

What is drawn is a list, the same for the same seed; when it hits and whom (a leader is only known at that moment) is
the run's. Every fault ends by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
from harness import Cluster
from proxy import CLIENT

GAP_S = (1.0, 3.0)
PAUSE_S = (0.1, 3.0)
DOWN_S = (0.1, 3.0)
NETWORK_S = (0.3, 4.0)
DELAY_S = (0.005, 0.3)
#: How often a fault is aimed at the leader, whoever that is.
AT_LEADER = 0.5

#: Kinds and how often each is drawn.
KINDS = {
    "kill -9": 5, "stop": 4, "cut": 2, "reset": 2, "delay": 2, "one way": 2, "half open": 3, "isolate": 3,
    "isolate from servers": 2,
}


class Fault(NamedTuple):
    """``gap_s`` after the one before; at ``server`` (0: the leader), and for some kinds towards ``other``."""

    gap_s: float
    kind: str
    server: int
    other: int
    length_s: float
    delay_s: float


def schedule(seed: int, size: int) -> Iterator[Fault]:
    """The faults of a seed, without end."""
    rng = random.Random(seed)
    kinds, weights = list(KINDS), list(KINDS.values())
    while True:
        kind = rng.choices(kinds, weights)[0]
        length_s = rng.uniform(*(DOWN_S if kind == "kill -9" else PAUSE_S if kind == "stop" else NETWORK_S))
        server = 0 if rng.random() < AT_LEADER else rng.randint(1, size)
        yield Fault(rng.uniform(*GAP_S), kind, server, rng.randint(0, size), length_s, rng.uniform(*DELAY_S))


@dataclass(slots=True)
class Injector:
    """Inflicts faults on a cluster. ``by_kind`` counts them; ``died``: servers that ended by themselves."""

    cluster: Cluster
    seed: int
    by_kind: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    _busy: set[int] = field(default_factory=set)

    async def run(self) -> None:
        """Until cancelled; every fault under way is then ended, and all servers run."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                for fault in schedule(self.seed, len(self.cluster.servers)):
                    await trio.sleep(fault.gap_s)
                    nursery.start_soon(self._inflict, fault, fault.server or await self._leader())
        finally:
            self.cluster.network.heal_all()
            for id, server in self.cluster.servers.items():
                if server.paused:
                    server.resume()
                if not server.running:
                    self.cluster.start(id)

    async def _leader(self) -> int:
        """Who leads at this moment; server 1 if nobody is known to."""
        found = await self.cluster.statuses()
        return next((id for id, fields in found.items() if fields["state"] == "leader"), 1)

    async def _watch(self) -> None:
        while True:
            for id, server in self.cluster.servers.items():
                if id not in self._busy and not server.running:
                    self.died.append(f"server {id} has ended by itself: {await server.ended()}")
                    self.cluster.start(id)
            await trio.sleep(0.1)

    async def _inflict(self, fault: Fault, id: int) -> None:
        if fault.kind in ("kill -9", "stop"):
            if id in self._busy:
                return
            self._busy.add(id)
            self.by_kind[fault.kind] += 1
            await (self._kill if fault.kind == "kill -9" else self._stop)(id, fault.length_s)
            self._busy.remove(id)
        else:
            self.by_kind[fault.kind] += 1
            await self._network(fault, id)

    async def _kill(self, id: int, down_s: float) -> None:
        self.cluster.servers[id].kill()
        await trio.sleep(down_s)
        self.cluster.start(id)

    async def _stop(self, id: int, pause_s: float) -> None:
        self.cluster.servers[id].pause()
        await trio.sleep(pause_s)
        self.cluster.servers[id].resume()

    async def _network(self, fault: Fault, id: int) -> None:
        network = self.cluster.network
        others = self.cluster.others(id)
        other = fault.other if fault.other != id else others[0]
        flows = [(id, other), (other, id)]
        match fault.kind:
            case "cut":
                network.cut(id, other)
            case "reset":
                network.reset(id, other)
            case "delay":
                for flow in flows:
                    network.delay(*flow, fault.delay_s)
            case "one way":
                flows = flows[:1]
                network.hold(*flows[0])
            case "half open":
                flows = flows[:1]
                network.drop(*flows[0])
            case "isolate":
                others = [CLIENT, *others]
                flows = [flow for end in others for flow in ((id, end), (end, id))]
                network.isolate(id, others)
            case "isolate from servers":
                flows = [flow for end in others for flow in ((id, end), (end, id))]
                network.isolate(id, others)
        await trio.sleep(fault.length_s)
        for flow in flows:
            network.heal(*flow)
