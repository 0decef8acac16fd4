"""The interface of sources that payloads are read from: live servers, a data directory or backup, an archive.

Laws of every origin:

* `pages` yields guaranteed entries, in order and without gaps, from the first LSN asked for to the last; or it raises.
* Origins can be pickled: executors open what they need themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from alpo.errors import AlpoError


class SourceError(AlpoError):
    """The data source cannot do what was asked; the message is for the user."""


class DataLoss(SourceError):
    """Payloads ``first_lsn`` … ``last_lsn``, the first of those asked for, are no longer available."""

    def __init__(self, first_lsn: int, last_lsn: int, where: str) -> None:
        super().__init__(
            f"ALPO_DATA_LOSS: payloads {first_lsn} to {last_lsn} are not in {where} any more (they were trimmed or "
            "cleaned). Give archivePath if they were archived, or failOnDataLoss=false to go on behind them"
        )
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn
        self.where = where

    def __reduce__(self) -> tuple[type[DataLoss], tuple[int, int, str]]:
        return DataLoss, (self.first_lsn, self.last_lsn, self.where)


class Extent(NamedTuple):
    """Readable range: LSNs ``first_lsn`` … ``next_lsn - 1`` of the cluster with this id (hex)."""

    cluster: str
    first_lsn: int
    next_lsn: int


class Stretch(NamedTuple):
    """Whole DATA entries in order: a column for each field of a `PageEntry`, all of one length, which may be 0."""

    ids: Sequence[int]
    terms: Sequence[int]
    times_ms: Sequence[int]
    clients: Sequence[str]
    serials: Sequence[int]
    lsns: Sequence[int]
    counts: Sequence[int]
    bodies: Sequence[bytes]

    @staticmethod
    def of(entries: Sequence[Sequence[Any]]) -> Stretch:
        """Columns made of rows of `PageEntry`."""
        return Stretch._make(zip(*entries, strict=True)) if entries else Stretch(*[()] * len(Stretch._fields))

    def entries(self) -> Iterable[tuple[Any, ...]]:
        """The entries as rows of `PageEntry`."""
        return zip(*self, strict=True)

    @property
    def next_lsn(self) -> int:
        """The LSN after the last entry; there must be one."""
        return self.lsns[-1] + self.counts[-1]

    def part(self, begin: int, end: int) -> Stretch:
        """The entries at positions ``begin`` … ``end - 1``."""
        return self if (begin, end) == (0, len(self.ids)) else Stretch._make(column[begin:end] for column in self)


class Origin(Protocol):
    """A source of payloads."""

    @property
    def where(self) -> str:
        """Name of the source in messages."""

    def extent(self) -> Extent:
        """Readable range now; a later call never returns an earlier end. Raises `SourceError`."""

    def lsn_since(self, time_ms: int) -> int:
        """The first LSN of an entry with that time or later; the next LSN if there is none. Raises `SourceError`."""

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        """Yield whole entries that hold payloads ``first_lsn`` … ``last_lsn``. ``turn``: number that spreads ranges
        over replicas.

        Raises `SourceError`, `DataLoss`.
        """
