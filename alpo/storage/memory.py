"""A store without a disk: the same contract, for tests and simulated servers.

Laws:

* What is committed is held as SQLite would hold it, so nothing that the core changes later reaches back into it.
* A commit takes effect at once and whole, under a lock that every read takes too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from alpo.core.entries import Entry
from alpo.core.members import INCARNATION_BYTES
from alpo.core.ready import Write

from .boot import make_boot
from .interface import Boot, Rest, StoreError
from .merge import merge
from .rows import (
    EMPTY_START,
    Hard,
    applied_from_json,
    applied_to_json,
    session_from_blob,
    session_to_blob,
    start_to_json,
    text_checksum,
)
from .search import Head, first_id_where, holds_lsn, is_since

_REPLAY_BYTES = 4 << 20


class MemoryStore:
    """`interface.Store` in memory. ``incarnation``: 16 bytes."""

    def __init__(self, server_id: int, incarnation: bytes = bytes(INCARNATION_BYTES)) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self._hard = Hard(server_id, incarnation, 0, 0, 0, 0, b"", start_to_json(EMPTY_START))
        self._entries: list[Entry] = []
        self._runs: list[tuple[int, int]] = []
        self._sessions: dict[str, bytes] = {}
        self._applied: str | None = None

    def crash(self) -> MemoryStore:
        """The store as found after a crash: what was committed and nothing else. This one is dead from now on."""
        with self._mutex:
            self._closed = True
            after = MemoryStore(self._hard.server_id, self._hard.incarnation)
            after._hard, after._applied = self._hard, self._applied
            after._entries, after._runs, after._sessions = self._entries, self._runs, self._sessions
            self._entries, self._runs, self._sessions = [], [], {}
        return after

    def boot(self) -> Boot:
        with self._mutex:
            self._check_open()
            applied = applied_from_json(self._applied, text_checksum(self._applied)) if self._applied else {}
            applied.pop("sessions", None)
            return make_boot(
                self._hard, self._entries[-1] if self._entries else None, list(self._runs), applied,
                [session_from_blob(client, blob) for client, blob in sorted(self._sessions.items())],
            )

    def commit(self, writes: Sequence[Write]) -> None:
        with self._mutex:
            self._check_open()
            merged = merge(writes, len(self._entries))
            new = self._hard.after(merged.last, merged.start)
            if merged.expunge_from is not None:
                x = merged.expunge_from
                del self._entries[x - 1 :]
                self._runs = [run for run in self._runs if run[1] < x]
            self._entries.extend(merged.entries)
            self._runs.extend(merged.runs)
            for table in merged.tables:
                for client in table.ended:
                    self._sessions.pop(client, None)
                self._sessions.update({row.client: session_to_blob(row) for row in table.changed})
                self._applied = applied_to_json(table, len(self._sessions))
            if merged.tables or self._hard.is_due(new):
                self._hard = new

    def checkpoint(self, rest: Rest) -> bool:
        return True

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        with self._mutex:
            self._check_open()
            chosen = self._entries[first_id - 1 : last_id]
        size = 0
        for count, entry in enumerate(chosen):
            size += len(entry.body)
            if count and size > bytes_max:
                return chosen[:count]
        return chosen

    def replay(self, first_id: int) -> Iterator[Entry]:
        while entries := self.read_entries(first_id, len(self._entries), _REPLAY_BYTES):
            yield from entries
            first_id = entries[-1].id + 1

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        with self._mutex:
            self._check_open()
            return self._head(id) if 1 <= id <= len(self._entries) else None

    def find_lsn(self, lsn: int, last_id: int) -> int:
        return self._find(holds_lsn(lsn), last_id)

    def find_time(self, time_ms: int, last_id: int) -> int:
        return self._find(is_since(time_ms), last_id)

    def _find(self, holds: Callable[[Head], bool], last_id: int) -> int:
        with self._mutex:
            self._check_open()
            high = min(last_id, len(self._entries))
            found = first_id_where(self._head, 1, high, holds)
        return found if found <= high else last_id + 1

    def _head(self, id: int) -> Head:
        entry = self._entries[id - 1]
        return Head(entry.time_ms, entry.lsn, entry.count)

    def size_bytes(self) -> int:
        with self._mutex:
            return sum(len(entry.body) for entry in self._entries)

    def close(self) -> None:
        with self._mutex:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed")
