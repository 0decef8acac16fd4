"""`alpo bench failover`: stop the leader, time the appends meanwhile, start the server again; several rounds.

From the signal on, one append after the other is made, until one that began after the leader's process had ended is
guaranteed. A round's figure is the longest of them: after SIGKILL that is the first, from the signal until another
server leads; after SIGTERM it is whatever the handover cost. Other appends may be kept in flight meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

import alpo

from ..local_cluster import LocalCluster, caught_up_within
from .load import Load, Tally, Window
from .stats import Latencies, Result

LEVEL_WITHIN_S = 30.0
_SETTLE_S = 0.3


@dataclass(slots=True)
class Rounds:
    """Measurements: the longest append of each round, in seconds."""

    waits_s: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        ordered = sorted(self.waits_s)
        middle = len(ordered) // 2
        median_s = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return round(median_s * 1000, 1)

    @property
    def max_ms(self) -> float:
        return round(max(self.waits_s) * 1000, 1)


async def failover(
    cluster: LocalCluster, rounds: int, signal_number: signal.Signals, load: Load,
    on_round: Callable[[int, float], None],
) -> tuple[Result, Rounds]:
    """Measure, while ``load`` is kept up beside the timed appends (``load.seconds``: longest time for a round).

    Raises Failed if the cluster does not come back, NotGuaranteed if a round takes too long.
    """
    tally, measured = Tally(), Rounds()
    payloads = [os.urandom(load.payload_bytes) for _ in range(load.batch)]
    started_s = time.perf_counter()
    async with alpo.connect(cluster.addresses, timeout_s=load.seconds) as log:
        async with trio.open_nursery() as beside:
            stop = trio.Event()
            for share in load.shares():
                beside.start_soon(_keep_up, cluster.addresses, load, payloads, share, tally, stop)
            for number in range(1, rounds + 1):
                leader = await caught_up_within(cluster, LEVEL_WITHIN_S, steady=load.outstanding == 0)
                await log.append_batch(payloads)
                # A server that has just come back counts only once it is connected to all others.
                await trio.sleep(_SETTLE_S)
                measured.waits_s.append(await _one_round(cluster, leader, signal_number, log, payloads, tally))
                on_round(number, measured.waits_s[-1])
            stop.set()
    await caught_up_within(cluster, LEVEL_WITHIN_S)
    elapsed_s = time.perf_counter() - started_s
    latencies = Latencies()
    for wait_s in measured.waits_s:
        latencies.add(wait_s)
    moved = tally.done * load.batch * load.payload_bytes
    return Result(tally.done, moved, elapsed_s, latencies, tally.errors), measured


async def _keep_up(servers: str, load: Load, payloads: list[bytes], share: int, tally: Tally, stop: trio.Event) -> None:
    async with alpo.connect(servers, timeout_s=load.seconds) as log:
        await Window(log, payloads, share, tally).run(stop.is_set)


async def _one_round(
    cluster: LocalCluster, leader: int, signal_number: signal.Signals, log: alpo.Log, payloads: list[bytes],
    tally: Tally,
) -> float:
    server = cluster.get(leader)
    longest_s, gone = 0.0, False
    server.send(signal_number)
    while not gone:
        gone = not server.running()
        begun_s = time.perf_counter()
        await log.append_batch(payloads)
        longest_s = max(longest_s, time.perf_counter() - begun_s)
        tally.done += 1
    cluster.spawn([server])
    return longest_s
