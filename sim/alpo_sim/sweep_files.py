"""Directory of a sweep: its request, a Parquet file for every finished range of seeds, and failures.

    sweep.json                                 the request: seeds, options, mutation, code
    seeds-000000000001-000000000025.parquet    a row a seed
    failures/seed-17.txt                       a seed that failed, shrunk: a scenario file
    failures/seed-23.unreplayable              a failure of which there is no schedule, and why

Laws:

* A directory has one request, and one sweep at a time.
* Every file appears whole. Existing files are right, so only what is missing is left to do.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from alpo.spark.ledger import make, make_directory
from alpo.spark.origin import SourceError
from alpo_cli.exits import UsageProblem, reason
from alpo_cli.output import counted

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
