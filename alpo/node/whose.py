"""Places of one client's entries in the log, found without reading the bodies of others' entries; without tasks.

Laws:

* What the session table remembers needs no look at the log (R22). Below that the heads of entries are read, each with
  its checksum: a damaged one never reads as absent (R31).
* Heads that were read once need not be read again to know that a client has nothing there: guaranteed entries never
  change. The clients of entries that are written while the server runs are known without reading. What is remembered
  takes `HELD_MAX` numbers at most, the newest.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from zlib import crc32

from alpo.core.entries import INT_MAX, Kind
from alpo.core.log import Log
from alpo.storage.columns import Columns
from alpo.storage.interface import DamagedStore, Readable

#: Ids whose heads are read at a time, and numbers that are remembered, of four bytes: one for each client in each such
#: stretch of ids.
STRETCH_IDS, HELD_MAX = 256, 4 << 20
_DATA = int(Kind.DATA)


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
        for id in range(self._next_id, end_id + 1):
            entry = log.entry(id)
            if entry is None:
                self._followed = None
            elif self._followed is not None and entry.kind == _DATA:
                self._followed.add(entry.client)
            if id == _end_of(id):
                if self._followed is not None:
                    self.note(id // STRETCH_IDS, self._followed)
                self._followed = set()
        self._next_id = max(self._next_id, end_id + 1)

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
