"""A writer's record of its batches in its checkpoint: ``<checkpointLocation>/alpo``.

    writer              the writer to which the checkpoint belongs, and the cluster
    runs/1, 2, …        the runs of the writer; only the last one may write
    staged/             partitions too large for a message, each named after its batch
    commits/BATCH       the manifest of a batch: its payloads, their order, their division into entries
    commits/BATCH.done  all of it is in the log (a hint that saves work; not needed)
    unplanned           the last run that was warned that Spark's plans cannot be read

Laws:

* The first manifest of a batch is final: a replay of the batch uses it, whatever the plan produces this time.
* A manifest's staged files live as long as it does.
* Everything read is checked; damage is reported, never guessed around.

Laws of its files, which are whole or absent, and permanent (POSIX; NFS too), and of the transport of a partition's
payloads to the driver (Arrow IPC in the commit message, or in a file if they are many):

* No file has its final name before all of its bytes are on disk, and the name is on disk before anything relies on it.
* If several processes make the same file, one wins, and nobody ever overwrites it (`make`).
* The file of a `Part` is complete and synced before anybody learns of it, and is checked against its CRC before use.
* A task's memory is bounded whatever the size of its partition.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from alpo.errors import Fenced

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


#: Logging of the standard library: its handlers fail no write, whatever became of stdout and stderr.
logger = logging.getLogger("alpo")

#: Runs that are remembered. An older zombie counts as a new run, which is harmless (see `committing`).
RUNS_KEPT = 100
_FORMAT = "alpo-manifest-1"
_DONE = ".done"


@dataclass(frozen=True)
class Manifest:
    """Content of one batch: the parts in this order, in entries of up to ``limit`` bytes each. ``plan``: as of
    `Ledger.plan`."""

    batch: int
    limit: int
    parts: tuple[Part, ...]
    plan: str = ""


def staged_folder(checkpoint: str) -> Path:
    """Directory in which tasks stage files."""
    return Path(checkpoint) / "alpo" / "staged"


class Ledger:
    """One writer's directory, as seen by one of its runs. All methods raise `SourceError` for damaged files."""

    def __init__(self, checkpoint: str) -> None:
        self.staged = staged_folder(checkpoint)
        self._root = self.staged.parent
        self._commits = self._root / "commits"
        self._runs = self._root / "runs"
        for folder in (self.staged, self._commits, self._runs):
            make_directory(folder)

    # -- whose it is ------------------------------------------------------------------------------------------

    def cluster(self, client: str) -> str:
        """The cluster (hex) that ``client`` has written to with this checkpoint; "" if none yet."""
        writer = self._writer()
        if writer["client"] not in ("", client):
            raise SourceError(
                f"ALPO_OTHER_WRITER: {self._root} belongs to {writer['client']}, and this is {client}: another query "
                "(its checkpoint was made anew around this directory?). Use a new checkpointLocation"
            )
        return str(writer["cluster"])

    @property
    def client(self) -> str:
        """The client that has written with this checkpoint; "" if none yet."""
        return str(self._writer()["client"])

    def _writer(self) -> dict[str, Any]:
        path = self._root / "writer"
        return _json(path, path.read_bytes()) if path.exists() else {"client": "", "cluster": ""}

    def bind(self, client: str, cluster: str) -> None:
        """Record that this checkpoint belongs to ``client`` in ``cluster``. Raises `SourceError` if it belongs to
        another."""
        make(self._root / "writer", [json.dumps({"client": client, "cluster": cluster}).encode()])
        if self.cluster(client) != cluster:
            raise SourceError(f"ALPO_OTHER_LOG: this checkpoint's log is not that of cluster {cluster}")

    def claim(self, run: str) -> None:
        """Make ``run``, on its first claim, the only run that may write. Raises `Fenced` if another claimed later."""
        runs = self._known_runs()
        if run in runs.values():
            return self.hold(run)
        make(self._runs / str(max(runs, default=0) + 1), [json.dumps({"run": run}).encode()])
        for number in sorted(runs)[: -RUNS_KEPT]:
            (self._runs / str(number)).unlink(missing_ok=True)
        self.hold(run)

    def hold(self, run: str) -> None:
        """Raise `Fenced` unless ``run`` was the last one to claim."""
        runs = self._known_runs()
        if not runs or runs[max(runs)] != run:
            raise Fenced("a newer run of this query writes in its place: this one is over")

    def _known_runs(self) -> dict[int, str]:
        found = {}
        for path in self._runs.iterdir():
            if path.name.isdecimal():
                with suppress(FileNotFoundError):  # another run deletes old ones
                    found[int(path.name)] = str(_json(path, path.read_bytes())["run"])
        return found

    # -- what its batches are ---------------------------------------------------------------------------------

    def plan(self, batch: int, run: str) -> str:
        """Digest of what Spark has planned for a batch of the query to which the checkpoint belongs. Spark writes it
        once, before the batch, and a repetition finds it as it was. "" if it cannot be read: a warning says so, once in
        each run."""
        path = self._root.parent / "offsets" / str(batch)
        try:
            return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        except OSError as error:
            self._warn_unplanned(batch, run, f"{path}: {error.strerror}")
            return ""

    def _warn_unplanned(self, batch: int, run: str, why: str) -> None:
        """Warn that a plan is not known, unless this run was warned already: each batch has a process of its own."""
        warned = self._root / "unplanned"
        if warned.exists() and warned.read_text("utf-8") == run:
            return
        warned.write_text(run, "utf-8")
        logger.warning(
            "batch %d: what Spark has planned for it cannot be read (%s). So it is not checked whether a batch that "
            "comes again is the one that the log has: where Spark's files of the checkpoint are lost or restored, a "
            "new batch may be taken for the last one, and its rows are lost. checkpointLocation must be the checkpoint "
            "of this query, in a file system of this machine. If Spark's fs.defaultFS is another file system, give it "
            "as file://%s (docs/spark.md)", batch, why, self._root.parent,
        )

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch, checked with all its files; None if there is none."""
        path = self._commits / str(batch)
        return _read(path, self.staged) if path.exists() else None

    def fix(self, manifest: Manifest) -> None:
        """Write the manifest; an existing one of this batch stays."""
        for part in manifest.parts:
            check(part, self.staged)
        make(self._commits / str(manifest.batch), _bytes(manifest))

    def unfinished(self, batch: int) -> list[int]:
        """Batches up to this one, ascending, that are fixed and not known to be in the log."""
        names = {path.name for path in self._commits.iterdir()}
        return sorted(
            int(name) for name in names if name.isdecimal() and int(name) <= batch and name + _DONE not in names
        )

    def finish(self, batch: int) -> None:
        """Note that all of this batch is in the log."""
        (self._commits / f"{batch}{_DONE}").touch()

    # -- tidying up -------------------------------------------------------------------------------------------

    def discard(self, parts: Iterable[Part], batch: int) -> None:
        """Delete what was staged for a failed batch, unless the batch is fixed."""
        if (self._commits / str(batch)).exists():
            return
        for part in parts:
            if part.name:
                (self.staged / part.name).unlink(missing_ok=True)

    def discard_run(self, run: str) -> None:
        """Delete all that a run has staged."""
        for path in self.staged.glob(f"*-{run}-*"):
            path.unlink(missing_ok=True)

    def clean(self, before: int) -> None:
        """Delete the files of batches below ``before``."""
        for folder, ends in ((self._commits, "."), (self.staged, "-")):
            for path in folder.iterdir():
                batch = path.name.split(ends)[0]
                if batch.isdecimal() and int(batch) < before:
                    path.unlink(missing_ok=True)


def _bytes(manifest: Manifest) -> list[bytes]:
    """Encode a manifest: header with CRC, description, and the bytes of parts that are in no file."""
    parts = [vars(part) | {"tag": vars(part.tag), "data": None} for part in manifest.parts]
    fields = {"batch": manifest.batch, "limit": manifest.limit, "plan": manifest.plan, "parts": parts}
    text = json.dumps(fields).encode() + b"\n"
    body = [text, *(part.data for part in manifest.parts)]
    crc = 0
    for piece in body:
        crc = zlib.crc32(piece, crc)
    return [f"{_FORMAT} {crc:08x}\n".encode(), *body]


def _read(path: Path, staged: Path) -> Manifest:
    head, _, rest = path.read_bytes().partition(b"\n")
    if head != f"{_FORMAT} {zlib.crc32(rest):08x}".encode():
        raise SourceError(f"{path} is damaged: its CRC is not the one that it was written with")
    text, _, data = rest.partition(b"\n")
    fields = _json(path, text)
    parts, at = [], 0
    for row in fields["parts"]:
        part = Part(**row | {"tag": Tag(**row["tag"]), "data": b""})
        if not part.name:
            part = replace(part, data=data[at : at + part.length])
            at += part.length
        check(part, staged)
        parts.append(part)
    return Manifest(fields["batch"], fields["limit"], tuple(parts), fields.get("plan", ""))


def _json(path: Path, text: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise SourceError(f"{path} is damaged: {error}") from error
    return fields
