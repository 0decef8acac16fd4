"""Executors' part of a sweep: run the worlds of a range of seeds, and shrink one that failed.

Laws:

* The seed, the options and the code alone determine what a seed does; so an executor with other code than the driver's
  is refused.
* A file appears whole, under a name made of its seeds, and is never overwritten: doing it again does no harm.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import alpo.core
import alpo.storage
from alpo import __version__
from alpo.core.disk import Write
from alpo.core.messages import Envelope
from alpo.core.ready import Input, Ready
from alpo.spark.ledger import make
from alpo.spark.origin import SourceError
from alpo_cli.exits import reason

from . import sweep_files
from .commands.output import mutated
from .commands.scenarios import file_text
from .commands.worlds import repeat, world_of
from .host import Host
from .replay import recorded
from .scenario import CORE_ERRORS
from .shrink import CannotReplay, Shrinker
from .world import Verdict, run_world

_FOLDERS = (alpo.core, alpo.storage)


@cache
def code_digest() -> str:
    """16 hexadecimal digits, a digest of the sources of the core, the stores and the simulator. Raises OSError."""
    digest = hashlib.blake2b(digest_size=8)
    folders = [Path(str(package.__file__)).parent for package in _FOLDERS]
    for folder in (*folders, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class Worlds:
    """Kind of worlds: options of `alpo-sim run`, None: drawn, or the mutation's own. ``mutation`` "": none. ``code``:
    the driver's `code_digest`."""

    servers: int | None
    seconds: int | None
    mutation: str
    code: str


@dataclass(frozen=True)
class RangeTask:
    """Task to run seeds ``first`` … ``last``."""

    directory: str
    worlds: Worlds
    first: int
    last: int


@dataclass(frozen=True)
class ShrinkTask:
    """Task to shrink one seed, for at most ``limit_s``."""

    directory: str
    worlds: Worlds
    seed: int
    limit_s: float


class Shrunk(NamedTuple):
    """A shrunk failure; ``lines`` 0: it cannot be replayed on the core alone."""

    seed: int
    lines: int


class _Events:
    """Watcher that counts the core's events."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def booted(self, host: Host) -> None: ...

    def sent(self, host: Host, envelope: Envelope) -> None: ...

    def committing(self, host: Host, writes: Sequence[Write]) -> None: ...

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for event in ready.events:
            self.counts[event.name] += 1


def run_range(task: RangeTask) -> int:
    """Run the worlds and write their file; returns how many. Raises `SourceError`."""
    _check_code(task.worlds)
    with mutated(task.worlds.mutation):
        rows = [row_of(task.worlds, seed) for seed in range(task.first, task.last + 1)]
    path = Path(task.directory) / sweep_files.range_name(task.first, task.last)
    try:
        sweep_files.write_rows(path, rows)
    except OSError as error:
        raise SourceError(f"{path}: {reason(error)}") from error
    return len(rows)


def row_of(worlds: Worlds, seed: int) -> dict[str, Any]:
    """Run one world, with the mutation in force; returns its row (`sweep_files.SCHEMA`)."""
    world = world_of(seed, worlds.servers, worlds.seconds, worlds.mutation)
    events = _Events()
    world.stage.watchers.append(events)
    verdict = run_world(world, CORE_ERRORS)
    return {
        "seed": seed, "mutation": worlds.mutation, "outcome": "held" if verdict.ok else "broke",
        "invariant": verdict.invariant, "detail": verdict.detail, "repeat": _repeat(verdict, worlds),
        "servers": verdict.options.servers, "steps": verdict.steps, "acknowledged": verdict.acknowledged,
        "reads": verdict.reads, "entries": verdict.entries, "terms": verdict.terms, "faults": verdict.faults,
        "faults_by_kind": sorted(world.faults.counts.items()), "events": sorted(events.counts.items()),
        "virtual_s": verdict.virtual_s, "cpu_s": verdict.cpu_s,
        "options": json.dumps(verdict.options.describe()), "version": __version__, "code": worlds.code,
    }


def shrink_seed(task: ShrinkTask) -> Shrunk:
    """Write the seed's scenario file, or a file that says why there is none. Raises `SourceError`."""
    worlds, seed = task.worlds, task.seed
    _check_code(worlds)
    with mutated(worlds.mutation):
        world = world_of(seed, worlds.servers, worlds.seconds, worlds.mutation, record=True)
        verdict = run_world(world, CORE_ERRORS)
        if verdict.ok:
            raise SourceError(f"seed {seed} failed, and now it does not: {_repeat(verdict, worlds)}")
        schedule = recorded(world.stage, worlds.mutation)
        try:
            found = Shrinker(schedule, verdict.invariant, limit_s=task.limit_s).run()
        except CannotReplay as error:
            return _keep(task, Shrunk(seed, 0), f"{_no_schedule(verdict, worlds)}: {error}\n")
        text = file_text(found, seed, worlds.servers, worlds.seconds, worlds.mutation)
    return _keep(task, Shrunk(seed, len(found.lines)), text)


def _no_schedule(verdict: Verdict, worlds: Worlds) -> str:
    """Text for a failure that only the whole world shows (no progress; an impossible answer): no schedule has it."""
    return (
        f"{verdict.invariant}: {verdict.detail}\nrepeat: {_repeat(verdict, worlds)} --trace FILE\n"
        "no scenario: on the core alone it does not fail"
    )


def _keep(task: ShrinkTask, shrunk: Shrunk, text: str) -> Shrunk:
    path = sweep_files.found_path(Path(task.directory), shrunk.seed, replayable=bool(shrunk.lines))
    try:
        make(path, [text.encode()])
    except OSError as error:
        raise SourceError(f"{path}: {reason(error)}") from error
    return shrunk


def _repeat(verdict: Verdict, worlds: Worlds) -> str:
    return repeat(verdict, worlds.mutation, worlds.servers, worlds.seconds)


def _check_code(worlds: Worlds) -> None:
    if code_digest() != worlds.code:
        raise SourceError(
            f"an executor has other code than the driver, {code_digest()}, not {worlds.code}: what a seed does would"
            " differ"
        )
