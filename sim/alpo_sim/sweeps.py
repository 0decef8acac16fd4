"""Directory of a sweep: its request, a Parquet file for every finished range of seeds, and failures. Executors run the
worlds of a range of seeds, and shrink one that failed.

    sweep.json                                 the request: seeds, options, mutation, code
    seeds-000000000001-000000000025.parquet    a row a seed
    failures/seed-17.txt                       a seed that failed, shrunk: a scenario file
    failures/seed-23.unreplayable              a failure of which there is no schedule, and why

Laws:

* A directory has one request, and one sweep at a time.
* Every file appears whole, under a name made of its seeds, and is never overwritten. Existing files are right, so only
  what is missing is left to do.
* The seed, the options and the code alone determine what a seed does; so an executor with other code than the driver's
  is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import alpo.core
import alpo.storage
from alpo import __version__
from alpo.core.disk import Write
from alpo.core.messages import Envelope
from alpo.core.ready import Input, Ready
from alpo.spark.ledger import make, make_directory
from alpo.spark.origin import SourceError
from alpo_cli.exits import UsageProblem, reason
from alpo_cli.output import counted

from .commands.output import mutated
from .commands.scenarios import file_text
from .commands.worlds import repeat, world_of
from .host import Host
from .replay import recorded
from .scenario import CORE_ERRORS
from .shrink import CannotReplay, Shrinker
from .world import Verdict, run_world

FORMAT, VERSION = "alpo-sweep", 1
WISH, LOCK, FAILURES = "sweep.json", "sweep.lock", "failures"
SCHEMA = pa.schema([
    ("seed", pa.int64()), ("mutation", pa.string()), ("outcome", pa.string()), ("invariant", pa.string()),
    ("detail", pa.string()), ("repeat", pa.string()), ("servers", pa.int32()), ("steps", pa.int64()),
    ("acknowledged", pa.int64()), ("reads", pa.int64()), ("entries", pa.int64()), ("terms", pa.int64()),
    ("faults", pa.int64()), ("faults_by_kind", pa.map_(pa.string(), pa.int64())),
    ("events", pa.map_(pa.string(), pa.int64())), ("virtual_s", pa.float64()), ("cpu_s", pa.float64()),
    ("options", pa.string()), ("version", pa.string()), ("code", pa.string()),
])
_RANGE = re.compile(r"seeds-(\d{12,})-(\d{12,})\.parquet")


def range_name(first: int, last: int) -> str:
    """Name of a range's file."""
    return f"seeds-{first:012}-{last:012}.parquet"


def found_path(directory: Path, seed: int, *, replayable: bool) -> Path:
    """Path of a failed seed's file."""
    return directory / FAILURES / f"seed-{seed}.{'txt' if replayable else 'unreplayable'}"


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the range's file, unless it exists. Raises OSError."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), sink, compression="zstd")
    make(path, [sink.getvalue()])


@contextmanager
def opened(directory: Path, wish: dict[str, Any]) -> Iterator[None]:
    """Hold the directory's lock, and check its request. Raises UsageProblem if it has another one."""
    try:
        make_directory(directory / FAILURES)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageProblem(f"--to {directory}: {reason(error)}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageProblem(f"--to {directory}: another sweep is under way there") from None
        for left in (*directory.glob("*.tmp"), *(directory / FAILURES).glob("*.tmp")):
            left.unlink(missing_ok=True)  # left by a sweep that died
        _settle(directory, {"format": FORMAT, "version": VERSION, **wish})
        yield
    finally:
        os.close(lock)


def _settle(directory: Path, wish: dict[str, Any]) -> None:
    path = directory / WISH
    if not path.exists():
        if done_ranges(directory):
            raise UsageProblem(f"--to {directory}: there are a sweep's files and no {WISH} that says of which")
        make(path, [json.dumps(wish, indent=1).encode() + b"\n"])
        return
    before = _read_wish(directory)
    for key, value in wish.items():
        if before.get(key) != value:
            raise UsageProblem(
                f"--to {directory} holds another sweep: {key} was {_said(before.get(key))} and is now {_said(value)};"
                " take another directory"
            )


def _said(value: Any) -> str:
    return "not given" if value in (None, "") else f"{value[0]}..{value[1]}" if isinstance(value, list) else str(value)


def _read_wish(directory: Path) -> dict[str, Any]:
    """Read the request. Raises `SourceError`."""
    path = directory / WISH
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: {reason(error)}") from error
    except ValueError as error:
        raise SourceError(f"{path} is no sweep's: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise SourceError(f"{path} is no sweep's, or of another version than {VERSION}")
    return found


def done_ranges(directory: Path) -> list[tuple[int, int]]:
    """(first, last) of every finished range, in order."""
    found = (_RANGE.fullmatch(path.name) for path in directory.iterdir())
    return sorted((int(match[1]), int(match[2])) for match in found if match is not None)


def missing_ranges(done: Sequence[tuple[int, int]], first: int, last: int, size: int) -> list[tuple[int, int]]:
    """The ranges missing of seeds ``first`` … ``last``, of at most ``size`` seeds each."""
    gaps, next_seed = [], first
    for begins, ends in [*done, (last + 1, last + 1)]:
        gaps += [(at, min(at + size, begins) - 1) for at in range(next_seed, begins, size)]
        next_seed = max(next_seed, ends + 1)
    return gaps


def read_rows(directory: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows, by seed. Raises `SourceError` naming a file that no sweep wrote."""
    tables = []
    for first, last in done_ranges(directory):
        path = directory / range_name(first, last)
        try:
            table = pq.read_table(path, columns=list(columns) if columns else None, schema=SCHEMA)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path} cannot be read ({error}); without it the sweep does it again") from error
        if table.num_rows != last - first + 1:
            raise SourceError(f"{path} has {counted(table.num_rows, 'row')}; without it the sweep does it again")
        tables.append(table)
    empty = pa.schema([SCHEMA.field(name) for name in columns]) if columns else SCHEMA
    return pa.concat_tables(tables) if tables else empty.empty_table()


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
    path = Path(task.directory) / range_name(task.first, task.last)
    try:
        write_rows(path, rows)
    except OSError as error:
        raise SourceError(f"{path}: {reason(error)}") from error
    return len(rows)


def row_of(worlds: Worlds, seed: int) -> dict[str, Any]:
    """Run one world, with the mutation in force; returns its row (`SCHEMA`)."""
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
    path = found_path(Path(task.directory), shrunk.seed, replayable=bool(shrunk.lines))
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
