"""Building blocks of the storage tests: logs of entries, writes, and a store that can be opened again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from alpo.core.disk import Base, SessionRow, TableSave, Write
from alpo.core.entries import Entry, Kind, join_payloads, seal, seal_appends
from alpo.storage.connections import connect_writer
from alpo.storage.interface import Store
from alpo.storage.memory import MemoryStore
from alpo.storage.schema import DB_NAME
from alpo.storage.sqlite import SqliteStore

INCARNATION = bytes(range(16))
SERVER = 3


class Bench:
    """A store under test. `reopen` is what a restart does: only what was committed is there afterwards."""

    store: Store
    reopen: Callable[[], Store]


class MemoryBench(Bench):
    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStore(SERVER, INCARNATION)

    def reopen(self) -> Store:
        self.store = self.store.crash()
        return self.store


class SqliteBench(Bench):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store: SqliteStore = self._open()

    @property
    def path(self) -> Path:
        return self.directory / DB_NAME

    def _open(self) -> SqliteStore:
        return SqliteStore.open(self.directory, SERVER, make_incarnation=lambda: INCARNATION)

    def reopen(self) -> SqliteStore:
        self.store.close()
        self.store = self._open()
        return self.store

    def tamper(self, sql: str, *parameters: Any) -> None:
        """Change the file behind the store's back."""
        with closing(connect_writer(self.path)) as db:
            assert db.execute(sql, parameters).rowcount > 0, "nothing was tampered with"


class LogBuilder:
    """Makes entries that follow on."""

    def __init__(self, first_id: int = 1, lsn: int = 1, time_ms: int = 1_700_000_000_000) -> None:
        self.id, self.lsn, self.time_ms = first_id, lsn, time_ms

    def data(self, term: int = 1, payloads: tuple[bytes, ...] | None = None, step_ms: int = 1) -> Entry:
        payloads = payloads if payloads is not None else (f"payload {self.id}".encode(),)
        entry = seal(
            self.id, term, int(Kind.DATA), self.time_ms, self.lsn, join_payloads(payloads), "~client", self.id, 0,
            len(payloads),
        )
        return self._next(entry, step_ms)

    def run(
        self, serial: int, *appends: tuple[bytes, ...], term: int = 1, client: str = "~client", epoch: int = 0,
        step_ms: int = 1,
    ) -> Entry:
        """An entry of several appends (R32), each the payloads of one; ``serial``: of the first."""
        bodies = [(len(payloads), join_payloads(payloads)) for payloads in appends]
        (entry,) = seal_appends(
            bodies, client, serial, epoch, self.id, term, self.time_ms, self.lsn, together=True
        )
        return self._next(entry, step_ms)

    def leader(self, term: int = 1, step_ms: int = 1) -> Entry:
        return self._next(seal(self.id, term, int(Kind.LEADER), self.time_ms, self.lsn, b"{}"), step_ms)

    def datas(self, count: int, term: int = 1, size: int | None = None) -> list[Entry]:
        payloads = None if size is None else (bytes(size),)
        return [self.data(term, payloads) for _ in range(count)]

    def _next(self, entry: Entry, step_ms: int) -> Entry:
        self.id += 1
        self.lsn += entry.count
        self.time_ms += step_ms
        return entry


_numbers = itertools.count(1)


def write(
    entries: list[Entry] | None = None, *, term: int | None = None, vote: int = 0, expunge_from: int | None = None,
    runs: list[tuple[int, int]] | None = None, guaranteed_id: int = 0, fully_replicated_id: int = 0, **fields: Any,
) -> Write:
    """A write; with entries and no ``runs``, those that begin if the log before was empty or of another term."""
    entries = entries or []
    if runs is None:
        terms = [-1, *[e.term for e in entries]]
        runs = [(e.term, e.id) for before, e in zip(terms, entries, strict=False) if before != e.term]
    if term is None:
        term = entries[-1].term if entries else 1
    return Write(
        next(_numbers), term, vote, expunge_from, entries, runs, guaranteed_id, fully_replicated_id,
        bodies_bytes=sum(len(entry.body) for entry in entries), **fields,
    )


def row(client: str, last_serial: int = 1, slots: int = 1) -> SessionRow:
    return SessionRow(
        client, 7, b"n" * 16, 0, last_serial, 9, 1_700_000_000_000,
        [(last_serial - i, 9 - i, 8 - i, 7, bytes([i % 256]) * 16) for i in reversed(range(slots))],
        birth=7,
    )


def table(applied_id: int, changed: list[SessionRow], ended: list[str] | None = None) -> TableSave:
    members = [[1, "127.0.0.1:7100", 0, "aa" * 16, 1, ["bb" * 16]]]
    return TableSave(applied_id, 5, changed, ended or [], members, 2, {"window": 1024})


def base_of(entry: Entry) -> Base:
    """The base of a log that was cleaned up to ``entry``."""
    return Base(entry.id, entry.term, entry.time_ms, entry.lsn + entry.count)


def cleaning(upto: Entry, entries: list[Entry] | None = None, **fields: Any) -> Write:
    """A write that cleans up to an entry that all servers hold, with the table that it needs."""
    fields = {
        "guaranteed_id": upto.id, "fully_replicated_id": upto.id, "table": table(upto.id, []), "runs": [],
        "term": upto.term, "base": base_of(upto), **fields,
    }
    return write(entries, **fields)


def unexpected(error: BaseException) -> None:
    """Raise the error: for writers that must not meet one."""
    raise error


def runs_of(entries: list[Entry]) -> list[tuple[int, int]]:
    """(term, first id) of every run among ``entries``."""
    return [(e.term, e.id) for i, e in enumerate(entries) if i == 0 or entries[i - 1].term != e.term]
