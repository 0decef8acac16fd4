"""SQLite connections with ALPO's settings, and SQLite's errors as `StoreError`.

Laws:

* A connection that writes uses WAL and ``synchronous=FULL``, verified after setting, and never checkpoints by itself.
* Deleted data is not overwritten. Some systems' SQLite does that by default: cleaning 4 KiB bodies then writes fifteen
  times as many pages.
* A connection that reads is opened read-only, and holds a read transaction only inside `ReadPool.snapshot`.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .interface import DamagedStore, StoreError, StoreFull

if TYPE_CHECKING:
    from sqlite_utils import Database

BUSY_S = 5.0
_IDLE_READERS_MAX = 8
_SYNCHRONOUS_FULL = 2
#: Enough for every length of INSERT (see `rows.ROWS_A_STATEMENT`), so that none is compiled twice.
_CACHED_STATEMENTS = 160


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The `StoreError` for an SQLite error: `StoreFull`, `DamagedStore` or a plain `StoreError`."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    text = f"{path}: {error}"
    # SHMSIZE: no space for the index of the WAL. The commit may already be in the WAL; the same one is tried again.
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(text)
    # Python's sqlite3 module, not SQLite, finds text that is not UTF-8, and gives no code.
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or (code is None and "decode" in str(error)):
        return DamagedStore(text)
    return StoreError(f"{text} ({getattr(error, 'sqlite_errorname', 'no code')})")


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open the connection that writes. Raises `StoreError` if WAL mode or FULL sync cannot be had, sqlite3.Error."""
    db = sqlite3.connect(
        path.absolute().as_uri() + "?mode=rw", uri=True, isolation_level=None, check_same_thread=False,
        timeout=BUSY_S, cached_statements=_CACHED_STATEMENTS,
    )
    try:
        _read_schema(db)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("PRAGMA secure_delete=OFF")
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
        if mode != "wal" or synchronous != _SYNCHRONOUS_FULL:
            raise StoreError(f"{path}: journal mode {mode}, synchronous {synchronous}; it must be wal and 2 (FULL)")
    except (sqlite3.Error, StoreError):
        db.close()
        raise
    return db


def connect_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a read-only connection. ``immutable``: no other process writes the file, so SQLite makes no lock and no
    file."""
    uri = path.absolute().as_uri() + ("?immutable=1" if immutable else "?mode=ro")
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        _read_schema(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def as_database(db: sqlite3.Connection) -> Database:
    """Wrap a connection for sqlite-utils, with its pragmas unchanged and no plugins run.

    Only where no append waits: the import takes 0.1 s and 13 MB, so a server does it only to migrate.
    """
    from sqlite_utils import Database

    return Database(db, recursive_triggers=False, execute_plugins=False)


def _read_schema(db: sqlite3.Connection) -> None:
    """Read the schema, so that damage in it raises sqlite3.Error here, even if SQLite's message is not valid text."""
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError(f"could not decode the schema: {error}") from error


class ReadPool:
    """Read-only connections for any thread: each reader has one of its own; up to 8 idle ones are kept open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection inside one read transaction. Raises `StoreError` and its subclasses for SQLite's errors."""
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        try:
            try:
                db = self._idle.pop()
            except IndexError:
                db = connect_reader(self._path)
            try:
                db.execute("BEGIN")
                yield db
            finally:
                self._give_back(db)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    def _give_back(self, db: sqlite3.Connection) -> None:
        if db.in_transaction:
            db.rollback()
        if self._closed or len(self._idle) >= _IDLE_READERS_MAX:
            db.close()
        else:
            self._idle.append(db)

    def close(self) -> None:
        """Close the idle connections now, the others when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
