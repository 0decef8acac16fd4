"""Files that are either whole or absent, and permanent (what a checkpoint needs of a file system: POSIX; NFS too), and
the transport of a partition's payloads to the driver: Arrow IPC in the commit message, or in a file if they are many.

Laws:

* No file has its final name before all of its bytes are on disk, and the name is on disk before anything relies on it.
* If several processes make the same file, one wins, and nobody ever overwrites it (`make`).
* The file of a `Part` is complete and synced before anybody learns of it, and is checked against its CRC before use.
* A task's memory is bounded whatever the size of its partition.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from .origin import SourceError


def make_directory(path: Path) -> None:
    """Make a directory and its parents, and sync their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that names made in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """Unique temporary name for a file to be written, beginning with its final name."""
    return path.with_name(f"{path.name}.{uuid4().hex}.tmp")


def make(path: Path, parts: Iterable[bytes]) -> bool:
    """Make a new file of these bytes; False if one of that name exists, which stays unchanged. Raises OSError."""
    temporary = unfinished(path)
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, fails if the name exists
        except FileExistsError:
            return False
        finally:
            sync_directory(path.parent)  # another process's file, too, must be on disk before anyone relies on it
        return True
    finally:
        temporary.unlink(missing_ok=True)


#: Most bytes of a partition in a message; the second if there is no checkpoint directory.
INLINE_BYTES, INLINE_ALONE_BYTES = 8 << 20, 64 << 20
#: Bytes that a payload takes in an entry besides its own (`core.entries.join_payloads`).
LENGTH_BYTES = 4
_SCHEMA = pa.schema([("payload", pa.binary())])
_READ_BYTES = 1 << 20
#: Most characters of an id in a file name.
_NAME_PART = 64
_KINDS = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


@dataclass(frozen=True)
class Tag:
    """Identifies one attempt at one partition of a batch, in one run of a query."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int


@dataclass(frozen=True)
class Part:
    """One partition's payloads: ``length`` bytes of Arrow IPC, in ``data`` or in the staged file ``name``.

    ``size``: bytes that they take in entries; ``largest``: size of the largest payload.
    """

    tag: Tag
    rows: int
    size: int
    largest: int
    length: int
    crc: int
    data: bytes = b""
    name: str = ""


def payloads_of(batch: pa.RecordBatch) -> pa.Array:
    """The only column of a batch, as binary. Raises `SourceError` for a payload that is NULL, or neither bytes nor
    text."""
    column = batch.column(0)
    if column.type not in _KINDS:
        raise SourceError(f"column payload is {column.type}: it must be binary, or a string (written as UTF-8)")
    if column.null_count:
        raise SourceError("a payload is NULL: leave such rows out (where payload is not null), or give them bytes")
    return column if column.type == pa.binary() else column.cast(pa.binary())


def stage(batches: Iterable[pa.RecordBatch], tag: Tag, folder: Path | None) -> Part:
    """Stage all of a partition; ``folder``: where files may be made, or None. Raises `SourceError`, OSError."""
    spool = _Spool(folder, tag)
    rows = size = largest = 0
    try:
        with pa.ipc.new_stream(
            pa.PythonFile(spool, "w"), _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")
        ) as out:
            for batch in batches:
                if not batch.num_rows:
                    continue
                column = payloads_of(batch)
                lengths = pc.binary_length(column)
                rows += len(column)
                size += pc.sum(lengths).as_py() + LENGTH_BYTES * len(column)
                largest = max(largest, pc.max(lengths).as_py())
                out.write_batch(pa.RecordBatch.from_arrays([column], schema=_SCHEMA))
        return spool.finish(tag, rows, size, largest)
    finally:
        spool.close()


def check(part: Part, folder: Path | None) -> None:
    """Raise `SourceError` if the staged data is missing or damaged."""
    if not part.name:
        found_length, found = len(part.data), zlib.crc32(part.data)
    else:
        found_length = found = 0
        with _open(part, folder) as file:
            while block := file.read(_READ_BYTES):
                found_length += len(block)
                found = zlib.crc32(block, found)
    if (found_length, found) != (part.length, part.crc):
        raise SourceError(
            f"partition {part.tag.partition} of batch {part.tag.batch} is damaged in {part.name or 'its message'}: "
            f"{found_length} bytes with CRC {found:08x}, staged were {part.length} with {part.crc:08x}"
        )


def payloads(part: Part, folder: Path | None) -> Iterator[list[bytes]]:
    """Yield the payloads in order, some at a time; call `check` before. Raises `SourceError`."""
    if not part.rows:
        return
    with _open(part, folder) as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield batch.column(0).to_pylist()


def _open(part: Part, folder: Path | None) -> BinaryIO:
    if not part.name:
        return BytesIO(part.data)
    assert folder is not None
    try:
        return (folder / part.name).open("rb")
    except OSError as error:
        raise SourceError(
            f"the staged file {folder / part.name} cannot be read ({error.strerror}): checkpointLocation must be a "
            "directory that the driver and all executors share"
        ) from error


class _Spool:
    """Writable file, in memory until it is too large for a message."""

    closed = False

    def __init__(self, folder: Path | None, tag: Tag) -> None:
        self._folder = folder
        query, run = quote(tag.query, safe="")[:_NAME_PART], tag.run[:_NAME_PART]
        self._name = f"{tag.batch}-{tag.partition}-{tag.attempt}-{query}-{run}-"
        self._limit = INLINE_ALONE_BYTES if folder is None else INLINE_BYTES
        self._memory = BytesIO()
        self._file: BinaryIO | None = None
        self._path = Path()
        self._length = self._crc = 0

    def write(self, data: Any) -> int:
        block = memoryview(data).cast("B")
        if self._file is None and self._length + len(block) > self._limit:
            self._spill()
        (self._memory if self._file is None else self._file).write(block)
        self._length += len(block)
        self._crc = zlib.crc32(block, self._crc)
        return len(block)

    def _spill(self) -> None:
        if self._folder is None:
            raise SourceError(
                f"a partition is over {INLINE_ALONE_BYTES >> 20} MiB, too much for the driver's memory: give "
                "checkpointLocation, a directory that the driver and all executors share, or more partitions"
            )
        make_directory(self._folder)
        self._path = unfinished(self._folder / self._name)
        self._file = self._path.open("xb")
        self._file.write(self._memory.getbuffer())
        self._memory = BytesIO()

    def flush(self) -> None:
        """Do nothing: `finish` syncs."""

    def tell(self) -> int:
        return self._length

    def finish(self, tag: Tag, rows: int, size: int, largest: int) -> Part:
        if self._file is None or self._folder is None:
            data = self._memory.getvalue() if rows else b""
            return Part(tag, rows, size, largest, len(data), zlib.crc32(data), data)
        self._file.flush()
        os.fsync(self._file.fileno())
        name = f"{self._name}{self._crc:08x}.arrow"
        self._path.rename(self._folder / name)
        sync_directory(self._folder)
        return Part(tag, rows, size, largest, self._length, self._crc, b"", name)

    def close(self) -> None:
        self.closed = True
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
