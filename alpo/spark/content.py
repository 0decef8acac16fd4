"""Digest of a range of payloads, the same wherever they are stored: archive files are checked by it.

Laws:

* It covers values, column by column, never a file: equal rows have equal digests, however they are divided into
  batches, compressed or stored.
* The digest is BLAKE2b (16 bytes) over the digests (16 bytes each) of the columns, in the order of `columns.ARROW`:
  numbers as 8 bytes, little endian (times as microseconds since 1970); text and payloads as two digests, one of all
  lengths (4 bytes each, little endian) and one of all bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .columns import ARROW
from .origin import SourceError

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
        """Add the next rows, with all columns of `columns.ARROW`. Raises `SourceError` for anything else."""
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
