"""Pages of a read, made from a store in a reader's thread, or of the log's tail in memory; and the places of one
client's entries in the log, found without reading the bodies of others' entries. All without tasks.

Laws of pages:

* A page ends at or before the entry id given: the caller vouches for that id (R25, R26).
* Appends are whole and in order. From ``start`` on none is left out, except other clients' payloads if one client's are
  asked for; ``next_lsn`` says how far the page looked.
* A page fits in a frame, however small its payloads and long its clients' names: rows are bounded as bodies are.
* An LSN outside the log is an error that gives the log's bounds, never a silent skip (R20). No payload below
  ``first_lsn`` is sent, not even from a batch that was trimmed in the middle. Of a run (R32) only the appends from
  ``start`` on are sent, so that whoever reads on never gets them twice.
* If one client's payloads are wanted, only the heads of other clients' entries are read.
* A page ends before a damaged entry; one that would begin with it raises the store's `DamagedStore` (R31).
* The store may be cleaned while a page is made. Missing entries then raise `Overtaken`: the caller looks again where
  the log begins, and gets another page or a true `OutOfRange`.

Laws of one client's places:

* What the session table remembers needs no look at the log (R22). Below that the heads of entries are read, each with
  its checksum: a damaged one never reads as absent (R31).
* Heads that were read once need not be read again to know that a client has nothing there: guaranteed entries never
  change. The clients of entries that are written while the server runs are known without reading. What is remembered
  takes `HELD_MAX` numbers at most, the newest.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX, Entry, Kind, join_payloads, split_payloads
from alpo.core.log import Log
from alpo.storage.interface import DamagedStore, Readable, Scrubbed
from alpo.storage.scrub import STRETCH_S, read_sound_columns
from alpo.storage.tables import NO_COLUMNS, Columns, joined, only, without_bodies
from alpo.wire.framing import GATHERED_BYTES_MAX
from alpo.wire.requests import NO_ENTRIES, ColumnPage, Page, PageColumns, Read, ReadColumns, pack_page

#: Ids whose heads are read at a time, and numbers that are remembered, of four bytes: one for each client in each such
#: stretch of ids.
STRETCH_IDS, HELD_MAX = 256, 4 << 20
#: Entries are followed sixteen at a time, the last of a stretch always; they are in memory for longer.
_FOLLOW_MASK = 15
_DATA = int(Kind.DATA)
_CLIENT = attrgetter("client")


class Overtaken(Exception):
    """Entries that are needed were cleaned meanwhile."""


class Traces:
    """The clients of stretches of the log that were looked through. Any thread."""

    def __init__(self) -> None:
        self._clients: dict[int, array[int]] = {}
        self._held = 0
        #: The next entry to follow, and the clients of those before it in its stretch; None: not all of them are known.
        self._next_id = 1
        self._followed: set[str] | None = set()
        #: The readable end from which on `follow` is worth a call.
        self.due_id = 1
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """True if there is hardly room for more."""
        return self._held > HELD_MAX - 2 * STRETCH_IDS

    def knows(self, id: int) -> bool:
        """True if the clients of the stretch of entry ``id`` are known."""
        return id // STRETCH_IDS in self._clients

    def lacks(self, stretch: int, client: str) -> bool:
        """True if the client surely has no entry in this stretch."""
        clients = self._clients.get(stretch)
        if clients is None:
            return False
        number = crc32(client.encode())
        at = bisect_left(clients, number)
        return at == len(clients) or clients[at] != number

    def note(self, stretch: int, clients: Collection[str]) -> None:
        """Note the clients of all entries of a stretch."""
        numbers = array("I", sorted({crc32(client.encode()) for client in clients}))
        with self._lock:
            self._forget(stretch)
            self._clients[stretch] = numbers
            self._held += len(numbers) + 1
            while self._held > HELD_MAX:
                self._forget(next(iter(self._clients)))

    def follow(self, log: Log, end_id: int) -> None:
        """Note the clients of the entries up to ``end_id`` that were not followed yet, out of memory. One thread."""
        if end_id - self._next_id > 4 * STRETCH_IDS:  # a start, or a snapshot
            self._next_id, self._followed = end_id - end_id % STRETCH_IDS, None
        while (first_id := self._next_id) <= end_id:
            last_id = min(end_id, _end_of(first_id))
            entries = log.between(first_id, last_id)
            if len(entries) <= last_id - first_id:
                self._followed = None
            elif self._followed is not None:
                self._followed.update(map(_CLIENT, entries))
            if last_id == _end_of(first_id):
                if self._followed is not None:
                    self.note(first_id // STRETCH_IDS, self._followed)
                self._followed = set()
            self._next_id = last_id + 1
        self.due_id = self._next_id | _FOLLOW_MASK

    def _forget(self, stretch: int) -> None:
        forgotten = self._clients.pop(stretch, None)
        if forgotten is not None:
            self._held -= len(forgotten) + 1


class Whose:
    """The entries of one client. ``known``: (id, ids), at and above entry ``id`` they are exactly ``ids``
    (`SessionState.entries_of`)."""

    def __init__(
        self, client: str, known: tuple[int, Sequence[int]] = (INT_MAX, ()), traces: Traces | None = None
    ) -> None:
        self._client = client
        self._known_id, self._ids = known
        self._traces = traces or Traces()

    def above(self, store: Readable, id: int, first_id: int, last_id: int) -> tuple[int, Sequence[int], int]:
        """(upto id, ids, heads): of the entries ``id`` … upto id, the client's are ``ids``; so many heads of entries
        with payloads were read. The log begins with ``first_id``. Raises `Overtaken`, `DamagedStore`."""
        if id >= self._known_id:
            return last_id, self._ids[bisect_left(self._ids, id) : bisect_right(self._ids, last_id)], 0
        last_id = min(last_id, self._known_id - 1)
        heads = self._heads(store, id, first_id, last_id)
        if heads is None:
            return min(last_id, _end_of(id)), (), 0
        ids = [heads.ids[at] for at in self._mine(heads)]
        return heads.ids[-1], ids[bisect_left(ids, id) :], heads.kinds.count(_DATA)

    def below(self, store: Readable, id: int, first_id: int) -> tuple[int, Iterator[tuple[int, int]], int]:
        """(down id, places, heads): as `above`, of the entries down id … ``id``; places: the LSN and the number of
        payloads of each of the client's, the last first."""
        if id >= self._known_id:
            down_id = max(first_id, self._known_id)
            return down_id, _places(store, self._ids[bisect_left(self._ids, down_id) : bisect_right(self._ids, id)]), 0
        heads = self._heads(store, id, first_id, id)
        if heads is None:
            return max(first_id, begin_of(id)), iter(()), 0
        places = [(heads.lsns[at], heads.counts[at]) for at in self._mine(heads)]
        return heads.ids[0], reversed(places), heads.kinds.count(_DATA)

    def _mine(self, heads: Columns) -> Iterator[int]:
        client = self._client
        for at, (kind, whose) in enumerate(zip(heads.kinds, heads.clients, strict=True)):
            if whose == client and kind == _DATA:
                yield at

    def _heads(self, store: Readable, id: int, first_id: int, last_id: int) -> Columns | None:
        """The heads of the stretch of entry ``id``, up to ``last_id``, as far as they are sound around ``id``; None if
        the client has nothing there."""
        stretch = id // STRETCH_IDS
        if self._traces.lacks(stretch, self._client):
            return None
        begin_id, end_id = max(first_id, begin_of(id)), min(last_id, _end_of(id))
        whole = end_id == _end_of(id)
        while True:
            try:
                heads = store.read_heads(begin_id, end_id)
                break
            except DamagedStore as damage:
                if damage.id == id or not begin_id <= damage.id <= end_id:
                    raise
                whole = False
                begin_id, end_id = (damage.id + 1, end_id) if damage.id < id else (begin_id, damage.id - 1)
        if not heads.ids or heads.ids[-1] != end_id:
            raise Overtaken
        if whole:
            clients = {whose for kind, whose in zip(heads.kinds, heads.clients, strict=True) if kind == _DATA}
            self._traces.note(stretch, clients)
        return heads


