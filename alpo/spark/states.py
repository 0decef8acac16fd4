"""Tables of a replicated state (`alpo.state`): their columns, and a row for each variable, in the order of the names.

Spark imports this in every worker: `alpo.state` itself is left to `folded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from .reading import BATCH_BYTES, BATCH_ROWS

if TYPE_CHECKING:
    from alpo.state.machine import Cell, Machine

#: All columns, in the order of the default schema.
ARROW = pa.schema([
    ("name", pa.string()), ("owner", pa.string()), ("row", pa.string()), ("version", pa.int64()),
    ("created", pa.int64()), ("time", pa.timestamp("us", tz="UTC")), ("lease_s", pa.float64()), ("value", pa.binary()),
    ("text", pa.string()), ("state_id", pa.string()), ("as_of_lsn", pa.int64()),
])
#: Default schema in Spark's syntax.
DDL = (
    "name string, owner string, row string, version bigint, created bigint, time timestamp, lease_s double, "
    "value binary, text string, state_id string, as_of_lsn bigint"
)
#: Spark type of each column.
TYPES = dict(column.split(" ") for column in DDL.split(", "))

#: Text between the owner and the row's own name (`alpo.state.codec.ROW_MARK`).
_ROW_MARK = "\0"


class State(NamedTuple):
    """A state as of an LSN: the fold of all payloads up to there. The fold began with the snapshot as of ``from_lsn``
    (0: with nothing), and took ``payloads`` payloads, of which ``own`` are the state's."""

    machine: Machine
    from_lsn: int
    payloads: int
    own: int

    @property
    def id(self) -> str:
        return self.machine.state_id.hex()


def batches_of(state: State, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the variables, sorted by name, as batches of ``columns``; always the same batches for the same state."""
    schema = pa.schema([ARROW.field(name.lower()).with_name(name) for name in columns])
    cells = state.machine.cells
    held: list[tuple[str, Cell]] = []
    size = 0
    for name in sorted(cells):
        held.append((name, cells[name]))
        size += len(cells[name].value)
        if len(held) == BATCH_ROWS or size >= BATCH_BYTES:
            yield _batch_of(state, held, schema)
            held, size = [], 0
    if held:
        yield _batch_of(state, held, schema)


def _batch_of(state: State, rows: Sequence[tuple[str, Cell]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(state, rows, field) for field in schema], schema=schema)


def _column(state: State, rows: Sequence[tuple[str, Cell]], field: pa.Field) -> pa.Array:
    name = field.name.lower()
    if name == "time":
        return pa.array([cell.time_ms for _, cell in rows], pa.timestamp("ms", tz="UTC")).cast(field.type)
    if name == "state_id":
        return pa.repeat(pa.scalar(state.id, field.type), len(rows))
    if name == "as_of_lsn":
        return pa.repeat(pa.scalar(state.machine.lsn, field.type), len(rows))
    value_of = _VALUES[name]
    return pa.array([value_of(name, cell) for name, cell in rows], field.type)


def _half(name: str, number: int) -> str | None:
    """The owner (0) or the row's own name (1); None if it is no row."""
    return name.split(_ROW_MARK)[number] if _ROW_MARK in name else None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


#: Value of each column that differs between rows.
_VALUES: dict[str, Callable[[str, Cell], Any]] = {
    "name": lambda name, cell: name,
    "owner": lambda name, cell: _half(name, 0),
    "row": lambda name, cell: _half(name, 1),
    "version": lambda name, cell: cell.version,
    "created": lambda name, cell: cell.created,
    "lease_s": lambda name, cell: cell.lease_ms / 1000 if cell.lease_ms else None,
    "value": lambda name, cell: cell.value,
    "text": lambda name, cell: _text(cell.value),
}
