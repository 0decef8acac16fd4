"""Rules broken on purpose, one at a time, to see that the checks notice. `alpo-sim mutants` runs them all.

M1-M16, N1-N10 and S1-S10 were listed before there was any code; P1 and on came with it. Each names its rule in
docs/rules.md: by number, or by the words of the anchor of a section without a number.

`mutation` defines mutations, `worlds` makes the worlds in which they show, `fault_plans` has plans that several of them
share. `hunt` runs the worlds of one until a check breaks, `hunts` those of many, on all cores. The other modules list
mutations, by subject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from .disks import DISKS, SNAPSHOTS
from .elections import ELECTIONS
from .log import LOG, MARKS, RUNS
from .logs import LOGS
from .members import MEMBERS
from .mutation import Mutation
from .operators import OPERATORS
from .sessions import SESSIONS
from .waits import HANGS, WAITS


def _order(mutation: Mutation) -> tuple[int, int, str]:
    name = mutation.name
    return "MNSGPWHL".index(name[0]), int("".join(filter(str.isdigit, name))), name


_ALL = (*SNAPSHOTS, *DISKS, *ELECTIONS, *LOG, *MARKS, *MEMBERS, *OPERATORS, *SESSIONS, *RUNS, *WAITS, *HANGS, *LOGS)
#: Name -> mutation, in the order M, N, S, G, P, W, H, L.
MUTATIONS = {m.name: m for m in sorted(_ALL, key=_order)}

__all__ = ["MUTATIONS", "Caught", "Mutation", "hunt", "hunts", "spared"]


class Caught(NamedTuple):
    """Result for a mutation: ``invariant`` broke first in the world of seed ``seeds``; "" if no invariant broke."""

    name: str
    invariant: str
    detail: str
    seeds: int
    cpu_s: float

    @property
    def ok(self) -> bool:
        """True if one of the checks that are meant to see the mutation caught it."""
        return self.invariant in MUTATIONS[self.name].caught_by


def hunt(name: str, seeds_max: int | None = None, first: int = 1) -> Caught:
    """Run the worlds of seeds ``first``, ``first`` + 1, … until one breaks: as many as the mutation's own bound, or
    ``seeds_max``."""
    mutation = MUTATIONS[name]
    cpu_s, last = 0.0, first - 1 + (seeds_max or mutation.seeds_max)
    for seed in range(first, last + 1):
        verdict = mutation.verdict(seed)
        cpu_s += verdict.cpu_s
        if not verdict.ok:
            return Caught(name, verdict.invariant, verdict.detail, seed, cpu_s)
    return Caught(name, "", "", last, cpu_s)


def spared(name: str, seeds: int, first: int = 1) -> Caught:
    """Run the first ``seeds`` worlds of mutation ``name`` with the core unchanged, in which nothing must break."""
    mutation = MUTATIONS[name]
    cpu_s = 0.0
    for seed in range(first, first + seeds):
        verdict = mutation.verdict(seed, mutated=False)
        cpu_s += verdict.cpu_s
        if not verdict.ok:
            return Caught(name, verdict.invariant, verdict.detail, seed, cpu_s)
    return Caught(name, "", "", first - 1 + seeds, cpu_s)


def hunts(names: Sequence[str], jobs: int, seeds_max: int | None = None) -> Iterator[Caught]:
    """`hunt` each mutation, in ``jobs`` processes. Yields the results in the order in which the hunts end."""
    if jobs == 1:
        yield from (hunt(name, seeds_max) for name in names)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        under_way = [pool.submit(hunt, name, seeds_max) for name in names]
        try:
            for future in as_completed(under_way):
                yield future.result()
        finally:
            for future in under_way:
                future.cancel()
