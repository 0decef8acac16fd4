"""Tables on disk: a replicated state (`alpo.state`) as of an LSN, in ``DIR/at-LSN``, beside others of the same log and
``DIR/replay.json``.

Laws:

* A table exists once its ``_manifest.json`` does, which appears last: whole and synced, after all that it lists. A
  directory without one was left by a replay that died.
* A table's bytes depend only on the log, the fold and the LSN.
* ``replay.json`` names the cluster and the fold of all tables in a directory; it is written once.
* A state is folded from its beginning every time: one task in one process, in the order of the log.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from .. import ledger
from ..folded import state_at, upto_of
from ..origin import Origin, SourceError
from ..reading import pinned
from ..states import ARROW, State, batches_of
from .fan import Progress, unseen

FORMAT, VERSION = "alpo-table", 1
#: File name that Spark ignores when it reads a directory, because it begins with "_".
MANIFEST = "_manifest.json"
REPLAY, LOCK = "replay.json", "replay.lock"
_PREFIX = "at-"
_DIGEST_BYTES = 16
_READ_BYTES = 1 << 20


class Part(NamedTuple):
    """One file of a table, with ``rows`` rows and ``bytes`` bytes; ``digest`` of its bytes, in hex."""

    file: str
    rows: int
    bytes: int
    digest: str


class Table(NamedTuple):
    """The fold of payloads 1 … ``lsn``, in ``directory``."""

    directory: Path
    cluster: str
    lsn: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Identity(NamedTuple):
    """Properties that all tables of a directory share. ``fold``: its name and version. Other values of ``key`` and
    ``parts`` than these are of tables that releases up to 0.1 folded by a user's functions."""

    cluster: str
    fold: str
    key: str = ""
    parts: int = 1


def place_of(directory: Path, lsn: int) -> Path:
    """Directory of the table at ``lsn``."""
    return directory / f"{_PREFIX}{lsn:019d}"


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the lock for writing tables in ``directory``, which the system releases if the process dies. Raises
    `SourceError`."""
    try:
        ledger.make_directory(directory)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SourceError(f"{directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SourceError(f"another replay is at work in {directory}") from error
        yield
    finally:
        os.close(lock)


def identify(directory: Path, identity: Identity) -> None:
    """Record that ``directory`` is for these tables. Raises `SourceError` if it is for others."""
    path = directory / REPLAY
    given = {"format": "alpo-replay", "version": VERSION, **identity._asdict()}
    try:
        if ledger.make(path, [_json(given)]):
            return
        found = json.loads(path.read_text("utf-8"))
        there = Identity(*(found[name] for name in Identity._fields))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{path} cannot be read: {error!r}") from error
    if there.cluster != identity.cluster:
        raise SourceError(
            f"ALPO_OTHER_LOG: the tables in {directory} are of cluster {there.cluster}, not of {identity.cluster}"
        )
    if there != identity:
        raise SourceError(
            f"ALPO_OTHER_FOLD: the tables in {directory} were made by another fold: replay into another directory"
        )


def tables_in(directory: Path) -> Iterator[Table]:
    """All finished tables, the latest first. Raises `SourceError`."""
    for place in sorted(directory.glob(f"{_PREFIX}*"), reverse=True):
        path = place / MANIFEST
        try:
            found = json.loads(path.read_text("utf-8"))
            if (found["format"], found["version"]) != (FORMAT, VERSION):
                raise SourceError(f"{path} is of format {found['format']} {found['version']}")
            yield Table(place, found["cluster"], found["lsn"], tuple(Part(**part) for part in found["parts"]))
        except FileNotFoundError:
            continue  # never finished
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, repr(error)) from error


def clear(directory: Path) -> None:
    """Delete what replays that died have left. Call only while `alone`."""
    for place in directory.glob(f"{_PREFIX}*"):
        if not (place / MANIFEST).exists():
            shutil.rmtree(place, ignore_errors=True)


def finish(table: Table) -> None:
    """Write the table's manifest, once its parts are there. Raises `SourceError`."""
    fields = {
        "format": FORMAT, "version": VERSION, "cluster": table.cluster, "lsn": table.lsn, "rows": table.rows,
        "parts": [part._asdict() for part in table.parts],
    }
    try:
        ledger.make(table.directory / MANIFEST, [_json(fields)])
        ledger.sync_directory(table.directory.parent)
    except OSError as error:
        raise SourceError(f"{table.directory}: {error.strerror}") from error


