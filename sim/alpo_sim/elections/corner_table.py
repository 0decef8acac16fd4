"""The bad worlds of `corners`, played by three protocols, and the worst of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .cells import NEVER_MS, Task, quantile, spread
from .corners import FAMILIES, TIMEOUT_S, draw, play

PROTOCOLS = {"alpo": "ALPO", "raft": "Raft", "raft-prevote": "Raft, pre-vote and check-quorum"}
CHUNK = 100
HEAD = ("trouble", "", "protocol", "runs", "p50", "p99", "max", "no leader in 60 T", "worst seed")


class CornerRow(NamedTuple):
    """Times in T. ``worst``: the seed of the longest."""

    family: str
    protocol: str
    runs: int
    p50: float
    p99: float
    max: float
    none: int
    worst: int

    def cells(self) -> list[str]:
        family = [self.family, FAMILIES[self.family]] if self.protocol == "alpo" else ["", ""]
        return [
            *family, PROTOCOLS[self.protocol], f"{self.runs:,}", _in_t(self.p50), _in_t(self.p99), _in_t(self.max),
            str(self.none), str(self.worst),
        ]


def _in_t(value: float) -> str:
    return "none" if value == NEVER_MS else f"{value:.2f}"


def some(family: str, protocol: str, first: int, last: int) -> list[float]:
    """Times in T, infinite without a leader."""
    found = []
    for seed in range(first, last):
        led_s = play(draw(family, seed), protocol).heard_s
        found.append(NEVER_MS if led_s is None else led_s / TIMEOUT_S)
    return found


def corner_rows(runs: int, jobs: int) -> Iterator[CornerRow]:
    wanted = [(family, protocol) for family in FAMILIES for protocol in PROTOCOLS]
    tasks: list[Task[list[float]]] = [
        (some, (*each, first, min(first + CHUNK, runs))) for each in wanted for first in range(0, runs, CHUNK)
    ]
    results = spread(tasks, jobs)
    for family, protocol in wanted:
        times: list[float] = []
        while len(times) < runs:
            times += next(results)
        worst = max(range(runs), key=times.__getitem__)
        ordered = sorted(times)
        yield CornerRow(
            family, protocol, runs, quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1],
            sum(each == NEVER_MS for each in ordered), worst,
        )
