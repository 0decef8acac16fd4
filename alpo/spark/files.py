"""Read a data directory or a backup, whether or not a server runs on it (`alpo.offline`).

Every row's checksums are verified. The readable part ends at the file's guaranteed mark. In a directory that may be
some thousand entries behind the true one; in a backup it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from alpo.core.entries import Kind
from alpo.offline import Source, StoreError, folder_named, open_source
from alpo.storage.tables import only
from alpo.wire.requests import PageColumns

from .origin import DataLoss, Extent, SourceError, Stretch

_DATA = int(Kind.DATA)


class _Ids(NamedTuple):
    """Readable range of a file, as ids and as LSNs."""

    first: int
    end: int
    first_lsn: int
    next_lsn: int


def path_of(path: str, log: str) -> str:
    """Path of the log with this name, "" for the first, in a data directory. Raises `SourceError`."""
    try:
        return str(folder_named(Path(path), log)) if log else path
    except StoreError as error:
        raise SourceError(str(error)) from error


@dataclass(frozen=True)
class FileOrigin:
    """A data directory, a data file or a backup at ``path``."""

    path: str

    @property
    def where(self) -> str:
        return self.path

    def extent(self) -> Extent:
        with self._open() as source:
            summary = source.summary()
            if summary.hard is None or not summary.hard.cluster:
                raise SourceError(f"{self.path} belongs to no cluster yet: {'; '.join(summary.damage) or 'it is new'}")
            ids = _ids(source)
            return Extent(summary.hard.cluster.hex(), ids.first_lsn, ids.next_lsn)

    def lsn_since(self, time_ms: int) -> int:
        with self._open() as source:
            ids = _ids(source)
            id = source.id_since(time_ms, ids.first, ids.end)
            return source.next_lsn_after(id - 1) if id > ids.first else ids.first_lsn

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        with self._open() as source:
            ids = _ids(source)
            if first_lsn < ids.first_lsn:
                raise DataLoss(first_lsn, min(last_lsn, ids.first_lsn - 1), self.path)
            id = source.id_of(first_lsn, ids.first, ids.end)
            end_id = source.id_of(last_lsn, ids.first, ids.end)
            if end_id > ids.end:
                raise SourceError(f"{self.path} ends at LSN {ids.next_lsn - 1}, and {last_lsn} was asked for")
            while id <= end_id:
                columns = source.read_columns(id, end_id)
                id = columns.ids[-1] + 1
                found = only(columns, _DATA)
                page = PageColumns.of(
                    found.ids, found.terms, found.times_ms, found.clients, found.serials, found.lsns, found.counts,
                    found.bodies, found.digests,
                )
                yield Stretch._make(page).within(first_lsn, last_lsn)

    @contextmanager
    def _open(self) -> Iterator[Source]:
        try:
            with open_source(Path(self.path)) as source:
                yield source
        except StoreError as error:
            raise SourceError(str(error)) from error


def _ids(source: Source) -> _Ids:
    summary = source.summary()
    if summary.base is None or summary.hard is None:
        raise StoreError(f"{source.path} is damaged: {'; '.join(summary.damage)}")
    end = min(summary.guaranteed_id, summary.end_id)
    next_lsn = source.next_lsn_after(end) if end > summary.base.id else summary.base.next_lsn
    return _Ids(summary.base.id + 1, max(end, summary.base.id), summary.base.next_lsn, next_lsn)
