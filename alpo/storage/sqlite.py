"""One server's store in SQLite: ``alpo.db`` in WAL mode, behind ``alpo.lock``.

Laws, beyond those of `interface`:

* One commit is ``BEGIN IMMEDIATE`` … ``COMMIT`` with ``synchronous=FULL``: one fsync, of the WAL.
* After an error that is not a full disk nothing more is committed: a kernel that failed an fsync may have dropped
  what it should have written, so a later success would vouch for nothing.
* What is read is checked wholly, and ids without gaps, before anyone sees it.
* A reader holds its snapshot for `READ_S_MAX` at most, so checkpoints get through and the WAL stays bounded.
"""

from __future__ import annotations

import functools
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from alpo.core.entries import DamagedEntry, Entry, verify, verify_header
from alpo.core.members import INCARNATION_BYTES
from alpo.core.ready import TableSave, Write

from . import schema
from .boot import read_boot
from .connections import ReadPool, connect_writer, translate
from .interface import Boot, DamagedStore, Rest, StoreError, StoreFull
from .lock import DirectoryLock
from .merge import merge
from .rows import applied_to_json, run_checksum, session_to_blob, text_checksum
from .search import Head, first_id_where, holds_lsn, is_since
from .wal import WalKeeper

#: Rows an INSERT. Every execute hands the GIL over, and beside a busy event loop each hand-over may cost a switch
#: interval. In groups of 1,000, beside a thread that never pauses, `executemany` (a hand-over a row) did 1,000 rows/s,
#: chunks of 64 or 128 did 8,000 to 62,000; beside one with socket calls 62,000 against 136,000 to 252,000. 64 and 128
#: differ by less than the noise. A statement for every length up to this stays compiled (13 MiB if all are used), so
#: that a small group is one execute.
_ROWS_A_STATEMENT = 128

READ_ROWS_MAX = 20_000
READ_S_MAX = 0.1
_READ_ROWS_A_LOOK = 256
_REPLAY_BYTES = 4 << 20

_FIELDS = len(Entry._fields)
_SELECT = f"SELECT {schema.COLUMNS} FROM log WHERE id BETWEEN ? AND ? ORDER BY id"
#: An entry without its body, which is not even looked for.
_SELECT_HEAD = "SELECT {} FROM log WHERE id = ?".format(schema.COLUMNS.replace('"body"', "x''"))
_UPDATE_HARD = (
    "UPDATE hard SET term = ?, vote = ?, guaranteed_id = ?, fully_replicated_id = ?, cluster = ?, start = ?,"
    " checksum = ? WHERE only = 1"
)
_flatten = chain.from_iterable
_new_entry = functools.partial(tuple.__new__, Entry)


@functools.cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _FIELDS) + ")"
    return f"INSERT INTO log ({schema.COLUMNS}) VALUES " + ", ".join([row] * rows)


def _new_incarnation() -> bytes:
    return secrets.token_bytes(INCARNATION_BYTES)


