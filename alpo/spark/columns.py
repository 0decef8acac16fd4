"""Columns of the data source, conversion of the log's entries to Arrow batches (a row a payload), and a digest of rows
that is the same wherever they are stored: archive files are checked by it.

Only the place of each payload in a batch or run takes a Python step a payload; Arrow does the rest. Laws of the digest:

* It covers values, column by column, never a file: equal rows have equal digests, however they are divided into
  batches, compressed or stored.
* The digest is BLAKE2b (16 bytes) over the digests (16 bytes each) of the columns, in the order of `ARROW`:
  numbers as 8 bytes, little endian (times as microseconds since 1970); text and payloads as two digests, one of all
  lengths (4 bytes each, little endian) and one of all bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
    "lsn": "lsns", "id": "ids", "term": "terms", "time": "times_ms", "client": "clients", "serial": "serials",
    "payload": "bodies",
}
_LENGTH = struct.Struct("<I")


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Schema of the columns ``names``, in that order and in the case of the user's."""
    return pa.schema([ARROW.field(name.lower()).with_name(name) for name in names])


def batch_of(stretch: Stretch, first_lsn: int, last_lsn: int, schema: pa.Schema) -> pa.RecordBatch:
    """Convert payloads ``first_lsn`` … ``last_lsn`` of a stretch without gaps. Raises `SourceError` if the body of a
    batch or a run is damaged."""
    begins_lsn = stretch.lsns[0]
    begin, end = max(first_lsn - begins_lsn, 0), last_lsn + 1 - begins_lsn
    column = _column if set(stretch.counts) == {1} else _payload_column
    return pa.RecordBatch.from_arrays([column(stretch, f.name.lower())[begin:end] for f in schema], schema=schema)


def _column(stretch: Stretch, name: str) -> pa.Array:
    """A column with one value for each row of the stretch."""
    values = getattr(stretch, _FIELDS[name])
    if name == "time":
        return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(ARROW.field(name).type)
    return pa.array(values, ARROW.field(name).type)


def _payload_column(stretch: Stretch, name: str) -> pa.Array:
    """A column with one value for each payload."""
    if name == "payload":
        return _payloads(stretch)
    if name == "lsn":
        return _lsns(stretch)
    if name == "serial":
        return _serials(stretch)
    return _repeated(_column(stretch, name), stretch.counts)


def _lsns(stretch: Stretch) -> pa.Array:
    # a range would take PyArrow ten times as long
    ones = pa.repeat(pa.scalar(1, pa.int64()), sum(stretch.counts))
    return pc.cumulative_sum(ones, start=stretch.lsns[0] - 1)


def _serials(stretch: Stretch) -> pa.Array:
    """Serials rise with the LSN in a run; in a batch they stay."""
    less_lsn = [
        serial - lsn * step for serial, lsn, step in zip(stretch.serials, stretch.lsns, stretch.steps, strict=True)
    ]
    rises = pc.multiply(_lsns(stretch), _repeated(pa.array(list(stretch.steps), pa.int64()), stretch.counts))
    return pc.add(rises, _repeated(pa.array(less_lsn, pa.int64()), stretch.counts))


def _repeated(values: pa.Array, counts: Sequence[int]) -> pa.Array:
    """Each value as often as its count says."""
    ends = pa.array(accumulate(counts), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


def _payloads(stretch: Stretch) -> pa.Array:
    """The payloads. Joined, they are an Arrow array already, but for the length before each: Arrow cuts these off."""
    bodies = [
        body if count > 1 else _LENGTH.pack(len(body)) + body
        for count, body in zip(stretch.counts, stretch.bodies, strict=True)
    ]
    joined = b"".join(bodies)
    offsets = _offsets(stretch, joined, accumulate(map(len, bodies)))
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(joined)]
    # an end is given, because PyArrow 26 fails without one
    return pc.binary_slice(pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers), _LENGTH.size, len(joined))


def _offsets(stretch: Stretch, joined: bytes, ends: Iterable[int]) -> list[int]:
    """Offsets in ``joined`` of each payload's length, and its end. ``ends``: of each body. Raises `SourceError`."""
    offsets, at = [0], 0
    unpack, size = _LENGTH.unpack_from, _LENGTH.size
    for id, count, end in zip(stretch.ids, stretch.counts, ends, strict=True):
        try:
            for _ in range(count):
                at += size + unpack(joined, at)[0]
                offsets.append(at)
        except struct.error:
            at = -1
        if at != end:
            raise SourceError(f"entry {id} is damaged: it does not hold {count} payloads")
    return offsets


DIGEST_BYTES: Final = 16
_INT_BYTES: Final = 8


def _hash() -> Any:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


class Content:
    """Counts and digest of rows, added batch by batch. ``bytes``: of payloads; times in milliseconds, 0 without
    rows."""

    def __init__(self) -> None:
        self.rows = self.bytes = self.first_time_ms = self.last_time_ms = 0
        self._hashes = [(_hash(), _hash()) if _is_long(field.type) else (_hash(),) for field in ARROW]

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows, with all columns of `ARROW`. Raises `SourceError` for anything else."""
        if not batch.schema.equals(ARROW) or any(column.null_count for column in batch.columns):
            raise SourceError(f"these are not the rows of a log: {batch.schema}")
        if not batch.num_rows:
            return
        for column, hashes in zip(batch.columns, self._hashes, strict=True):
            for hash, data in zip(hashes, _parts(column), strict=True):
                hash.update(data)
        times = batch.column("time").cast(pa.int64())
        self.first_time_ms = self.first_time_ms if self.rows else times[0].as_py() // 1000
        self.last_time_ms = times[-1].as_py() // 1000
        self.rows += batch.num_rows
        self.bytes += pc.sum(pc.binary_length(batch.column("payload"))).as_py()

    def digest(self) -> str:
        """Digest of all rows so far, in hex."""
        whole = _hash()
        for hashes in self._hashes:
            for hash in hashes:
                whole.update(hash.digest())
        return str(whole.hexdigest())


def _is_long(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type))


def _parts(column: pa.Array) -> list[Any]:
    """Buffers that represent a column's values."""
    if not _is_long(column.type):
        return [_ints(column, _INT_BYTES)]
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("B").cast("i")
    first, last = ends[column.offset], ends[column.offset + len(column)]
    return [_ints(pc.binary_length(column), 4), memoryview(data)[first:last] if data is not None else b""]


def _ints(column: pa.Array, width: int) -> memoryview:
    values = memoryview(column.buffers()[1]).cast("B")
    return values[column.offset * width : (column.offset + len(column)) * width]
