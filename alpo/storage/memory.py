"""A store without a disk, with the same interface: for tests and simulated servers.

Laws:

* Committed data is held in encoded form, as SQLite would hold it, so later changes in the core cannot reach it.
* A commit takes effect at once and whole, under a lock that every read takes too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from alpo.core.disk import NO_BASE, Base, Boot, Snapshot, Write
from alpo.core.entries import Entry
from alpo.core.members import INCARNATION_BYTES

from .boot import make_boot, make_image
from .events import PENDING_MAX, ROWS_MAX, EventRow, KeptEvent
from .interface import (
    DamagedStore,
    Rest,
    Scrubbed,
    StateCopy,
    StoreError,
    Volume,
)
from .rows import (
    EMPTY_START,
    Hard,
    applied_from_json,
    applied_to_json,
    merge,
    session_from_blob,
    session_to_blob,
    start_to_json,
    text_checksum,
)
from .search import Head, first_id_where, holds_lsn, is_since
from .tables import Columns, without_bodies

_REPLAY_BYTES = 4 << 20


class Content(NamedTuple):
    """The durable content of a store whose log begins with entry 1: rows and columns as SQLite would hold them."""

    hard: Hard
    entries: list[Entry]
    runs: list[tuple[int, int]]
    sessions: dict[str, bytes]
    applied: str | None


class MemoryStore:
    """Implementation of `interface.Store` in memory. ``incarnation``: 16 bytes."""

    def __init__(self, server_id: int, incarnation: bytes = bytes(INCARNATION_BYTES)) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self._hard = Hard(server_id, incarnation, 0, 0, 0, 0, b"", start_to_json(EMPTY_START))
        self._unmarked = 0  # payloads written since the hard row was
        self._entries: list[Entry] = []
        self._runs: list[tuple[int, int]] = []
        self._sessions: dict[str, bytes] = {}
        self._applied: str | None = None
        self._noted: deque[EventRow] = deque(maxlen=PENDING_MAX)
        self._events: deque[KeptEvent] = deque(maxlen=ROWS_MAX)
        self._base = NO_BASE  # the first entry's id is its id + 1
        self.on_damage: Callable[[DamagedStore], None] = lambda damage: None  # nothing is ever damaged here

    @property
    def content(self) -> Content:
        """The content itself, no copy of it: for the exhaustive search, which keeps and compares thousands. Events and
        what was cleaned are not part of it."""
        with self._mutex:
            return Content(self._hard, self._entries, self._runs, self._sessions, self._applied)

    @classmethod
    def holding(cls, content: Content) -> MemoryStore:
        """A store with this `content`, which it takes over."""
        store = cls(content.hard.server_id, content.hard.incarnation)
        store._hard, store._entries, store._runs, store._sessions, store._applied = content
        return store

    def crash(self) -> MemoryStore:
        """Return the store as found after a crash: with all that was committed and nothing else. This object is
        closed."""
        with self._mutex:
            self._closed = True
            after = MemoryStore(self._hard.server_id, self._hard.incarnation)
            after._hard, after._applied, after._base = self._hard, self._applied, self._base
            after._entries, after._runs, after._sessions = self._entries, self._runs, self._sessions
            after._events = self._events
            self._entries, self._runs, self._sessions = [], [], {}
        return after

    def boot(self) -> Boot:
        with self._mutex:
            self._check_open()
            applied = applied_from_json(self._applied, text_checksum(self._applied)) if self._applied else {}
            for name in ("sessions", "ahead"):
                applied.pop(name, None)
            return make_boot(
                self._hard, self._base, self._entries[-1] if self._entries else None, list(self._runs), applied,
                [session_from_blob(client, blob) for client, blob in sorted(self._sessions.items())],
            )

    def commit(self, writes: Sequence[Write]) -> None:
        with self._mutex:
            self._check_open()
            merged = merge(writes, self._base.id, self._last_id)
            if merged.install is not None:
                self._entries, self._runs, self._sessions = [], [], {}
                self._applied, self._base = None, merged.install
            for entry in merged.mended:
                self._entries[entry.id - 1 - self._base.id] = entry
            if merged.expunge_from is not None:
                x = merged.expunge_from
                del self._entries[x - 1 - self._base.id :]
                self._runs = [run for run in self._runs if run[1] < x]
            self._entries.extend(merged.entries)
            self._runs.extend(merged.runs)
            for table in merged.tables:
                for client in table.ended:
                    self._sessions.pop(client, None)
                self._sessions.update({row.client: session_to_blob(row) for row in table.changed})
                self._applied = applied_to_json(table, len(self._sessions))
            if merged.base is not None:
                self._clean(merged.base)
            self._unmarked += sum(entry.count for entry in merged.entries)
            saves = merged.tables or merged.base is not None or merged.install is not None
            if saves or merged.start is not None or self._hard.is_due(merged.last, self._unmarked):
                self._hard, self._unmarked = self._hard.after(merged.last, merged.start), 0
            self._keep_events()

    def note(self, events: Iterable[EventRow]) -> None:
        with self._mutex:
            self._noted.extend(events)

    def _keep_events(self) -> None:
        for event in self._noted:
            self._events.append(KeptEvent(self._events[-1].number + 1 if self._events else 1, *event))
        self._noted.clear()

    @property
    def _last_id(self) -> int:
        return self._base.id + len(self._entries)

    def _clean(self, base: Base) -> None:
        del self._entries[: base.id - self._base.id]
        self._base = base
        runs = self._runs
        while runs and (runs[1][1] - 1 if len(runs) > 1 else self._last_id) <= base.id:
            del runs[0]

    def read_snapshot(self) -> Snapshot | None:
        with self._mutex:
            self._check_open()
            if self._applied is None:
                return None
            applied = applied_from_json(self._applied, text_checksum(self._applied))
            rows = [session_from_blob(client, blob) for client, blob in sorted(self._sessions.items())]
            return make_image(self._hard, self._base, applied, rows)

    def checkpoint(self, rest: Rest) -> float | None:
        if rest is Rest.IDLE:
            with self._mutex:
                self._keep_events()
        return None

    def give_back(self) -> None:
        pass

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        with self._mutex:
            self._check_open()
            before = self._base.id
            chosen = self._entries[first_id - 1 - before : max(0, last_id - before)] if first_id > before else []
        size = 0
        for count, entry in enumerate(chosen):
            size += len(entry.body)
            if count and size > bytes_max:
                return chosen[:count]
        return chosen

    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Columns:
        return Columns.of(self.read_entries(first_id, last_id, bytes_max))

    def read_heads(self, first_id: int, last_id: int) -> Columns:
        return without_bodies(self.read_entries(first_id, last_id, 1 << 62))

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        entries = self.read_entries(max(first_id, self._base.id + 1), self._last_id, bytes_max)
        next_id = entries[-1].id + 1 if entries else max(first_id, self._last_id + 1)
        return Scrubbed(next_id, [], sum(len(entry.body) for entry in entries), next_id > self._last_id)

    def replay(self, first_id: int) -> Iterator[Entry]:
        first_id = max(first_id, self._base.id + 1)
        while entries := self.read_entries(first_id, self._last_id, _REPLAY_BYTES):
            yield from entries
            first_id = entries[-1].id + 1

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        with self._mutex:
            self._check_open()
            return self._head(id) if self._base.id < id <= self._last_id else None

    def find_lsn(self, lsn: int, last_id: int) -> int:
        return self._find(holds_lsn(lsn), last_id)

    def find_time(self, time_ms: int, last_id: int) -> int:
        return self._find(is_since(time_ms), last_id)

    def _find(self, holds: Callable[[Head], bool], last_id: int) -> int:
        with self._mutex:
            self._check_open()
            high = min(last_id, self._last_id)
            found = first_id_where(self._head, self._base.id + 1, high, holds)
        return found if found <= high else last_id + 1

    def _head(self, id: int) -> Head:
        entry = self._entries[id - 1 - self._base.id]
        return Head(entry.time_ms, entry.lsn, entry.count)

    def read_events(self, before: int, count: int) -> list[KeptEvent]:
        with self._mutex:
            self._check_open()
            found = [event for event in self._events if not before or event.number < before]
            return found[-count:] if count else []

    def check_in_place(self) -> None:
        """Do nothing: memory cannot be replaced."""

    def volume(self) -> Volume:
        return Volume(0, 0)

    def giving_back(self) -> bool:
        return False

    def size_bytes(self) -> int:
        with self._mutex:
            return sum(len(entry.body) for entry in self._entries)

    def wal_bytes(self) -> int:
        return 0

    def live_bytes(self) -> int:
        return self.size_bytes()

    def free_bytes(self) -> int:
        return 0

    def copy_state(self, upto_id: int) -> StateCopy:
        raise StoreError("a store in memory has no data file to copy")

    def close(self) -> None:
        with self._mutex:
            self._keep_events()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed")