class SqliteStore:
    """`interface.Store` on a directory. `commit`, `checkpoint` and `close` belong to the writer thread."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        """For `open`: the lock is held and the file has been found to be ours."""
        self._path = path
        self._lock = lock
        self._broken: str | None = None
        try:
            self._db = connect_writer(path)
            try:
                schema.migrate(self._db)
                self._hard = schema.read_hard(self._db, path)
                (last_id,) = self._db.execute("SELECT max(id) FROM log").fetchone()
                (self._sessions,) = self._db.execute("SELECT count(*) FROM sessions").fetchone()
            except (sqlite3.Error, StoreError):
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise translate(error, path) from error
        self._last_id: int = last_id or 0
        self._wal = WalKeeper(self._db, path)
        self._pool = ReadPool(path)

    @staticmethod
    def open(
        directory: Path, server_id: int, *, cluster: bytes | None = None,
        make_incarnation: Callable[[], bytes] = _new_incarnation,
    ) -> SqliteStore:
        """Open the store of server ``server_id`` in ``directory``; either is made if it is missing (0700).

        ``cluster``: the cluster that it must belong to if it belongs to one. ``make_incarnation``: 16 bytes, for
        a new store. Raises `DirectoryInUse`, `WrongStore` (nothing was written), `DamagedStore`, `StoreError`.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{directory}: {error.strerror}") from error
        with ExitStack() as undo:
            lock = DirectoryLock.take(directory)
            undo.callback(lock.release)
            if not schema.exists(directory):
                schema.create(directory, server_id, make_incarnation())
            schema.check(directory, server_id, cluster)
            store = SqliteStore(directory / schema.DB_NAME, lock)
            undo.pop_all()
        return store

    def boot(self) -> Boot:
        with self._pool.snapshot() as db:
            return read_boot(db, self._path)

    # Writing

    def commit(self, writes: Sequence[Write]) -> None:
        if self._broken is not None:
            raise StoreError(f"{self._path}: out of use since an error: {self._broken}")
        merged = merge(writes, self._last_id)
        db = self._db
        try:
            hard = self._hard.after(merged.last, merged.start)
            if not (merged.tables or self._hard.is_due(hard)):
                hard = self._hard
            db.execute("BEGIN IMMEDIATE")
            if merged.expunge_from is not None:
                db.execute("DELETE FROM log WHERE id >= ?", (merged.expunge_from,))
                db.execute("DELETE FROM runs WHERE first_id >= ?", (merged.expunge_from,))
            rows = merged.entries
            for at in range(0, len(rows), _ROWS_A_STATEMENT):
                chunk = rows[at : at + _ROWS_A_STATEMENT]
                db.execute(_insert(len(chunk)), tuple(_flatten(chunk)))
            for term, first_id in merged.runs:
                db.execute("INSERT INTO runs VALUES (?, ?, ?)", (first_id, term, run_checksum(term, first_id)))
            sessions = self._sessions
            for table in merged.tables:
                sessions = self._save_table(table, sessions)
            if hard is not self._hard:
                db.execute(_UPDATE_HARD, (*hard[2:], hard.checksum()))
            db.execute("COMMIT")
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise self._failed(error) from error
        self._last_id = merged.last_id
        self._sessions = sessions
        self._hard = hard
        self._wal.grew(len(rows), merged.bodies_bytes, merged.expunge_from is not None or bool(merged.tables))

    def _save_table(self, table: TableSave, sessions: int) -> int:
        """Bring the table, of ``sessions`` rows, up to date; how many it has then."""
        db = self._db
        gone = [(row.client,) for row in table.changed] + [(client,) for client in table.ended]
        if gone:
            sessions -= db.executemany("DELETE FROM sessions WHERE client = ?", gone).rowcount
        if table.changed:
            rows = [(row.client, session_to_blob(row)) for row in table.changed]
            db.executemany("INSERT INTO sessions VALUES (?, ?)", rows)
            sessions += len(rows)
        state = applied_to_json(table, sessions)
        db.execute("INSERT OR REPLACE INTO applied VALUES (1, ?, ?)", (state, text_checksum(state)))
        return sessions

    def _failed(self, error: sqlite3.Error | OverflowError | ValueError) -> StoreError:
        """Undo the transaction; what the error means for the store."""
        if isinstance(error, sqlite3.Error):
            meaning = translate(error, self._path)
        else:
            meaning = StoreError(f"{self._path}: a value that cannot be stored: {error}")
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as second:
            meaning = translate(second, self._path)
        if not isinstance(meaning, StoreFull):
            self._broken = str(meaning)
        return meaning

    def checkpoint(self, rest: Rest) -> bool:
        try:
            return self._wal.checkpoint(rest)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    # Reading

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        last_id = min(last_id, first_id + READ_ROWS_MAX - 1)
        stop_s = time.monotonic() + READ_S_MAX
        entries: list[Entry] = []
        size = 0
        with self._pool.snapshot() as db:
            for row in self._rows(db, first_id, last_id):
                entry: Entry = _new_entry(row)
                if entry[0] != first_id + len(entries):
                    raise DamagedStore(f"{self._path}: entry {first_id + len(entries)} is missing")
                if type(entry[10]) is not bytes:
                    raise DamagedStore(f"{self._path}: the body of entry {entry.id} is no body")
                size += len(entry[10])
                if entries and (
                    size > bytes_max or (len(entries) % _READ_ROWS_A_LOOK == 0 and time.monotonic() > stop_s)
                ):
                    break
                entries.append(entry)
            else:
                self._check_end(db, first_id + len(entries), last_id)
        for id, entry in enumerate(entries, first_id):
            try:
                verify(entry)
            except DamagedEntry as error:
                raise DamagedStore(f"{self._path}: entry {id}: {error}") from error
        return entries

    def _rows(self, db: sqlite3.Connection, first_id: int, last_id: int) -> Iterator[tuple[Any, ...]]:
        """Rows ``first_id`` … ``last_id``; where SQLite itself finds damage, the error names the id."""
        id = first_id
        try:
            for row in db.execute(_SELECT, (first_id, last_id)):
                yield row
                id += 1
        except sqlite3.Error as error:
            meaning = translate(error, self._path)
            if isinstance(meaning, DamagedStore):
                raise DamagedStore(f"{meaning} (at entry {id})") from error
            raise

    def _check_end(self, db: sqlite3.Connection, next_id: int, last_id: int) -> None:
        """No row from ``next_id`` on was found up to ``last_id``: right only if the log ends there."""
        if next_id <= last_id:
            (end,) = db.execute("SELECT max(id) FROM log").fetchone()
            if (end or 0) >= next_id:
                raise DamagedStore(f"{self._path}: entry {next_id} is missing")

    def replay(self, first_id: int) -> Iterator[Entry]:
        while entries := self.read_entries(first_id, first_id + READ_ROWS_MAX - 1, _REPLAY_BYTES):
            yield from entries
            first_id = entries[-1].id + 1

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        with self._pool.snapshot() as db:
            first, last = self._extent(db)
            return self._head(db, id) if first <= id <= last else None

    def find_lsn(self, lsn: int, last_id: int) -> int:
        return self._find(holds_lsn(lsn), last_id)

    def find_time(self, time_ms: int, last_id: int) -> int:
        return self._find(is_since(time_ms), last_id)

    def _find(self, holds: Callable[[Head], bool], last_id: int) -> int:
        with self._pool.snapshot() as db:
            first, last = self._extent(db)
            high = min(last, last_id)
            found = first_id_where(lambda id: self._head(db, id), first, high, holds)
        return found if found <= high else last_id + 1

    @staticmethod
    def _extent(db: sqlite3.Connection) -> tuple[int, int]:
        """First and last id; 1, 0 of an empty log."""
        first, last = db.execute("SELECT (SELECT min(id) FROM log), (SELECT max(id) FROM log)").fetchone()
        return first or 1, last or 0

    def _head(self, db: sqlite3.Connection, id: int) -> Head:
        row = db.execute(_SELECT_HEAD, (id,)).fetchone()
        if row is None:
            raise DamagedStore(f"{self._path}: entry {id} is missing")
        entry: Entry = _new_entry(row)
        try:
            verify_header(entry)
        except DamagedEntry as error:
            raise DamagedStore(f"{self._path}: entry {id}: {error}") from error
        return Head(entry.time_ms, entry.lsn, entry.count)

    def size_bytes(self) -> int:
        return self._path.stat().st_size + schema.wal_bytes(self._path)

    def close(self) -> None:
        """Close the file and give the directory back. Whatever is not committed was never promised."""
        self._pool.close()
        self._db.close()
        self._lock.release()
