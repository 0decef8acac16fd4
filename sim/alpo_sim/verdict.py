"""Runs of worlds, and their verdicts."""

from __future__ import annotations

import time
from typing import NamedTuple

from .broken import Broken
from .options import Options
from .scenario import CRASHED
from .world import World


class Verdict(NamedTuple):
    """Verdict on a run. ``invariant`` and ``detail``: what broke, "" if no check did. ``virtual_s``: virtual seconds;
    ``cpu_s``: seconds of processor time; the other fields count events."""

    options: Options
    invariant: str
    detail: str
    steps: int
    acknowledged: int
    reads: int
    entries: int
    terms: int
    faults: int
    virtual_s: float
    cpu_s: float

    @property
    def ok(self) -> bool:
        return not self.invariant


def run_world(world: World, crashes: tuple[type[Exception], ...] = ()) -> Verdict:
    """Run ``world`` to its end or the first check that fails. Exceptions of types ``crashes`` break `CRASHED`."""
    began = time.process_time()
    invariant = detail = ""
    try:
        world.run()
    except Broken as broken:
        invariant, detail = broken.invariant, broken.detail
    except crashes as error:
        invariant, detail = CRASHED, f"{type(error).__name__}: {error}"
    return Verdict(
        world.options, invariant, detail, world.stage.steps, world.history.acknowledged, world.history.reads,
        len(world.safety.guaranteed), len(world.safety.leaders), sum(world.faults.counts.values()),
        world.now_us / 1e6, time.process_time() - began,
    )
