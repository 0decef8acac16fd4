"""An archive: its manifest, its files (Parquet, zstd, with the columns of the data source, a row a payload), and
reading it, by itself or before the first payload of a log.

Laws of the manifest:

* The archive is what its manifest lists: consecutive ranges of LSNs without gaps. Other files in the directory do not
  count.
* It only grows, at its end: whatever one manifest lists, all later ones list unchanged. So a reader with an older one
  reads the same, and archivers that run side by side cannot take anything from each other.
* A new manifest appears by a rename, whole and synced, under the lock ``manifest.lock``; the files that it lists were
  whole and synced before.

Laws of its files:

* A file gets its name by a rename, whole and synced, after it was read back and compared with what was to be written.
  The name depends only on its LSNs, so writing the range again makes the same file.
* A file being written is locked; a partial file without a lock was left by a process that died.

Laws of reading, in addition to those of `origin`:

* An archive is read as of its manifest when reading begins.
* Of an archive and a log, the log is read as far back as it goes, and the archive before that. A gap between the two is
  data loss.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import ARROW, Content
from .origin import DataLoss, Extent, Origin, Range, SourceError, Stretch

MANIFEST = "manifest.json"
LOCK = "manifest.lock"
FORMAT, VERSION = "alpo-archive", 1


class ArchivedRange(NamedTuple):
    """A file of an archive: payloads ``first_lsn`` … ``last_lsn``, ``rows`` in number, ``bytes`` of payloads;
    ``digest`` in hex (see `columns`). ``file``, of ``file_bytes`` bytes, is in the manifest's directory."""

    first_lsn: int
    last_lsn: int
    rows: int
    bytes: int
    first_time_ms: int
    last_time_ms: int
    digest: str
    file: str
    file_bytes: int