def begin_of(id: int) -> int:
    """The first id of the stretch of entry ``id``."""
    return id - id % STRETCH_IDS


def _end_of(id: int) -> int:
    return begin_of(id) + STRETCH_IDS - 1


def _places(store: Readable, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    for id in reversed(ids):
        head = store.entry_head(id)
        if head is None:
            raise Overtaken
        yield head[1], head[2]


#: Bytes that a page of one client's payloads looks through before it is returned with what was found.
SCAN_BYTES_MAX = 8 << 20
#: Most bytes of a row beside its body: six integers, a name, the heads of array, name and body.
ROW_BYTES_MAX = 6 * 9 + CLIENT_BYTES_MAX + 1 + 2 + 5
#: Rows of one page: they share half of a frame's bound with everything that is not bodies (`framing.frame_bytes_max`).
PAGE_ROWS_MAX = GATHERED_BYTES_MAX // 2 // ROW_BYTES_MAX
#: Most entries, and bytes of their bodies, of a page that is made of the log's tail in memory.
TAIL_ENTRIES_MAX, TAIL_BYTES_MAX = 64, 32 << 10
#: Bytes that the head of another client's entry counts towards that bound: reading it from a cold disk takes as long.
HEAD_BYTES = 2048


class OutOfRange(Exception):
    """The requested LSN is not in the log, which holds ``first_lsn`` … ``last_lsn``."""

    def __init__(self, first_lsn: int, last_lsn: int) -> None:
        super().__init__(f"{first_lsn},{last_lsn}")
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class Front(NamedTuple):
    """Start of the log: the last cleaned id, the LSN after it, and the first LSN that is served (R20)."""

    base_id: int
    base_next_lsn: int
    first_lsn: int


class Extent(NamedTuple):
    """Readable range: entries ``first_id`` … ``end_id``, LSNs ``first_lsn`` … ``end_lsn``.

    An empty log has 1 … 0; one of which all n payloads were trimmed has n + 1 … n.
    """

    first_id: int
    end_id: int
    first_lsn: int
    end_lsn: int


class Ahead:
    """A store with ``entries`` behind it, at least one, which may not be on its disk yet: a majority holds them, so
    that a linearizable read shows them (R25). Methods as those of `Readable`."""

    def __init__(self, store: Readable, entries: Sequence[Entry]) -> None:
        self._store = store
        self._entries = entries
        self._first_id = entries[0].id

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        if first_id < self._first_id:
            return self._store.read_entries(first_id, min(last_id, self._first_id - 1), bytes_max)
        return self._held(first_id, last_id, bytes_max)

    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Columns:
        if first_id < self._first_id:
            return self._store.read_columns(first_id, min(last_id, self._first_id - 1), bytes_max)
        return Columns.of(self._held(first_id, last_id, bytes_max))

    def read_heads(self, first_id: int, last_id: int) -> Columns:
        heads = NO_COLUMNS
        if first_id < self._first_id:
            heads = self._store.read_heads(first_id, min(last_id, self._first_id - 1))
            if not heads.ids or last_id < self._first_id:
                return heads
        return joined([heads, without_bodies(self._held(max(first_id, self._first_id), last_id, 1 << 62))])

    def _held(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        chosen = list(self._entries[first_id - self._first_id : last_id + 1 - self._first_id])
        for count, entry in enumerate(chosen):
            bytes_max -= len(entry.body)
            if count and bytes_max < 0:
                return chosen[:count]
        return chosen

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        return self._store.scrub(first_id, bytes_max)

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        at = id - self._first_id
        if at < 0:
            return self._store.entry_head(id)
        entry = self._entries[at] if at < len(self._entries) else None
        return (entry.time_ms, entry.lsn, entry.count) if entry is not None else None

    def find_lsn(self, lsn: int, last_id: int) -> int:
        found = self._store.find_lsn(lsn, min(last_id, self._first_id - 1))
        if found < self._first_id:
            return found
        return min(last_id + 1, self._first_id + bisect_right(self._entries, lsn, key=lambda e: e.lsn + e.count))

    def find_time(self, time_ms: int, last_id: int) -> int:
        found = self._store.find_time(time_ms, min(last_id, self._first_id - 1))
        if found < self._first_id:
            return found
        return min(last_id + 1, self._first_id + bisect_left(self._entries, time_ms, key=lambda e: e.time_ms))


def with_tail(store: Readable, log: Log, end_id: int) -> Readable:
    """Return all that can be read up to entry ``end_id``: the store, and from memory what is not on its disk yet."""
    ahead = log.not_on_disk(end_id)
    return Ahead(store, ahead) if ahead else store


def extent(store: Readable, front: Front, end_id: int) -> Extent:
    """The extent up to entry ``end_id``, which is on disk or was cleaned. Raises `Overtaken`."""
    if end_id <= front.base_id:
        return extent_to(front, end_id, front.base_next_lsn - 1)
    head = store.entry_head(end_id)
    if head is None:
        raise Overtaken
    return extent_to(front, end_id, head[1] + head[2] - 1)


def extent_to(front: Front, end_id: int, end_lsn: int) -> Extent:
    """The extent up to entry ``end_id``, given the LSN at which the log up to there ends.

    A trim may be known before this disk holds all that it covers: then there is nothing to read yet.
    """
    return Extent(front.base_id + 1, end_id, front.first_lsn, max(end_lsn, front.first_lsn - 1))


def answer(
    ask: Read | ReadColumns, columns: PageColumns, next_lsn: int, end_lsn: int, first_lsn: int
) -> Page | ColumnPage:
    """The page in the form that was asked for: a row for each append, or columns. Raises `DamagedEntry` if a run does
    not hold what it tells."""
    if isinstance(ask, ReadColumns):
        return pack_page(ask.request, columns, next_lsn, end_lsn, first_lsn)
    rows = columns.appends()
    if len(rows) > PAGE_ROWS_MAX:  # runs hold many small appends
        next_lsn = rows[PAGE_ROWS_MAX][5]
        del rows[PAGE_ROWS_MAX:]
    return Page(ask.request, rows, next_lsn, end_lsn, first_lsn)


def build_page(
    store: Readable, ask: Read | ReadColumns, within: Extent, bytes_max: int, rows_max: int = PAGE_ROWS_MAX,
    whose: Whose | None = None,
) -> Page | ColumnPage:
    """Read the page for ``ask``, from at most ``rows_max`` entries; ``whose``: what is known of the client that is
    asked for. Raises `OutOfRange`, `Overtaken`, and the store's `DamagedStore`."""
    start = _start(store, ask, within)
    all_gone = not ask.start and 0 < ask.end < within.first_lsn
    if all_gone or not within.first_lsn <= start <= within.end_lsn + 1:
        raise OutOfRange(within.first_lsn, within.end_lsn)
    last_id = within.end_id
    if 0 < ask.end < within.end_lsn:
        last_id = store.find_lsn(ask.end, within.end_id)
    if start > within.end_lsn or 0 < ask.end < start:
        return answer(ask, NO_ENTRIES, start, within.end_lsn, within.first_lsn)
    first_id = store.find_lsn(start, last_id)
    if ask.client:
        whose = whose or Whose(ask.client)
        head = store.entry_head(first_id)
        if head is None or head[1] > start:
            raise Overtaken
        found, next_lsn = _of_client(store, whose, within, first_id, last_id, bytes_max, rows_max)
        return _finish(ask, only(found, int(Kind.DATA), ask.client), start, next_lsn, within)
    if first_id > last_id or bytes_max <= 0 or rows_max <= 0:
        raise Overtaken  # the entry with this LSN was there before
    entries = read_sound_columns(store, first_id, min(last_id, first_id + rows_max - 1), bytes_max)
    if not entries.ids or entries.lsns[0] > start:
        raise Overtaken
    next_lsn = entries.lsns[-1] + entries.counts[-1]
    return _finish(ask, only(entries, int(Kind.DATA)), start, next_lsn, within)


def _of_client(
    store: Readable, whose: Whose, within: Extent, next_id: int, last_id: int, bytes_max: int, rows_max: int
) -> tuple[Columns, int]:
    """One client's entries from ``next_id`` on, as many as fit in a page, and the LSN up to which was looked."""
    parts: list[Columns] = []
    begin_id, scanned, stop_s = next_id, 0, time.monotonic() + STRETCH_S
    while next_id <= last_id and bytes_max > 0 and rows_max > 0 and (
        not scanned or (scanned < SCAN_BYTES_MAX and time.monotonic() < stop_s)
    ):
        try:
            upto_id, ids, heads = whose.above(store, next_id, within.first_id, last_id)
            others = max(0, heads - len(ids))
            scanned, rows_max = scanned + HEAD_BYTES * others, rows_max - others
            for first, last in _runs(ids):
                entries = read_sound_columns(store, first, min(last, first + max(1, rows_max) - 1), bytes_max)
                if not entries.ids:
                    raise Overtaken
                parts.append(entries)
                rows_max -= len(entries.ids)
                size = sum(map(len, entries.bodies))
                bytes_max, scanned = bytes_max - size, scanned + size
                next_id = entries.ids[-1] + 1
                if next_id <= last or bytes_max <= 0 or rows_max <= 0:
                    break
            else:
                next_id = upto_id + 1
        except DamagedStore:
            if next_id > begin_id:
                break
            raise
    head = store.entry_head(next_id - 1)
    if head is None or next_id == begin_id:
        raise Overtaken
    return joined(parts), head[1] + head[2]


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and last of each run of consecutive ids."""
    first_at = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            yield ids[first_at], ids[at - 1]
            first_at = at


def build_tail_page(log: Log, ask: Read | ReadColumns, within: Extent, bytes_max: int) -> Page | ColumnPage | None:
    """The page for a reader that follows, of a few entries at the end of the log, all of them in memory: quick enough
    for the event loop. None if it takes more than that. Raises `OutOfRange`."""
    start = ask.start
    if not (ask.wait_ms and start) or ask.end or ask.last or ask.since_ms or ask.client:
        return None
    if within.end_lsn < within.first_lsn:
        return None  # all of it was trimmed
    if not within.first_lsn <= start <= within.end_lsn + 1:
        raise OutOfRange(within.first_lsn, within.end_lsn)
    entries: list[Entry] = []
    size, id = 0, within.end_id
    while start <= within.end_lsn and (not entries or entries[-1].lsn > start):
        entry = log.entry(id)
        if entry is None or len(entries) == TAIL_ENTRIES_MAX:
            return None
        entries.append(entry)
        size += len(entry.body)
        id -= 1
        if size > min(TAIL_BYTES_MAX, bytes_max):
            return None
    if not entries:
        return answer(ask, NO_ENTRIES, start, within.end_lsn, within.first_lsn)
    entries.reverse()
    return _finish(ask, only(Columns.of(entries), int(Kind.DATA), ""), start, within.end_lsn + 1, within)


def _finish(ask: Read | ReadColumns, found: Columns, start: int, next_lsn: int, within: Extent) -> Page | ColumnPage:
    """The page of these DATA entries, without what is before ``start``, or trimmed."""
    columns = PageColumns.of(
        found.ids, found.terms, found.times_ms, found.clients, found.serials, found.lsns, found.counts, found.bodies,
        found.digests,
    )
    if columns.ids and columns.lsns[0] < max(start, within.first_lsn):
        columns = _cut(columns, start, within.first_lsn)
    return answer(ask, columns, next_lsn, within.end_lsn, within.first_lsn)


def _cut(page: PageColumns, start: int, first_lsn: int) -> PageColumns:
    """The page without what is before the append that holds LSN ``start``, and without payloads below ``first_lsn``. An
    append that is a batch stays whole above that."""
    at = max(0, bisect_right(page.lsns, max(start, first_lsn)) - 1)
    page = PageColumns._make(column[at:] for column in page)
    gone = (max(start, first_lsn) if page.steps[0] else first_lsn) - page.lsns[0]
    if gone <= 0:
        return page
    left = split_payloads(page.counts[0], page.bodies[0])[gone:]
    serial = page.serials[0] + gone * page.steps[0]
    return page._replace(
        serials=(serial, *page.serials[1:]), lsns=(page.lsns[0] + gone, *page.lsns[1:]),
        counts=(len(left), *page.counts[1:]), bodies=(join_payloads(left), *page.bodies[1:]),
    )


def _start(store: Readable, ask: Read | ReadColumns, within: Extent) -> int:
    if within.end_lsn < within.first_lsn and not ask.start:
        return within.end_lsn + 1
    if ask.last > 0 and ask.client:
        search = Back(ask, within)
        while search.start is None:
            search.step(store, Whose(ask.client), within)
        return search.start
    if ask.last > 0:
        return max(within.first_lsn, within.end_lsn - ask.last + 1)
    if ask.since_ms > 0:
        id = store.find_time(ask.since_ms, within.end_id)
        if id > within.end_id:
            return within.end_lsn + 1
        head = store.entry_head(id)
        if head is None:
            raise Overtaken
        return max(within.first_lsn, head[1])
    return ask.start or within.first_lsn


class Back:
    """The search for the LSN from which a client has as many payloads as ``ask.last``: backwards from the end, in steps
    of a bounded time."""

    #: Heads that a step reads before it ends, unless its time is up before.
    HEADS_MAX = 8192

    def __init__(self, ask: Read | ReadColumns, within: Extent) -> None:
        self._missing, self._upto_id = ask.last, within.end_id
        self._found_lsn = within.end_lsn + 1
        #: The LSN, once it is found; the one after the end if the client has no payload.
        self.start: int | None = None

    def step(self, store: Readable, whose: Whose, within: Extent) -> None:
        """Look on. Raises `Overtaken`, and the store's `DamagedStore`."""
        looked, stop_s = 0, time.monotonic() + STRETCH_S
        while looked < self.HEADS_MAX and (not looked or time.monotonic() < stop_s):
            if self._upto_id < within.first_id or self._missing <= 0 or self._found_lsn <= within.first_lsn:
                self.start = max(within.first_lsn, self._found_lsn)
                return
            down_id, places, heads = whose.below(store, self._upto_id, within.first_id)
            looked += heads
            for lsn, count in places:
                self._found_lsn = lsn + max(0, count - self._missing)
                self._missing -= count
                looked += 1
                if self._missing <= 0:
                    break
            self._upto_id = down_id - 1
