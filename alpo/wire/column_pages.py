"""Entries as readers see them, in columns: packed and unpacked without a Python step for each entry."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from alpo.core.entries import DIGEST_BYTES, Entry, Kind, counts_of, parts, serials_of, split_payloads

from .requests import ColumnPage
from .shapes import INT_MAX, LONG_BYTES, refuse


class PageColumns(NamedTuple):
    """The fields of `Page.entries` as columns, all of one length, and ``steps``: 1 for a run (R32), whose payloads have
    one serial each, consecutive from the entry's on; 0 where all payloads of an entry have its serial."""

    ids: Sequence[int]
    terms: Sequence[int]
    times_ms: Sequence[int]
    clients: Sequence[str]
    serials: Sequence[int]
    lsns: Sequence[int]
    counts: Sequence[int]
    bodies: Sequence[bytes]
    steps: Sequence[int]

    @staticmethod
    def of(
        ids: Sequence[int], terms: Sequence[int], times_ms: Sequence[int], clients: Sequence[str],
        serials: Sequence[int], lsns: Sequence[int], counts: Sequence[int], bodies: Sequence[bytes],
        digests: Sequence[bytes],
    ) -> PageColumns:
        """The columns of DATA entries with these ``digests``. A run of which some appends are batches becomes a row for
        each append. Raises `DamagedEntry` if such a run does not hold what its digest tells."""
        columns = ids, terms, times_ms, clients, serials, lsns, counts, bodies
        if set(map(len, digests)) <= {DIGEST_BYTES}:
            return PageColumns(*columns, (0,) * len(ids))
        rows: list[tuple[Any, ...]] = []
        for row, digest in zip(zip(*columns, strict=True), digests, strict=True):
            if counts_of(digest) is None:
                rows.append((*row, int(serials_of(digest) > 1)))
                continue
            id, term, time_ms, client, serial, lsn, count, body = row
            run = Entry(id, term, int(Kind.DATA), time_ms, client, serial, 0, lsn, count, digest, body, 0)
            rows += [(*row[:4], *part, 0) for part in parts(run)]
        return PageColumns(*zip(*rows, strict=True))

    def appends(self) -> list[tuple[int, int, int, str, int, int, int, bytes]]:
        """A row of `Page.entries` for each append. Raises `DamagedEntry` if a run does not hold what it tells."""
        if not any(self.steps):
            return list(zip(*self[:-1], strict=True))
        rows: list[tuple[int, int, int, str, int, int, int, bytes]] = []
        for *row, step in zip(*self, strict=True):
            id, term, time_ms, client, serial, lsn, count, body = row
            if not step:
                rows.append((id, term, time_ms, client, serial, lsn, count, body))
                continue
            for at, payload in enumerate(split_payloads(count, body)):
                rows.append((id, term, time_ms, client, serial + at, lsn + at, 1, payload))
        return rows


NO_ENTRIES = PageColumns(*[()] * len(PageColumns._fields))


def pack_page(request: int, columns: PageColumns, next_lsn: int, end_lsn: int, first_lsn: int) -> ColumnPage:
    """Make the answer that holds these entries."""
    ids, terms, times_ms, clients, serials, lsns, counts, bodies, steps = columns
    places = {name: place for place, name in enumerate(dict.fromkeys(clients))}
    return ColumnPage(
        request, _longs(ids), _longs(terms), _longs(times_ms), list(places),
        _longs(list(map(places.__getitem__, clients))), _longs(serials), _longs(lsns), _longs(counts),
        _longs(list(map(len, bodies))), b"".join(bodies), next_lsn, end_lsn, first_lsn, bytes(steps),
    )


def unpack_page(page: ColumnPage) -> PageColumns:
    """The entries of an answer. Raises `WireError` if its columns do not fit together."""
    ids = _numbers(page.ids)
    terms, times_ms, places, serials, lsns, counts, lengths = (
        _numbers(column)
        for column in (page.terms, page.times_ms, page.clients, page.serials, page.lsns, page.counts, page.lengths)
    )
    if {*map(len, (terms, times_ms, places, serials, lsns, counts, lengths, page.steps))} != {len(ids)}:
        refuse("columns of different lengths")
    if places and max(places) >= len(page.names):
        refuse("a client that is not named")
    if sum(lengths) != len(page.bodies):
        refuse("bodies that are not as long as they say")
    body = page.bodies
    bodies = [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
    clients = list(map(page.names.__getitem__, places))
    return PageColumns(ids, terms, times_ms, clients, serials, lsns, counts, bodies, page.steps)


def _longs(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _numbers(column: bytes) -> tuple[int, ...]:
    numbers = struct.unpack(f"<{len(column) // LONG_BYTES}Q", column)
    if numbers and max(numbers) > INT_MAX:
        refuse("an integer over 2**63 - 1")
    return numbers
