"""One server's store in SQLite: ``alpo.db`` in WAL mode, guarded by ``alpo.lock``.

Laws, beyond those of `interface`:

* One commit is one transaction with ``synchronous=FULL``: one fsync, of the WAL.
* After any error but a full disk nothing more is committed: after a failed fsync the kernel may have dropped the data,
  so a later success would prove nothing.
* Every row read is verified, and ids must be consecutive, before anything is returned.
* A read transaction lasts at most `READ_S_MAX`, so checkpoints make progress and the WAL stays bounded.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from alpo.core.disk import Boot, Snapshot, Write
from alpo.core.entries import DamagedEntry, Entry, verify
from alpo.core.members import INCARNATION_BYTES

from . import schema
from .backup import copy_state
from .boot import DirectoryLock, Place, read_boot, read_snapshot
from .connections import ReadPool, connect_writer, translate
from .events import EventKeeper, EventRow, KeptEvent, read_events
from .interface import (
    DamagedStore,
    Rest,
    Scrubbed,
    StateCopy,
    StoreError,
    StoreFull,
    Volume,
)
from .rows import ROWS_A_STATEMENT, adds_only, apply, insert, merge
from .scrub import read_alone, scrub
from .search import Head, Places, first_id_where, holds_lsn, is_since, read_head
from .tables import SELECT, Columns, joined, sound_columns, sound_heads
from .vacuum import IDLE_GAP_S, SpaceKeeper, count_pages
from .wal import WalKeeper

READ_ROWS_MAX = 20_000
READ_S_MAX = 0.1
_READ_ROWS_A_LOOK = 256
_REPLAY_BYTES = 4 << 20
#: Seconds until the WAL is tried again after a reader kept it from being copied back.
_WAL_RETRY_S = 1.0

_UPDATE_HARD = (
    "UPDATE hard SET term = ?, vote = ?, guaranteed_id = ?, fully_replicated_id = ?, cluster = ?, start = ?,"
    " checksum = ? WHERE only = 1"
)
_new_entry = functools.partial(tuple.__new__, Entry)
_COUNT = itemgetter(Entry._fields.index("count"))
P = ParamSpec("P")
T = TypeVar("T")


def _new_incarnation() -> bytes:
    return secrets.token_bytes(INCARNATION_BYTES)


def _telling(read: Callable[Concatenate[SqliteStore, P], T]) -> Callable[Concatenate[SqliteStore, P], T]:
    """Have a method of the store tell `SqliteStore.on_damage` of the damage that it raises."""

    @functools.wraps(read)
    def tell(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self, *args, **kwargs)
        except DamagedStore as damage:
            self.on_damage(damage)
            raise

    return tell


class SqliteStore:
    """Implementation of `interface.Store` in a directory. `commit`, `checkpoint` and `close` belong to whoever
    has the writer's turn."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        """Open the file, for `open` only: the lock is held and the file was checked."""
        self._path = path
        self._lock = lock
        self._broken: str | None = None
        try:
            self._db = connect_writer(path)
            try:
                schema.migrate(self._db)
                self._hard = schema.read_hard(self._db, path)
                self._base = schema.read_base(self._db, path)
                (last_id,) = self._db.execute("SELECT max(id) FROM log").fetchone()
                (self._sessions,) = self._db.execute("SELECT count(*) FROM saved_sessions").fetchone()
                self._space = SpaceKeeper(self._db)
            except (sqlite3.Error, StoreError):
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise translate(error, path) from error
        self._last_id: int = last_id or self._base.id
        self._unmarked = 0  # payloads written since the hard row was
        self._cursor = self._db.cursor()
        self._wal = WalKeeper(self._db, path)
        self._events = EventKeeper()
        self._pool = ReadPool(path)
        self._places = Places()
        self._place = Place(path)
        self.on_damage: Callable[[DamagedStore], None] = lambda damage: None

    @staticmethod
    def open(
        directory: Path, server_id: int, *, cluster: bytes | None = None,
        make_incarnation: Callable[[], bytes] = _new_incarnation,
    ) -> SqliteStore:
        """Open the store of server ``server_id`` in ``directory``; store and directory are made if missing (0700).

        ``cluster``: the cluster that the store must belong to, if it belongs to any. ``make_incarnation``: returns 16
        bytes for a new store. Raises `DirectoryInUse`, `WrongStore` (nothing was written), `DamagedStore`,
        `StoreError`.
        """
        made_in = schema.make_directory(directory)
        with ExitStack() as undo:
            lock = DirectoryLock.take(directory)
            undo.callback(lock.release)
            schema.settle(directory, made_in)
            if not schema.exists(directory):
                schema.create(directory, server_id, make_incarnation())
            schema.check(directory, server_id, cluster)
            store = SqliteStore(directory / schema.DB_NAME, lock)
            undo.pop_all()
        return store

    def grow_wal(self) -> None:
        """Have the first commits write to blocks that exist: on a growing file they take twice as long. Call before
        `boot`."""
        self._wal.grow()

    def boot(self) -> Boot:
        with self._pool.snapshot() as db:
            return read_boot(db, self._path)

    # Writing

    def commit(self, writes: Sequence[Write]) -> None:
        if self._broken is not None:
            raise StoreError(f"{self._path}: out of use since an error: {self._broken}")
        if len(writes) == 1 and self._add(writes[0]):
            return
        merged = merge(writes, self._base.id, self._last_id)
        db, rows = self._db, merged.entries
        try:
            payloads = self._unmarked + sum(map(_COUNT, rows))
            saves = merged.tables or merged.base is not None or merged.install is not None
            hard = self._hard
            if saves or merged.start is not None or hard.is_due(merged.last, payloads):
                hard = hard.after(merged.last, merged.start)
            sessions = self._sessions
            plain = hard is self._hard and merged.only_rows and not self._events.waiting
            if plain and 0 < len(rows) <= ROWS_A_STATEMENT:
                insert(self._cursor, rows)  # a single statement is its own transaction: one execute instead of three
            else:
                db.execute("BEGIN IMMEDIATE")
                sessions = apply(db, self._cursor, merged, sessions)
                self._events.write(db)
                if hard is not self._hard:
                    db.execute(_UPDATE_HARD, (*hard[2:], hard.checksum()))
                db.execute("COMMIT")
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise self._failed(error) from error
        self._last_id = merged.last_id
        self._sessions = sessions
        self._unmarked = payloads if hard is self._hard else 0
        self._hard = hard
        self._base = merged.base or merged.install or self._base
        self._events.written()
        mended = merged.mended
        self._wal.grew(
            len(rows) + len(mended), merged.bodies_bytes + sum(len(entry.body) for entry in mended),
            merged.expunge_from is not None or bool(merged.tables or mended),
        )
        if merged.base is not None or merged.expunge_from is not None or merged.install is not None:
            self._space.deleted()

    def _add(self, write: Write) -> bool:
        """Commit a write that only adds entries, few enough for one statement; False if there is more to do. The
        shortest way, for what comes most often, and alone."""
        entries = write.entries
        if not 0 < len(entries) <= ROWS_A_STATEMENT or not adds_only(write) or self._events.waiting:
            return False
        payloads = self._unmarked + sum(map(_COUNT, entries))
        last_id = self._last_id + len(entries)
        if entries[0].id != self._last_id + 1 or entries[-1].id != last_id or self._hard.is_due(write, payloads):
            return False
        try:
            insert(self._cursor, entries)
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise self._failed(error) from error
        self._last_id, self._unmarked = last_id, payloads
        self._wal.grew(len(entries), write.bodies_bytes, other=False)
        return True

    def _failed(self, error: sqlite3.Error | OverflowError | ValueError) -> StoreError:
        """Roll back, and return the error as a `StoreError`; after any but a full disk the store is out of use."""
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

    def note(self, events: Iterable[EventRow]) -> None:
        self._events.note(events)

    def _write_events(self) -> None:
        """Write waiting events in a transaction of their own; if the disk is full they keep waiting. Raises
        `StoreError`."""
        if self._events.waiting:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._wal.rewrote(self._events.write(self._db))
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                meaning = self._failed(error)
                if not isinstance(meaning, StoreFull):
                    raise meaning from error
            else:
                self._events.written()

    def checkpoint(self, rest: Rest) -> float | None:
        try:
            if rest is Rest.IDLE:
                self._write_events()
            if freed := self._space.look():
                self._wal.rewrote(freed)
            if not self._wal.is_full and (given_back := self._space.step(rest)):
                self._wal.rewrote(given_back)
            # Between two steps the checkpoint may wait: it costs two fsyncs.
            goes_on = self._space.giving_back and not self._wal.is_full
            tidy = self._wal.checkpoint(Rest.LULL if rest is Rest.IDLE and goes_on else rest)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if self._space.giving_back and not self._wal.is_full:
            return IDLE_GAP_S
        return None if tidy else _WAL_RETRY_S

    def give_back(self) -> None:
        self._space.ask()

    def giving_back(self) -> bool:
        # Pages leave the file only with a checkpoint; until then it is longer than its pages.
        if self._space.is_due:
            return True
        with self._pool.snapshot() as db:
            return self._file_bytes() > count_pages(db).all * schema.PAGE_BYTES

    # Reading

    @_telling
    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        last_id = min(last_id, first_id + READ_ROWS_MAX - 1)
        stop_s = time.monotonic() + READ_S_MAX
        entries: list[Entry] = []
        size = 0
        with self._pool.snapshot() as db:
            for row in self._rows(db, first_id, last_id):
                entry: Entry = _new_entry(row)
                if entry[0] != first_id + len(entries):
                    self._check_cleaned(db, first_id + len(entries))
                    return []
                if type(entry[10]) is not bytes:
                    raise DamagedStore(f"{self._path}: the body of entry {entry[0]} is no body", entry[0])
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
                raise DamagedStore(f"{self._path}: entry {id}: {error}", id) from error
        return entries

    @_telling
    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Columns:
        stop_s = time.monotonic() + READ_S_MAX
        pages: list[Columns] = []
        next_id = first_id
        with self._pool.snapshot() as db:
            while next_id <= last_id and (bytes_max > 0 or not pages) and time.monotonic() < stop_s:
                page = sound_columns(db, next_id, last_id, max(bytes_max, 1))
                bytes_max -= sum(map(len, page.bodies))
                if not page.ids or (pages and bytes_max < 0):
                    break
                pages.append(page)
                next_id = page.ids[-1] + 1
        if not pages:
            return Columns.of(self.read_entries(first_id, last_id, bytes_max))
        self._places.add(pages[-1].lsns[-1] + pages[-1].counts[-1], next_id)
        return joined(pages)

    @_telling
    def read_heads(self, first_id: int, last_id: int) -> Columns:
        with self._pool.snapshot() as db:
            heads = sound_heads(db, first_id, last_id)
            first, last = self._extent(db)
            if not first <= first_id <= last or (heads.ids and heads.ids[-1] == min(last_id, last)):
                return heads
            for id in range(first_id, min(last_id, last) + 1):
                read_head(db, self._path, id)  # raises an error that names the entry
        raise DamagedStore(f"{self._path}: entries from {first_id} on cannot be read", first_id)

    def _rows(self, db: sqlite3.Connection, first_id: int, last_id: int) -> Iterator[tuple[Any, ...]]:
        """Yield rows ``first_id`` … ``last_id``. Damage that SQLite finds raises `DamagedStore` with the id."""
        id = first_id
        try:
            for row in db.execute(SELECT, (first_id, last_id)):
                yield row
                id += 1
        except sqlite3.Error as error:
            meaning = translate(error, self._path)
            if not isinstance(meaning, DamagedStore):
                raise
            row = read_alone(db, id)
            if row is not None:
                yield row
                id += 1
            if row is None or id <= last_id:
                raise DamagedStore(f"{meaning} (at entry {id})", id) from error

    def _check_end(self, db: sqlite3.Connection, next_id: int, last_id: int) -> None:
        """Raise `DamagedStore` unless the log ends, or was cleaned, at ``next_id``, where a read to ``last_id`` found
        no row."""
        if next_id <= last_id:
            (end,) = db.execute("SELECT max(id) FROM log").fetchone()
            if (end or 0) >= next_id:
                self._check_cleaned(db, next_id)

    def _check_cleaned(self, db: sqlite3.Connection, id: int) -> None:
        """Raise `DamagedStore` unless entry ``id``, which has no row, was cleaned."""
        if id > schema.read_base(db, self._path).id:
            raise DamagedStore(f"{self._path}: entry {id} is missing", id)

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        with self._pool.snapshot() as db:
            return scrub(db, self._path, first_id, bytes_max)

    @_telling
    def read_snapshot(self) -> Snapshot | None:
        with self._pool.snapshot() as db:
            return read_snapshot(db, self._path)

    def replay(self, first_id: int) -> Iterator[Entry]:
        with self._pool.snapshot() as db:
            first_id = max(first_id, schema.read_base(db, self._path).id + 1)
        while entries := self.read_entries(first_id, first_id + READ_ROWS_MAX - 1, _REPLAY_BYTES):
            yield from entries
            first_id = entries[-1].id + 1

    @_telling
    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        with self._pool.snapshot() as db:
            first, last = self._extent(db)
            return read_head(db, self._path, id) if first <= id <= last else None

    @_telling
    def find_lsn(self, lsn: int, last_id: int) -> int:
        guess_id = self._places.id_of(lsn)
        found = self._find(holds_lsn(lsn), last_id, guess_id)
        if found != guess_id:
            self._places.add(lsn, found)
        return found

    @_telling
    def find_time(self, time_ms: int, last_id: int) -> int:
        return self._find(is_since(time_ms), last_id)

    def _find(self, holds: Callable[[Head], bool], last_id: int, guess_id: int = 0) -> int:
        with self._pool.snapshot() as db:
            first, last = self._extent(db)
            high = min(last, last_id)
            found = first_id_where(lambda id: read_head(db, self._path, id), first, high, holds, guess_id)
        return found if found <= high else last_id + 1

    def _extent(self, db: sqlite3.Connection) -> tuple[int, int]:
        """First and last id of the log; the last is one less than the first if it is empty."""
        base_id = schema.read_base(db, self._path).id
        (last,) = db.execute("SELECT max(id) FROM log").fetchone()
        return base_id + 1, last or base_id

    @_telling
    def read_events(self, before: int, count: int) -> list[KeptEvent]:
        with self._pool.snapshot() as db:
            return read_events(db, before, count)

    def check_in_place(self) -> None:
        self._place.check()

    def volume(self) -> Volume:
        try:
            usage = shutil.disk_usage(self._path.parent)
        except OSError as error:
            raise StoreError(f"{self._path.parent}: {error.strerror}") from error
        return Volume(usage.total, usage.free)

    def size_bytes(self) -> int:
        return self._file_bytes() + self.wal_bytes()

    def wal_bytes(self) -> int:
        return schema.wal_bytes(self._path)

    def _file_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error

    def live_bytes(self) -> int:
        with self._pool.snapshot() as db:
            pages = count_pages(db)
        return (pages.all - pages.free) * schema.PAGE_BYTES

    def free_bytes(self) -> int:
        with self._pool.snapshot() as db:
            return count_pages(db).free * schema.PAGE_BYTES

    @_telling
    def copy_state(self, upto_id: int) -> StateCopy:
        with self._pool.snapshot() as db:
            return copy_state(db, self._path, upto_id)

    def close(self) -> None:
        """Close the file and release the directory. Uncommitted data was never promised; waiting events are written if
        possible."""
        self._pool.close()
        if self._broken is None:
            with suppress(StoreError):
                self._write_events()
        self._db.close()
        self._lock.release()
