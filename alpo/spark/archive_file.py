"""Files of an archive: Parquet (zstd) with the columns of the data source, a row a payload.

Laws:

* A file gets its name by a rename, whole and synced, after it was read back and compared with what was to be written.
  The name depends only on its LSNs, so writing the range again makes the same file.
* A file being written is locked; a partial file without a lock was left by a process that died.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import ARROW
from .content import Content
from .manifest import ArchivedRange, sync_directory
from .origin import SourceError, Stretch
from .ranges import Range

#: Rows, and bytes of payloads, in a row group; so much is held in memory while writing.
GROUP_ROWS, GROUP_BYTES = 65_536, 32 << 20
#: Rows of a batch when reading.
READ_ROWS = 4_096
PARTIAL = ".partial-"
#: Level of zstd compression: low, because the log should not wait for its archive.
_LEVEL = 1


def file_name(first_lsn: int, last_lsn: int) -> str:
    """File name for a range; without "=", which Hive would take for a partition."""
    return f"payloads-{first_lsn:019d}-{last_lsn:019d}.parquet"


def write_file(
    directory: Path, wanted: Range, batches: Iterable[pa.RecordBatch],
    approve: Callable[[Content], None] = lambda content: None,
) -> ArchivedRange:
    """Write the payloads of a range; returns its entry for the manifest. ``approve`` is called with the content before
    the file gets its name.

    Raises `SourceError`, and whatever ``batches`` and ``approve`` raise; then no file appears.
    """
    content = Content()
    path = directory / file_name(wanted.first, wanted.last)
    partial = directory / f"{PARTIAL}{uuid.uuid4().hex}"
    try:
        with partial.open("xb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            _write(stream, batches, content)
            stream.flush()
            os.fsync(stream.fileno())
            if content.rows != wanted.last - wanted.first + 1:
                raise SourceError(f"LSN {wanted.first} to {wanted.last} came as {content.rows} payloads")
            if content_of(partial).digest() != content.digest():
                raise SourceError(f"{partial}: what was read back is not what was written: is the disk sound?")
            approve(content)
            size = partial.stat().st_size
            partial.replace(path)
            sync_directory(directory)
    except OSError as error:
        raise SourceError(f"{partial}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return _listed(wanted, content, path.name, size)


def _write(stream: Any, batches: Iterable[pa.RecordBatch], content: Content) -> None:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    with pq.ParquetWriter(
        stream, ARROW, compression="zstd", compression_level=_LEVEL, use_dictionary=["client"],
        write_statistics=["lsn", "id", "term", "time", "client", "serial"], write_page_checksum=True,
    ) as writer:
        for batch in batches:
            content.add(batch)
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held, ARROW), row_group_size=rows)
                held, rows, size = [], 0, 0
        if held:
            writer.write_table(pa.Table.from_batches(held, ARROW), row_group_size=rows)


def found_file(directory: Path, wanted: Range) -> ArchivedRange | None:
    """Manifest entry of a range's file if it exists and is readable; the caller must compare its digest."""
    path = directory / file_name(wanted.first, wanted.last)
    if not path.is_file():
        return None
    try:
        content = content_of(path)
    except SourceError:
        return None
    return _listed(wanted, content, path.name, path.stat().st_size)


def _listed(wanted: Range, content: Content, name: str, size: int) -> ArchivedRange:
    return ArchivedRange(
        wanted.first, wanted.last, content.rows, content.bytes, content.first_time_ms, content.last_time_ms,
        content.digest(), name, size,
    )


def content_of(path: Path) -> Content:
    """Content of a whole file. Raises `SourceError`."""
    content = Content()
    for batch in batches_of(path):
        content.add(batch)
    return content


def batches_of(path: Path, first_lsn: int = 0, last_lsn: int = 2**63 - 1) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all row groups that hold any of these payloads, checksums verified. Raises `SourceError`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(ARROW):
                raise SourceError(f"{path} is not of an archive: its columns are {file.schema_arrow.names}")
            groups = [at for at in range(file.num_row_groups) if _holds(file.metadata, at, first_lsn, last_lsn)]
            yield from file.iter_batches(READ_ROWS, row_groups=groups)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _holds(metadata: Any, group: int, first_lsn: int, last_lsn: int) -> bool:
    found = metadata.row_group(group).column(0).statistics
    return found is None or not found.has_min_max or (found.min <= last_lsn and first_lsn <= found.max)


def stretch_of(batch: pa.RecordBatch) -> Stretch:
    """The rows as appends of one payload each; payloads of one batch or run have the same id, as in the log."""
    lsns, ids, terms, times, clients, serials, payloads = (
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in batch.columns
    )
    times_ms = [time // 1000 for time in times]
    return Stretch(ids, terms, times_ms, clients, serials, lsns, [1] * len(lsns), payloads, bytes(len(lsns)))


def clear_partials(directory: Path) -> None:
    """Delete partial files of processes that died. Raises OSError."""
    for partial in directory.glob(f"{PARTIAL}*"):
        try:
            with partial.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            continue  # still being written, or just finished