@dataclass(frozen=True)
class Manifest:
    """Content of an archive; ``cluster``: id in hex."""

    cluster: str
    ranges: tuple[ArchivedRange, ...] = ()

    @property
    def first_lsn(self) -> int:
        return self.ranges[0].first_lsn if self.ranges else 1

    @property
    def next_lsn(self) -> int:
        return self.ranges[-1].last_lsn + 1 if self.ranges else 1

    def of(self, first_lsn: int, last_lsn: int) -> Iterator[ArchivedRange]:
        """The ranges that hold any of these payloads."""
        return (one for one in self.ranges if one.first_lsn <= last_lsn and first_lsn <= one.last_lsn)

    def extended(self, made: Iterable[ArchivedRange]) -> Manifest:
        """The manifest with those of ``made`` that continue it; known ones, and those after a gap, are ignored.

        Raises `SourceError` if one has another digest than listed for the same payloads.
        """
        ranges = list(self.ranges)
        known = {one.file: one for one in ranges}
        for one in sorted(made):
            listed = known.get(one.file)
            if listed is not None and listed.digest != one.digest:
                raise SourceError(
                    f"ALPO_ARCHIVE_DIFFERS: payloads {one.first_lsn} to {one.last_lsn} are archived as {listed.digest},"
                    f" and the log now says {one.digest}"
                )
            if not ranges or one.first_lsn == ranges[-1].last_lsn + 1:
                ranges.append(one)
        return replace(self, ranges=tuple(ranges))


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest; None if there is none. Raises `SourceError`."""
    path = directory / MANIFEST
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    try:
        found = json.loads(text)
        if found["format"] != FORMAT or found["version"] != VERSION:
            raise SourceError(f"{path} is of format {found['format']} {found['version']}, not {FORMAT} {VERSION}")
        manifest = Manifest(str(found["cluster"]), tuple(ArchivedRange(**one) for one in found["ranges"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{path} is no manifest of an archive: {error!r}") from error
    check(manifest, path)
    return manifest


def check(manifest: Manifest, path: Path) -> None:
    """Raise `SourceError` unless the ranges are consecutive and name files in the same directory."""
    next_lsn = manifest.first_lsn
    for one in manifest.ranges:
        if one.first_lsn != next_lsn or one.rows != one.last_lsn - one.first_lsn + 1 or one.rows < 1:
            raise SourceError(f"{path}: payload {next_lsn} belongs where {one.file} begins with {one.first_lsn}")
        if Path(one.file).name != one.file:
            raise SourceError(f"{path}: {one.file!r} is no file beside it")
        next_lsn = one.last_lsn + 1


def extend_manifest(directory: Path, cluster: str, made: Sequence[ArchivedRange]) -> Manifest:
    """Add the ranges ``made`` to the manifest on disk (see `Manifest.extended`); returns the new one. Raises
    `SourceError`."""
    with _locked(directory):
        before = read_manifest(directory) or Manifest(cluster)
        if before.cluster != cluster:
            raise other_cluster(directory, before.cluster, cluster)
        after = before.extended(made)
        if after != before:
            _write_manifest(directory / MANIFEST, {
                "format": FORMAT, "version": VERSION, "cluster": cluster, "first_lsn": after.first_lsn,
                "next_lsn": after.next_lsn, "ranges": [one._asdict() for one in after.ranges],
            })
        return after


def other_cluster(directory: Path, archived: str, given: str) -> SourceError:
    """Error for an archive and a log of different clusters."""
    return SourceError(
        f"ALPO_OTHER_LOG: the archive {directory} is of cluster {archived}, not of {given}: its LSNs mean something"
        " else"
    )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the manifest's lock, which the system releases if the process dies. Raises `SourceError`."""
    try:
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SourceError(f"{directory / LOCK}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write_manifest(path: Path, fields: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.tmp")  # a fixed name will do: the lock is held
    with partial.open("w", encoding="utf-8") as stream:
        json.dump(fields, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that its latest renames are on disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


@dataclass(frozen=True)
class ArchiveOrigin:
    """An archive in directory ``path``. ``verify``: check each file against its digest before returning anything of
    it."""

    path: str
    verify: bool = False

    @property
    def where(self) -> str:
        return f"the archive {self.path}"

    def manifest(self) -> Manifest:
        """Read the present manifest. Raises `SourceError`."""
        manifest = read_manifest(Path(self.path))
        if manifest is None:
            raise SourceError(f"{self.path} is no archive: it has no manifest.json")
        return manifest

    def extent(self) -> Extent:
        manifest = self.manifest()
        return Extent(manifest.cluster, manifest.first_lsn, manifest.next_lsn)

    def lsn_since(self, time_ms: int) -> int:
        manifest = self.manifest()
        at = bisect_left(manifest.ranges, time_ms, key=lambda one: one.last_time_ms)
        if at == len(manifest.ranges):
            return manifest.next_lsn
        for batch in self._batches(manifest.ranges[at], 0, 2**63 - 1):
            found = stretch_of(batch)
            for entry_ms, lsn in zip(found.times_ms, found.lsns, strict=True):
                if entry_ms >= time_ms:
                    return lsn
        raise SourceError(f"{self.path}: {manifest.ranges[at].file} does not hold what the manifest says")

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        manifest = self.manifest()
        if first_lsn < manifest.first_lsn:
            raise DataLoss(first_lsn, min(last_lsn, manifest.first_lsn - 1), self.where)
        if last_lsn >= manifest.next_lsn:
            raise SourceError(f"{self.where} ends at LSN {manifest.next_lsn - 1}, and {last_lsn} was asked for")
        next_lsn = first_lsn
        for one in manifest.of(first_lsn, last_lsn):
            for batch in self._batches(one, first_lsn, last_lsn):
                page = stretch_of(batch).within(first_lsn, last_lsn)
                if list(page.lsns) != list(range(next_lsn, next_lsn + len(page.lsns))):
                    raise SourceError(f"{self.path}: {one.file} lacks payload {next_lsn}, or has others")
                next_lsn += len(page.lsns)
                if page.lsns:
                    yield page
        if next_lsn <= last_lsn:
            raise SourceError(f"{self.path}: LSN {next_lsn} to {last_lsn} are missing")

    def _batches(self, one: ArchivedRange, first_lsn: int, last_lsn: int) -> Iterator[pa.RecordBatch]:
        path = Path(self.path) / one.file
        if self.verify:
            check_file(path, one)
        return batches_of(path, first_lsn, last_lsn)


def check_file(path: Path, one: ArchivedRange) -> None:
    """Raise `SourceError` unless the file's content matches the manifest."""
    digest = content_of(path).digest()
    if digest != one.digest:
        raise SourceError(
            f"ALPO_ARCHIVE_DAMAGED: {path} holds {digest}, and {one.digest} by the manifest (payloads {one.first_lsn}"
            f" to {one.last_lsn})"
        )


@dataclass(frozen=True)
class JoinedOrigin:
    """An archive and a log read as one. ``seam_lsn``: the first payload read from ``log``; 0: its first LSN then."""

    archive: ArchiveOrigin
    log: Origin
    seam_lsn: int = 0

    @property
    def where(self) -> str:
        return f"{self.log.where} and {self.archive.where}"

    def extent(self) -> Extent:
        archived, live = self.archive.extent(), self.log.extent()
        if archived.cluster != live.cluster:
            raise other_cluster(Path(self.archive.path), archived.cluster, live.cluster)
        if archived.next_lsn == archived.first_lsn:
            return live
        return Extent(live.cluster, min(archived.first_lsn, live.first_lsn), live.next_lsn)

    def lsn_since(self, time_ms: int) -> int:
        archived = self.archive.extent()
        lsn = self.archive.lsn_since(time_ms)
        return lsn if lsn < archived.next_lsn else self.log.lsn_since(time_ms)

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        seam_lsn = self.seam_lsn or self.log.extent().first_lsn
        while first_lsn <= last_lsn:
            upto = min(last_lsn, seam_lsn - 1)
            if first_lsn <= upto:
                yield from self._archived(first_lsn, upto, turn)
                first_lsn = upto + 1
                continue
            try:
                for page in self.log.pages(first_lsn, last_lsn, turn):
                    yield page
                    first_lsn = page.next_lsn if page.ids else first_lsn
                return
            except DataLoss as loss:  # trimmed after planning
                seam_lsn = loss.last_lsn + 1

    def _archived(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        """Yield archived payloads. Raises `DataLoss` for those between the end of the archive and the log."""
        archived = self.archive.extent()
        if first_lsn < archived.next_lsn:
            yield from self.archive.pages(first_lsn, min(last_lsn, archived.next_lsn - 1), turn)
        if last_lsn >= archived.next_lsn:
            raise DataLoss(max(first_lsn, archived.next_lsn), last_lsn, self.where)
