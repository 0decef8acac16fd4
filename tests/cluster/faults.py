"""Random faults of a whole cluster, all of them drawn from one seed: `schedule` draws, `Injector` inflicts.

What is drawn is a list, the same for the same seed; when it hits and whom (a leader is only known at that moment) is
the run's. Every fault ends by itself. What is harmed of a disk, and when: `disk_faults`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio
from disk_faults import DiskFaults
from disks import OwnDisk
from harness import Cluster
from proxy import CLIENT
from workload import History

from alpo import AlpoError, OutOfRange, connect

GAP_S = (1.0, 3.0)
PAUSE_S = (0.1, 3.0)
DOWN_S = (0.1, 3.0)
NETWORK_S = (0.3, 4.0)
DELAY_S = (0.005, 0.3)
#: Slow links: 0.4 to 40 Mbit/s. Lossy links: share of packets lost. Starved servers: share of time stopped, slices.
SLOW_BYTES_PER_S = (5e4, 5e6)
LOSS = (0.01, 0.2)
STARVED = (0.5, 0.9)
SLICE_S = (0.05, 0.5)
#: Probability that a fault is aimed at the leader of the moment.
AT_LEADER = 0.5

#: Kinds of faults, and how often each is drawn.
KINDS = {
    "kill -9": 5, "stop": 4, "cut": 2, "reset": 2, "delay": 2, "one way": 2, "half open": 3, "isolate": 3,
    "isolate from servers": 2, "transfer": 2, "trim": 3,
    "slow links": 4, "lossy": 3, "starve": 4,
    "lose disk": 2, "flip file": 4, "flip WAL": 3, "roll back": 2, "replace": 2, "fill disk": 3, "fail writes": 2,
    "power cut": 4, "hang disk": 4, "slow disk": 3,
}
_HARM = ("lose disk", "flip file", "flip WAL", "roll back", "replace")
#: Kinds of faults of a server itself, not of the network: a server has one of them at a time.
_LIFE = ("kill -9", "stop", "starve", "fill disk", "fail writes", "power cut", "hang disk", "slow disk", *_HARM)
#: Payloads that a trim leaves at least, of those that the follower has.
TRIM_LEAVES = 200


class Fault(NamedTuple):
    """A fault, ``gap_s`` after the one before; at ``server`` (0: the leader), and for some kinds towards ``other``."""

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
        length_s = rng.uniform(*(PAUSE_S if kind == "stop" else DOWN_S if kind in _LIFE else NETWORK_S))
        server = 0 if rng.random() < AT_LEADER else rng.randint(1, size)
        yield Fault(rng.uniform(*GAP_S), kind, server, rng.randint(0, size), length_s, rng.uniform(*DELAY_S))


def kinds_within(seed: int, size: int, seconds: float) -> set[str]:
    """Kinds of faults that a seed draws within that time."""
    found: set[str] = set()
    for fault in schedule(seed, size):
        seconds -= fault.gap_s
        if seconds < 0:
            break
        found.add(fault.kind)
    return found


@dataclass(slots=True)
class Injector:
    """Inflicts faults on a cluster. ``histories``: those of its logs, the first log's first. ``by_kind`` counts faults;
    ``died``: servers that ended by themselves; ``unmended``: what should have followed from a fault, and did not;
    ``small`` and ``own``: see `DiskFaults`."""

    cluster: Cluster
    seed: int
    histories: list[History]
    small: Mapping[Path, OwnDisk]
    own: Mapping[Path, OwnDisk]
    by_kind: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    unmended: list[str] = field(default_factory=list)
    disks: DiskFaults = field(init=False)
    _busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.disks = DiskFaults(
            self.cluster, self.seed, self.by_kind, self.unmended, self.small, self.own, self.histories
        )

    async def run(self) -> None:
        """Inflict faults until cancelled; every fault under way is then ended, and all servers run."""
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
        """Id of the server that leads at this moment; 1 if no leader is known."""
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
        if fault.kind in _HARM:
            async with self.disks.one_harmed:
                await self._live(fault.kind, id, fault.length_s)
        elif fault.kind == "power cut":
            await self._cut_power(id, all_hosts=fault.other % 2 == 0, length_s=fault.length_s)
        elif fault.kind in _LIFE:
            await self._live(fault.kind, id, fault.length_s)
        elif fault.kind == "transfer":
            self.by_kind[fault.kind] += 1
            with suppress(AlpoError):
                async with connect(self.cluster.addresses, timeout_s=2.0, log=self._one_of(fault).log) as log:
                    await log.transfer(id)
        elif fault.kind == "trim":
            await self._trim(self._one_of(fault))
        else:
            self.by_kind[fault.kind] += 1
            await self._network(fault, id)

    async def _live(self, kind: str, id: int, length_s: float) -> None:
        """Inflict a fault of a server itself, unless another one of `_LIFE` is under way there."""
        if id not in self._busy:
            self._busy.add(id)
            try:
                await self._live_through(kind, id, length_s)
            finally:
                self._busy.remove(id)

    async def _cut_power(self, id: int, all_hosts: bool, length_s: float) -> None:
        """Cut the power of one host or of all, unless another fault is under way there."""
        ids = list(self.cluster.servers) if all_hosts else [id]
        if self._busy.isdisjoint(ids) and all(map(self.disks.can_cut_power, ids)):
            self._busy.update(ids)
            try:
                await self.disks.cut_power(ids, length_s)
            finally:
                self._busy.difference_update(ids)

    async def _live_through(self, kind: str, id: int, length_s: float) -> None:
        match kind:
            case "kill -9":
                self.by_kind[kind] += 1
                await self._kill(id, length_s)
            case "stop":
                self.by_kind[kind] += 1
                await self._stop(id, length_s)
            case "starve":
                self.by_kind[kind] += 1
                await self._starve(id, length_s)
            case "fill disk":
                await self.disks.fill_up(id, length_s)
            case "fail writes":
                await self.disks.fail_writes(id, length_s)
            case "hang disk" | "slow disk":
                await self.disks.hold_up(kind, id, length_s)
            case _:
                await self.disks.harm(kind, id, length_s)

    def _one_of(self, fault: Fault) -> History:
        """The log that a fault is of."""
        return self.histories[fault.other % len(self.histories)]

    async def _trim(self, history: History) -> None:
        """Trim what the follower has read and its cursor no longer keeps; then a read of it must fail."""
        before = min(history.cursor_lsn, len(history.followed) - TRIM_LEAVES)
        if before < 2:
            return
        with suppress(AlpoError):
            async with connect(self.cluster.addresses, timeout_s=5.0, log=history.log) as log:
                await log.trim(before)
                self.by_kind["trim"] += 1
                try:
                    found = [record.lsn async for record in log.read(before - 1, before - 1)]
                except OutOfRange as error:
                    if error.first_lsn < before:
                        self.unmended.append(f"the log was trimmed below {before}, but begins at {error.first_lsn}")
                else:
                    self.unmended.append(f"LSN {found} was read after a trim below {before}")

    async def _kill(self, id: int, down_s: float) -> None:
        self.cluster.servers[id].kill()
        try:
            await trio.sleep(down_s)
        finally:  # a fault of a disk may wait for it
            self.cluster.start(id)

    async def _stop(self, id: int, pause_s: float) -> None:
        self.cluster.servers[id].pause()
        try:
            await trio.sleep(pause_s)
        finally:
            self.cluster.servers[id].resume()

    async def _starve(self, id: int, length_s: float) -> None:
        """Starve a server as on a host with too few processors: it runs a slice, and stands still for longer."""
        rng = random.Random(f"{self.seed}/{length_s}")
        share, slice_s = rng.uniform(*STARVED), rng.uniform(*SLICE_S)
        until_s = trio.current_time() + length_s
        while trio.current_time() < until_s:
            await self._stop(id, share * slice_s)
            await trio.sleep((1 - share) * slice_s)

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
            case "slow links":
                flows = [flow for end in others for flow in ((id, end), (end, id))]
                low, high = SLOW_BYTES_PER_S
                for flow in flows:
                    network.slow(*flow, low * (high / low) ** (fault.delay_s / DELAY_S[1]))
            case "lossy":
                flows = [flow for end in others for flow in ((id, end), (end, id))]
                for flow in flows:
                    network.lossy(*flow, LOSS[0] + (LOSS[1] - LOSS[0]) * fault.delay_s / DELAY_S[1])
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
        try:
            await trio.sleep(fault.length_s)
        finally:
            for flow in flows:
                network.heal(*flow)
