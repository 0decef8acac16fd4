"""Processes that share a state under faults, held against a fold of the whole log; and mutations that this must catch.

The mutations are those of the design's own search (docs/state.md names what each would lose).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from model_judge import Wrong
from model_kit import SCENES
from some import some

from alpo.errors import NotGuaranteed
from alpo.registry import Registry
from alpo.registry.operations import Batch
from alpo.rsm.machine import Outcome, Result
from alpo.state import outcomes
from alpo.state.codec import By, Command, Guard
from alpo.state.folder import Folder
from alpo.state.machine import Cell, Machine
from alpo.state.state import State
from alpo.testing import Broken

#: Runs of each scene in the quick tests, and in the soak.
QUICK, LONG = 8, 2000
#: Most runs until a mutation must have been caught.
MUTATION_RUNS = 400


@pytest.mark.parametrize("scene", SCENES)
def test_no_report_contradicts_the_log(scene: str) -> None:
    stats: Counter[str] = Counter()
    for seed in range(QUICK):
        stats += SCENES[scene].run(seed)
    assert sum(stats[each] for each in ("done", "row", "answer")) > QUICK, f"little happened: {stats}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scene", SCENES)
def test_no_report_contradicts_the_log_in_thousands_of_runs(scene: str) -> None:
    for seed in range(QUICK, LONG):
        SCENES[scene].run(seed)


# -- mutations ------------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def fetch_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A: a fetch answers from what is folded, without a question for the end."""
    async def now(folder: Folder, until_s: float | None = None) -> Machine:
        return await folder.reach(0)

    patch.setattr(Folder, "now", now)


def guards_at_the_sender(patch: pytest.MonkeyPatch) -> None:
    """B: conditions are tested by the process that sends, not at the LSN where the command lands."""
    done = Machine._do

    def at_once(machine: Machine, guards: Sequence[Guard]) -> None:
        for by, name, wanted in guards:
            cell = machine.cells.get(name)
            have = 0 if cell is None else cell.created if by == By.CREATED else cell.version
            if have != wanted:
                raise outcomes._changed(name, wanted, have)

    patch.setattr(Machine, "_do", lambda self, command, blob: done(self, command._replace(guards=[]), blob))
    patch.setattr("alpo.state.state.refuse_at_once", at_once)


def versions_that_count(patch: pytest.MonkeyPatch) -> None:
    """G: a version counts the writes of a variable, so it comes again after the variable was gone."""
    cell_of = Machine._cell

    def counted(self: Machine, name: str, before: Cell | None, value: bytes, lease_ms: int) -> Cell:
        cell = cell_of(self, name, before, value, lease_ms)
        return cell._replace(version=1 if before is None else before.version + 1)

    patch.setattr(Machine, "_cell", counted)


def leases_by_ones_own_clock(patch: pytest.MonkeyPatch) -> None:
    """K: each process lets leases lapse when its own clock says so, which is fast or slow."""
    apply, machines = Machine.apply, count()
    fast_ms: dict[int, int] = {}

    def early(self: Machine, lsn: int, time_ms: int, payload: bytes, term: int = 0) -> Result:
        self.time_ms = time_ms + fast_ms.setdefault(id(self), next(machines) % 5 * 300)
        self._lapse()
        return apply(self, lsn, time_ms, payload)

    patch.setattr(Machine, "apply", early)


def answers_unchecked(patch: pytest.MonkeyPatch) -> None:
    """I: a registry answers what takes no write without making sure that it still leads."""
    landed = Registry._landed

    async def unchecked(self: Registry, batch: Batch) -> bool:
        return batch.sent is None or await landed(self, batch)

    patch.setattr(Registry, "_landed", unchecked)


def sent_again_under_a_new_serial(patch: pytest.MonkeyPatch) -> None:
    """O: a command whose outcome is unknown is sent again as a new one."""
    do = State._do

    async def again(self: State, guards: Any, ops: Any) -> Result:
        try:
            return await do(self, guards, ops)
        except NotGuaranteed:
            return await do(self, guards, ops)

    patch.setattr(State, "_do", again)


def rows_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """P: rows are written whether or not their owner is still the one that the writer knows."""
    done = Machine._do

    def careless(self: Machine, command: Command, blob: bytes) -> Result:
        result = done(self, command, blob)
        if result.outcome is not Outcome.UNFENCED:
            return result
        for op in command.ops:
            self._set(op[1], self._cell(op[1], self.cells.get(op[1]), op[2], op[3]))
        return Result(Outcome.DONE, self.lsn)

    patch.setattr(Machine, "_do", careless)


def existence_told_from_an_old_fold(patch: pytest.MonkeyPatch) -> None:
    """Q: "it is there" is told from a fold that may be old, where the variable may have been gone all the time."""
    def at_once(machine: Machine, guards: Sequence[Guard]) -> None:
        for by, name, wanted in guards:
            cell = machine.cells.get(name)
            have = 0 if cell is None else cell.created if by == By.CREATED else cell.version
            if have != wanted and wanted <= machine.lsn:
                raise outcomes._changed(name, wanted, have)

    patch.setattr("alpo.state.state.refuse_at_once", at_once)


MUTATIONS: dict[str, tuple[Patch, tuple[str, ...]]] = {
    "A": (fetch_without_asking, ("update",)),
    "B": (guards_at_the_sender, ("update",)),
    "G": (versions_that_count, ("churn",)),
    "I": (answers_unchecked, ("registry",)),
    "K": (leases_by_ones_own_clock, ("lock",)),
    "O": (sent_again_under_a_new_serial, ("add",)),
    "P": (rows_without_a_fence, ("careless",)),
    "Q": (existence_told_from_an_old_fold, ("churn",)),
}


@pytest.mark.parametrize("name", some(MUTATIONS))
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, scenes = MUTATIONS[name]
    patch(monkeypatch)
    for seed in range(MUTATION_RUNS):
        for scene in scenes:
            try:
                SCENES[scene].run(seed)
            except (Wrong, Broken):
                return
    pytest.fail(f"{MUTATION_RUNS} runs did not catch it")
