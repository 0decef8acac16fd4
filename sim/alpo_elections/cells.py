"""The list of all cases that are measured, many runs of each, and the summary of a case that a table shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

from alpo_sim.spread import spread

from .arena import Profile
from .cases import LAN, PAPER, PROTOCOLS, Case, Outcome, measure

SIZES = (3, 5, 9)
RANDOMNESS = ((150, 150), (150, 151), (150, 155), (150, 175), (150, 200), (150, 300))
TIMEOUTS = ((12, 24), (25, 50), (50, 100), (100, 200), (150, 300))
TOPOLOGIES = ((5, "star"), (5, "chain"), (5, "bridge"), (9, "star"), (9, "bridge"))
CHUNK = 100
POINTS = 200  # of a curve, at most
NEVER_MS = float("inf")

T = TypeVar("T")


def cases() -> list[Case]:
    """All cases that are measured, each once."""
    found: dict[Case, bool] = {}
    for n in SIZES:
        for equal in (False, True):
            for low, high in RANDOMNESS + TIMEOUTS:
                found[Case("raft", n, low, high, equal=equal)] = True
            for low, _ in TIMEOUTS:
                found[Case("alpo", n, low, low, equal=equal)] = True
                found[Case("draft", n, low, low, equal=equal)] = True
            found[Case("raft-prevote", n, 150, 300, equal=equal)] = True
            found[Case("draft-literal", n, 150, 150, equal=equal)] = True
            for protocol in PROTOCOLS:
                found[one(protocol, n, 150, "scattered", equal, PAPER, 0.5)] = True
                found[one(protocol, n, 500, "crash", equal, LAN, 0.2)] = True
    for n, fault in TOPOLOGIES:
        for equal in (False, True):
            for protocol in PROTOCOLS:
                found[one(protocol, n, 150, fault, equal, PAPER, 0.2)] = True
                found[one(protocol, n, 500, fault, equal, LAN, 0.2)] = True
    return list(found)


def one(protocol: str, servers: int, low_ms: int, fault: str, equal: bool, profile: Profile, beat: float) -> Case:
    """Make a case; Raft's longest timeout is twice its shortest, ``low_ms``, as the paper advises."""
    high_ms = 2 * low_ms if protocol.startswith("raft") else low_ms
    return Case(protocol, servers, low_ms, high_ms, fault, equal, profile, beat)


def runs_of(case: Case, runs: int) -> int:
    """Number of runs for a case: ``runs``, or a fiftieth where most runs elect nobody and so take longest."""
    near = case.timeout_s < 2 * case.profile.broadcast_s
    even = case.protocol == "raft" and case.high_ms - case.low_ms <= 1
    parted = case.protocol == "draft-literal" and case.fault not in ("crash", "scattered")
    return max(1, runs // 50) if near or even or parted else runs


@dataclass(frozen=True, slots=True)
class Cell:
    """Summary of a case's runs. Quantiles are of all runs; a run without a leader in 60 T counts as infinite."""

    case: Case
    runs: int
    none: int  # runs without a leader within 60 T
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    heard_p50_ms: float  # time until all servers that the leader reaches follow it
    heard_p99_ms: float
    heard_max_ms: float
    lost: float  # share of the runs whose first leader was deposed before that
    candidacies: float  # a run, on average
    terms: float  # terms in which somebody stood, on average
    terms_max: int
    split: float  # share of the runs in which a term had candidates and no leader
    curve_ms: list[float]  # times until all follow, at even shares of the ``followed``
    followed: float  # share of the runs with a leader that all follow


def quantile(ordered: list[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the ascending ``ordered`` lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _ordered_ms(seconds: list[float | None]) -> list[float]:
    return sorted(NEVER_MS if each is None else each * 1000 for each in seconds)


def summarise(case: Case, outcomes: list[Outcome]) -> Cell:
    """Make the cell of ``case`` from the outcomes of its runs."""
    led = _ordered_ms([o.leaderless_s for o in outcomes])
    heard = _ordered_ms([o.heard_s for o in outcomes])
    count = len(outcomes)
    finite = [ms for ms in heard if ms < NEVER_MS]
    step = max(1, len(finite) // POINTS)
    return Cell(
        case, count, led.count(NEVER_MS), quantile(led, 0.5), quantile(led, 0.9), quantile(led, 0.99), led[-1],
        quantile(heard, 0.5), quantile(heard, 0.99), heard[-1], sum(o.wins > 1 for o in outcomes) / count,
        sum(o.candidacies for o in outcomes) / count,
        sum(o.terms for o in outcomes) / count, max(o.terms for o in outcomes),
        sum(o.split > 0 for o in outcomes) / count, finite[::step] + finite[-1:],
        len(finite) / count,
    )


def over_runs(
    call: Callable[..., T], wanted: Sequence[tuple[tuple[object, ...], int]], jobs: int,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[list[T]]:
    """Yield for each (arguments, runs) of ``wanted``, in order, the results of ``call(*arguments, run)`` for every run.

    The calls are spread over ``jobs`` processes, so ``call`` is a module's function. ``done`` is called with the number
    of further runs that are over.
    """
    parts: list[Callable[[], list[T]]] = [
        partial(_some, call, arguments, range(first, min(first + CHUNK, runs)))
        for arguments, runs in wanted for first in range(0, runs, CHUNK)
    ]
    results = spread(parts, jobs, 8)
    for _, runs in wanted:
        found: list[T] = []
        while len(found) < runs:
            more = next(results)
            done(len(more))
            found += more
        yield found


def _some(call: Callable[..., T], arguments: tuple[object, ...], runs: range) -> list[T]:
    return [call(*arguments, run) for run in runs]


def measured(
    wanted: list[Case], runs: int, jobs: int = os.cpu_count() or 1, done: Callable[[int], None] = lambda count: None,
) -> Iterator[Cell]:
    """Measure every case; yields a cell for each. ``done`` is called with the number of further runs that are over."""
    every = [((case,), runs_of(case, runs)) for case in wanted]
    for case, outcomes in zip(wanted, over_runs(measure, every, jobs, done), strict=True):
        yield summarise(case, outcomes)


CSV_HEAD = [
    "protocol", "servers", "low_ms", "high_ms", "fault", "equal_logs", "profile", "heartbeat_of_low",
    "runs",
    *(f.name for f in fields(Cell) if f.name not in ("case", "curve_ms", "runs")),
]


def csv_row(cell: Cell) -> list[str]:
    """The row of ``cell`` in the CSV file, in the order of `CSV_HEAD`."""
    c = cell.case
    row: list[object] = [c.protocol, c.servers, c.low_ms, c.high_ms, c.fault, c.equal, c.profile.name, c.beat]
    row += [getattr(cell, name) for name in CSV_HEAD[len(row):]]
    return [f"{each:.3f}" if isinstance(each, float) else str(each) for each in row]
