"""What a read of the log gives, from a store alone: no tasks, no replica. Runs in a reader's thread.

Laws:

* A page ends at or before the entry id it was given: whoever gives it answers for that (R25, R26).
* Entries are whole and in order; nothing at or after ``start`` is left out but other clients' payloads when one
  client's are asked for, and ``next_lsn`` says how far the page looked.
* Outside of the log is an error that names the log's extent, never a silent skip (R20).
"""

from __future__ import annotations

from typing import NamedTuple

from alpo.core.entries import Entry, Kind
from alpo.storage.interface import Store
from alpo.wire.requests import Page, Read

#: How much one page of one client's payloads may look through before it answers with what it has.
SCAN_BYTES_MAX = 8 << 20
#: Ids looked at in one go when the last payloads of one client are sought.
_BACK_IDS = 4096


class OutOfRange(Exception):
    """The LSN asked for is not in the log."""

    def __init__(self, first_lsn: int, last_lsn: int) -> None:
        super().__init__(f"{first_lsn},{last_lsn}")
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class Extent(NamedTuple):
    """The LSNs from the log's first entry up to entry ``end_id``; an empty log spans 1 … 0."""

    first_id: int
    end_id: int
    first_lsn: int
    end_lsn: int


def extent(store: Store, first_id: int, end_id: int) -> Extent:
    """The extent of entries ``first_id`` … ``end_id`` (which must be on disk, if any are)."""
    first = store.entry_head(first_id) if first_id <= end_id else None
    last = store.entry_head(end_id) if first_id <= end_id else None
    if first is None or last is None:
        return Extent(first_id, end_id, 1, 0)
    return Extent(first_id, end_id, first[1], last[1] + last[2] - 1)


def build_page(store: Store, ask: Read, within: Extent, bytes_max: int) -> Page:
    """The page that ``ask`` is due. Raises `OutOfRange`, and the store's `DamagedStore`."""
    start = _start(store, ask, within, bytes_max)
    if not within.first_lsn <= start <= within.end_lsn + 1:
        raise OutOfRange(within.first_lsn, within.end_lsn)
    last_id = within.end_id
    if 0 < ask.end < within.end_lsn:
        last_id = store.find_lsn(ask.end, within.end_id)
    if start > within.end_lsn or 0 < ask.end < start:
        return Page(ask.request, [], start, within.end_lsn, within.first_lsn)
    rows: list[tuple[int, int, int, str, int, int, int, bytes]] = []
    next_id, next_lsn, scanned = store.find_lsn(start, last_id), start, 0
    while next_id <= last_id and bytes_max > 0 and scanned < SCAN_BYTES_MAX:
        entries = store.read_entries(next_id, last_id, bytes_max)
        if not entries:
            break
        found = [e for e in entries if e.kind == Kind.DATA and (not ask.client or e.client == ask.client)]
        rows += [(e.id, e.term, e.time_ms, e.client, e.serial, e.lsn, e.count, e.body) for e in found]
        bytes_max -= sum([len(e.body) for e in found])
        scanned += _size(entries)
        next_id, next_lsn = entries[-1].id + 1, entries[-1].lsn + entries[-1].count
        if not ask.client:
            break
    return Page(ask.request, rows, next_lsn, within.end_lsn, within.first_lsn)


def _size(entries: list[Entry]) -> int:
    return sum([len(e.body) for e in entries]) + 100 * len(entries)


def _start(store: Store, ask: Read, within: Extent, bytes_max: int) -> int:
    if within.end_lsn < within.first_lsn and not ask.start:
        return within.end_lsn + 1
    if ask.last > 0:
        if ask.client:
            return _last_of_client(store, ask, within, bytes_max)
        return max(within.first_lsn, within.end_lsn - ask.last + 1)
    if ask.since_ms > 0:
        id = store.find_time(ask.since_ms, within.end_id)
        head = store.entry_head(id) if id <= within.end_id else None
        return head[1] if head is not None else within.end_lsn + 1
    return ask.start or within.first_lsn


def _last_of_client(store: Store, ask: Read, within: Extent, bytes_max: int) -> int:
    """The LSN from which ``ask.last`` payloads of that client follow, sought from the end backwards."""
    missing, upto = ask.last, within.end_id
    while upto >= within.first_id:
        first_id = max(within.first_id, upto - _BACK_IDS + 1)
        found: list[tuple[int, int]] = []
        id = first_id
        while id <= upto:
            entries = store.read_entries(id, upto, bytes_max)
            if not entries:
                break
            found += [(e.lsn, e.count) for e in entries if e.client == ask.client and e.kind == Kind.DATA]
            id = entries[-1].id + 1
        for lsn, count in reversed(found):
            if missing <= count:
                return lsn + count - missing
            missing -= count
        upto = first_id - 1
    return within.first_lsn
