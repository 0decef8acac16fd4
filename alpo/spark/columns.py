"""Columns of the data source, and conversion of the log's entries to Arrow batches: a row a payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa

from alpo.core.entries import DamagedEntry, split_payloads

from .origin import SourceError, Stretch

#: All columns, in the order of the default schema.
ARROW = pa.schema([
    ("lsn", pa.int64()), ("id", pa.int64()), ("term", pa.int64()), ("time", pa.timestamp("us", tz="UTC")),
    ("client", pa.string()), ("serial", pa.int64()), ("payload", pa.binary()),
])
#: Default schema in Spark's syntax.
DDL = "lsn bigint, id bigint, term bigint, time timestamp, client string, serial bigint, payload binary"
#: Spark type of each column.
TYPES = dict(column.split(" ") for column in DDL.split(", "))

#: Field of `Stretch` for each column.
_FIELDS: Final = {
    "id": "ids", "term": "terms", "time": "times_ms", "client": "clients", "serial": "serials", "payload": "bodies",
}


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Schema of the columns ``names``, in that order."""
    return pa.schema([ARROW.field(name) for name in names])


def batch_of(stretch: Stretch, first_lsn: int, last_lsn: int, schema: pa.Schema) -> pa.RecordBatch:
    """Convert payloads ``first_lsn`` … ``last_lsn`` of a stretch without gaps. Raises `SourceError` if a batch's body
    is damaged."""
    begins_lsn = stretch.lsns[0]
    begin, end = max(first_lsn - begins_lsn, 0), last_lsn + 1 - begins_lsn
    single = set(stretch.counts) == {1}
    return pa.RecordBatch.from_arrays(
        [_ARRAYS[f.name](_values(stretch, f.name, single)[begin:end]) for f in schema], schema=schema
    )


def _values(stretch: Stretch, name: str, single: bool) -> Sequence[Any]:
    """Values of one column, one for each payload. ``single``: each entry has one payload."""
    if name == "lsn":
        return range(stretch.lsns[0], stretch.next_lsn)
    if name == "payload" and not single:
        return _payloads(stretch)
    column: Sequence[Any] = getattr(stretch, _FIELDS[name])
    return column if single else tuple(chain.from_iterable(map(repeat, column, stretch.counts)))


def _payloads(stretch: Stretch) -> list[bytes]:
    payloads: list[bytes] = []
    for id, count, body in zip(stretch.ids, stretch.counts, stretch.bodies, strict=True):
        try:
            payloads += split_payloads(count, body)
        except DamagedEntry as error:
            raise SourceError(f"entry {id} is damaged: {error}") from error
    return payloads


def _times(values: Sequence[Any]) -> pa.Array:
    """Milliseconds as Spark's timestamp type."""
    return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(ARROW.field("time").type)


def _plain(type: pa.DataType) -> Callable[[Sequence[Any]], pa.Array]:
    return lambda values: pa.array(values, type)


_ARRAYS = {field.name: _plain(field.type) for field in ARROW} | {"time": _times}
