"""Pages of a read in columns: packed and unpacked without a Python step for each entry."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from .requests import ColumnPage
from .shapes import INT_MAX, LONG_BYTES, refuse


class PageColumns(NamedTuple):
    """The fields of `Page.entries` as columns, all of one length."""

    ids: Sequence[int]
    terms: Sequence[int]
    times_ms: Sequence[int]
    clients: Sequence[str]
    serials: Sequence[int]
    lsns: Sequence[int]
    counts: Sequence[int]
    bodies: Sequence[bytes]


def pack_page(request: int, columns: PageColumns, next_lsn: int, end_lsn: int, first_lsn: int) -> ColumnPage:
    """Make the answer that holds these entries."""
    ids, terms, times_ms, clients, serials, lsns, counts, bodies = columns
    places = {name: place for place, name in enumerate(dict.fromkeys(clients))}
    return ColumnPage(
        request, _longs(ids), _longs(terms), _longs(times_ms), list(places),
        _longs(list(map(places.__getitem__, clients))), _longs(serials), _longs(lsns), _longs(counts),
        _longs(list(map(len, bodies))), b"".join(bodies), next_lsn, end_lsn, first_lsn,
    )


def unpack_page(page: ColumnPage) -> PageColumns:
    """The entries of an answer. Raises `WireError` if its columns do not fit together."""
    ids = _numbers(page.ids)
    terms, times_ms, places, serials, lsns, counts, lengths = (
        _numbers(column)
        for column in (page.terms, page.times_ms, page.clients, page.serials, page.lsns, page.counts, page.lengths)
    )
    if {*map(len, (terms, times_ms, places, serials, lsns, counts, lengths))} != {len(ids)}:
        refuse("columns of different lengths")
    if places and max(places) >= len(page.names):
        refuse("a client that is not named")
    if sum(lengths) != len(page.bodies):
        refuse("bodies that are not as long as they say")
    body = page.bodies
    bodies = [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
    clients = list(map(page.names.__getitem__, places))
    return PageColumns(ids, terms, times_ms, clients, serials, lsns, counts, bodies)


def _longs(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _numbers(column: bytes) -> tuple[int, ...]:
    numbers = struct.unpack(f"<{len(column) // LONG_BYTES}Q", column)
    if numbers and max(numbers) > INT_MAX:
        refuse("an integer over 2**63 - 1")
    return numbers
