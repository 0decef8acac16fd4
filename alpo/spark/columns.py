"""The columns of the data source, and the log's entries as Arrow batches of them: a row a payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from alpo.client.record import PageEntry
from alpo.core.entries import DamagedEntry, split_payloads

from .origin import SourceError

#: What a user may ask for, in the order of the default schema.
ARROW = pa.schema([
    ("lsn", pa.int64()), ("id", pa.int64()), ("term", pa.int64()), ("time", pa.timestamp("us", tz="UTC")),
    ("client", pa.string()), ("serial", pa.int64()), ("payload", pa.binary()),
])
#: The same for Spark.
DDL = "lsn bigint, id bigint, term bigint, time timestamp, client string, serial bigint, payload binary"
#: Their types in Spark's words, by name.
TYPES = dict(column.split(" ") for column in DDL.split(", "))

#: One row: (lsn, id, term, time in microseconds, client, serial, payload).
Row = tuple[int, int, int, int, str, int, bytes]
#: Places in a `PageEntry`.
_LSN: Final = 5
_COUNT: Final = 6


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The columns ``names``, in that order."""
    return pa.schema([ARROW.field(name) for name in names])


def batch_of(entries: Sequence[PageEntry], first_lsn: int, last_lsn: int, schema: pa.Schema) -> pa.RecordBatch:
    """Payloads ``first_lsn`` … ``last_lsn`` of whole entries as the columns of ``schema``. Raises `SourceError` when a
    batch is not what it says it is."""
    columns: list[tuple[Any, ...]] = list(zip(*entries, strict=True))
    if not entries or set(columns[_COUNT]) != {1} or entries[0][_LSN] < first_lsn or entries[-1][_LSN] > last_lsn:
        rows: list[tuple[Any, ...]] = list(zip(*_rows(entries, first_lsn, last_lsn), strict=True))
        rows = rows or [()] * len(ARROW.names)
        found = dict(zip(ARROW.names, rows, strict=True))
    else:  # a payload an entry, all of them wanted: columns as they are
        found = {
            name: columns[at] for at, name in enumerate(("id", "term", "time", "client", "serial", "lsn"))
        } | {"payload": columns[-1]}
    return pa.RecordBatch.from_arrays([_ARRAYS[f.name](found[f.name]) for f in schema], schema=schema)


def _times(values: Iterable[Any]) -> pa.Array:
    """Milliseconds as what Spark wants of a timestamp."""
    return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(ARROW.field("time").type)


def _plain(type: pa.DataType) -> Callable[[Iterable[Any]], pa.Array]:
    return lambda values: pa.array(values, type)


_ARRAYS = {field.name: _plain(field.type) for field in ARROW} | {"time": _times}


def _rows(entries: Iterable[PageEntry], first_lsn: int, last_lsn: int) -> Iterable[Row]:
    for id, term, time_ms, client, serial, lsn, count, body in entries:
        try:
            payloads = [body] if count == 1 else split_payloads(count, body)
        except DamagedEntry as error:
            raise SourceError(f"entry {id} is damaged: {error}") from error
        head = zip(range(lsn, lsn + count), repeat(id), repeat(term), repeat(time_ms), repeat(client), repeat(serial),
                   payloads, strict=False)
        yield from (row for row in head if first_lsn <= row[0] <= last_lsn)
