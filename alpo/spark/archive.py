"""Read an archive, by itself or before the first payload of a log.

Laws, in addition to those of `origin`:

* An archive is read as of its manifest when reading begins.
* Of an archive and a log, the log is read as far back as it goes, and the archive before that. A gap between the two is
  data loss.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .archive_file import batches_of, content_of, stretch_of
from .manifest import ArchivedRange, Manifest, other_cluster, read_manifest
from .origin import DataLoss, Extent, Origin, SourceError, Stretch


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