@contextmanager
def new_part(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which gets its name once it is whole and synced. Raises `SourceError`."""
    partial = path.with_name(f".partial-{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
        ledger.sync_directory(path.parent)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def part_at(path: Path, rows: int) -> Part:
    """Describe a file: size and digest. Raises `SourceError`."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_READ_BYTES):
                found.update(piece)
            return Part(path.name, rows, stream.tell(), found.hexdigest())
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error


def _damaged(path: Path, why: str) -> SourceError:
    return SourceError(
        f"ALPO_TABLE_DAMAGED: {path}: {why}. Delete {path.parent}; it can be made again from the log"
    )


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1).encode() + b"\n"


#: Name of the fold in ``replay.json``: another number if the columns ever change.
FOLD = "alpo.state 1"
#: Rows, and bytes of values, of a row group.
GROUP_ROWS, GROUP_BYTES = 65_536, 32 << 20
_LEVEL = 1
_ID_KEY = b"alpo.state_id"


@dataclass(frozen=True)
class StateWanted:
    """Request for a table of the state as of ``upto_lsn`` (None: what exists now) in ``directory``."""

    origin: Origin
    directory: Path
    upto_lsn: int | None = None


class StateReplayed(NamedTuple):
    """Result of a replay: the table of state ``state_id`` (hex). If it was ``made``, then from the snapshot as of
    ``from_lsn`` (0: from nothing) and the ``payloads`` after it, of which ``folded`` are the state's."""

    table: Table
    state_id: str
    made: bool
    from_lsn: int
    payloads: int
    folded: int


def replay_state(wanted: StateWanted, on_progress: Progress = unseen) -> StateReplayed:
    """Make the table if it does not exist. Raises `SourceError` if it cannot be made."""
    extent = wanted.origin.extent()
    lsn = upto_of(wanted.origin, extent, wanted.upto_lsn)
    with alone(wanted.directory):
        identify(wanted.directory, Identity(extent.cluster, FOLD))
        clear(wanted.directory)
        table = next((one for one in tables_in(wanted.directory) if one.lsn == lsn), None)
        if table is not None:
            return StateReplayed(table, _id_in(table), False, 0, 0, 0)
        origin = pinned(wanted.origin, extent.cluster)
        state = state_at(origin, extent, lsn, lambda done: on_progress(done, lsn))
        place = place_of(wanted.directory, lsn)
        table = Table(place, extent.cluster, lsn, (_write(place / "part-00000.parquet", state),))
        finish(table)
        return StateReplayed(table, state.id, True, state.from_lsn, state.payloads, state.own)


def _id_in(table: Table) -> str:
    """The state's id, from the table's file. Raises `SourceError`."""
    path = table.directory / table.parts[0].file
    try:
        found: bytes = pq.read_schema(path).metadata[_ID_KEY]
        return found.decode()
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise SourceError(
            f"ALPO_TABLE_DAMAGED: {path}: {error!r}. Delete {path.parent}; it can be made again from the log"
        ) from error


def _write(path: Path, state: State) -> Part:
    with new_part(path) as stream:
        rows = _write_rows(stream, state)
    return part_at(path, rows)


def _write_rows(stream: IO[bytes], state: State) -> int:
    """Write the variables; returns their number."""
    schema = ARROW.with_metadata({_ID_KEY: state.id, "alpo.as_of_lsn": str(state.machine.lsn)})
    held: list[pa.RecordBatch] = []
    rows = size = written = 0
    with pq.ParquetWriter(stream, schema, compression="zstd", compression_level=_LEVEL) as writer:
        for batch in batches_of(state, ARROW.names):
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held, ARROW).cast(schema), row_group_size=rows)
                written, held, rows, size = written + rows, [], 0, 0
        writer.write_table(pa.Table.from_batches(held, ARROW).cast(schema), row_group_size=max(rows, 1))
    return written + rows
