"""Replay of a replicated state (`alpo.state`): a table of its variables as of an LSN, beside others of the same log.

Laws:

* A state is folded from its beginning every time: one task in one process, in the order of the log.
* A table's bytes depend on the log and the LSN alone, and a table that exists is not made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..folded import state_at
from ..origin import Extent, Origin, SourceError
from ..reading import pinned
from ..states import ARROW, State, batches_of
from .fan import Progress, unseen
from .tables import Identity, Part, Table, alone, clear, finish, identify, new_part, part_at, place_of, tables_in

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
    lsn = _upto_of(wanted.origin, extent, wanted.upto_lsn)
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


def _upto_of(origin: Origin, extent: Extent, upto_lsn: int | None) -> int:
    """The last payload to fold: ``upto_lsn``, or the last one that exists. Raises `SourceError`."""
    last_lsn = extent.next_lsn - 1
    if not last_lsn:
        raise SourceError(f"{origin.where} holds no payloads yet")
    if upto_lsn is not None and upto_lsn > last_lsn:
        raise SourceError(f"{origin.where} ends at LSN {last_lsn}, and --upto is {upto_lsn}")
    return upto_lsn or last_lsn


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
