"""An archive's manifest: which payloads the archive holds, in which files, with which digests.

Laws:

* The archive is what its manifest lists: consecutive ranges of LSNs without gaps. Other files in the directory do not
  count.
* It only grows, at its end: whatever one manifest lists, all later ones list unchanged. So a reader with an older one
  reads the same, and archivers that run side by side cannot take anything from each other.
* A new manifest appears by a rename, whole and synced, under the lock ``manifest.lock``; the files that it lists were
  whole and synced before.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .origin import SourceError

MANIFEST = "manifest.json"
LOCK = "manifest.lock"
FORMAT, VERSION = "alpo-archive", 1


class ArchivedRange(NamedTuple):
    """A file of an archive: payloads ``first_lsn`` … ``last_lsn``, ``rows`` in number, ``bytes`` of payloads;
    ``digest`` in hex (see `content`). ``file``, of ``file_bytes`` bytes, is in the manifest's directory."""

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
