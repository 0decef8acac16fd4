"""The interface of sources that payloads are read from: live servers, a data directory or backup, an archive; and the
partitioning of LSNs at fixed multiples, so that the same span is always divided alike.

Laws of every origin:

* `pages` yields guaranteed entries, in order and without gaps, from the first LSN asked for to the last; or it raises.
* Origins can be pickled: executors open what they need themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from alpo.client.record import PageEntry
from alpo.core.entries import DamagedEntry
from alpo.errors import AlpoError
from alpo.wire.requests import PageColumns


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


class Stretch(PageColumns):
    """Whole appends in order, a row for each or for several that are one run (R32); there may be none."""

    def entries(self) -> list[PageEntry]:
        """The appends, one by one. Raises `SourceError` if a run is damaged."""
        try:
            return self.appends()
        except DamagedEntry as error:
            raise SourceError(f"a run from entry {self.ids[0]} on is damaged: {error}") from error

    @property
    def next_lsn(self) -> int:
        """The LSN after the last row; there must be one."""
        return self.lsns[-1] + self.counts[-1]

    def part(self, begin: int, end: int) -> Stretch:
        """The rows at positions ``begin`` … ``end - 1``."""
        return self if (begin, end) == (0, len(self.ids)) else Stretch._make(column[begin:end] for column in self)

    def within(self, first_lsn: int, last_lsn: int) -> Stretch:
        """The rows that hold any of the payloads ``first_lsn`` … ``last_lsn``."""
        begin = bisect_right(self.lsns, first_lsn)
        if begin and self.lsns[begin - 1] + self.counts[begin - 1] > first_lsn:
            begin -= 1
        return self.part(begin, bisect_right(self.lsns, last_lsn))


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
        """Yield rows that hold payloads ``first_lsn`` … ``last_lsn``, and no others. ``turn``: number that spreads
        ranges over replicas.

        Raises `SourceError`, `DataLoss`.
        """


class Range(NamedTuple):
    """LSNs ``first`` … ``last``; ``turn`` counts partitions, so that neighbours go to different replicas."""

    first: int
    last: int
    turn: int


def cut(first: int, last: int, size: int) -> list[Range]:
    """Divide ``first`` … ``last`` after every multiple of ``size``; [] if it is empty."""
    ranges = []
    while first <= last:
        end = min(last, -(-first // size) * size)
        ranges.append(Range(first, end, (first - 1) // size))
        first = end + 1
    return ranges
