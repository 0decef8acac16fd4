"""The data file: its tables, its versions, how it is made and how it is recognised.

Laws:

* ``alpo.db`` appears by a rename, whole: with its tables and its hard row, synced. A crash before leaves only
  ``alpo.db.new``, in which no hard state was ever used.
* Whose file it is and whether this version may write it is settled on a read-only connection, before any other.
* A file of a newer schema is never written to; an older one is brought up in one transaction a version.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from alpo.core.entries import Entry

from .connections import connect_reader, translate
from .interface import DamagedStore, StoreError, WrongStore
from .rows import EMPTY_START, DamagedRow, Hard, start_to_json

DB_NAME = "alpo.db"
_NEW_NAME = DB_NAME + ".new"
_APPLICATION_ID = 0x414C504F  # "ALPO"
#: Measured at 100 B, 1 KiB and 4 KiB in groups of 100: larger pages write up to three times as much.
_PAGE_BYTES = 4096

#: `Entry`'s fields in its order, as every statement names them. In the table the body stands last, so that a head
#: is read without walking through it.
COLUMNS = ", ".join(f'"{name}"' for name in Entry._fields)

_HARD_COLUMNS = "server_id, incarnation, term, vote, guaranteed_id, fully_replicated_id, cluster, start"


def _version_1(db: sqlite3.Connection) -> None:
    """`log` a row an entry; `runs`; `hard` the one row of hard state; `sessions` and `applied` (R22)."""
    db.execute(
        'CREATE TABLE log ("id" INTEGER PRIMARY KEY, "term" INTEGER NOT NULL, "kind" INTEGER NOT NULL,'
        ' "time_ms" INTEGER NOT NULL, "client" TEXT NOT NULL, "serial" INTEGER NOT NULL, "epoch" INTEGER NOT NULL,'
        ' "lsn" INTEGER NOT NULL, "count" INTEGER NOT NULL, "digest" BLOB NOT NULL, "check" INTEGER NOT NULL,'
        ' "body" BLOB NOT NULL)'
    )
    db.execute(
        "CREATE TABLE runs (first_id INTEGER PRIMARY KEY, term INTEGER NOT NULL, checksum INTEGER NOT NULL)"
    )
    db.execute(
        "CREATE TABLE hard (only INTEGER PRIMARY KEY CHECK (only = 1), server_id INTEGER NOT NULL,"
        " incarnation BLOB NOT NULL, term INTEGER NOT NULL, vote INTEGER NOT NULL, guaranteed_id INTEGER NOT NULL,"
        " fully_replicated_id INTEGER NOT NULL, cluster BLOB NOT NULL, start TEXT NOT NULL, checksum INTEGER NOT NULL)"
    )
    db.execute("CREATE TABLE sessions (client TEXT PRIMARY KEY, state BLOB NOT NULL)")
    db.execute(
        "CREATE TABLE applied (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL,"
        " checksum INTEGER NOT NULL)"
    )


#: One function a schema version; never changed once released.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_version_1,)


def insert_hard(db: sqlite3.Connection, hard: Hard) -> None:
    """Write the hard row, with its checksum, over the one there."""
    db.execute(
        f"INSERT OR REPLACE INTO hard (only, {_HARD_COLUMNS}, checksum) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*hard, hard.checksum()),
    )


def read_hard(db: sqlite3.Connection, path: Path) -> Hard:
    """The hard row. Raises `DamagedStore` if it is missing or not what was written."""
    row = db.execute(f"SELECT {_HARD_COLUMNS}, checksum FROM hard WHERE only = 1").fetchone()
    if row is None:
        raise DamagedStore(f"{path}: the hard state is missing")
    hard = Hard(*row[:-1])
    try:
        if hard.checksum() != row[-1]:
            raise DamagedStore(f"{path}: the hard state does not match its checksum")
    except DamagedRow as error:
        raise DamagedStore(f"{path}: {error}") from error
    return hard


def exists(directory: Path) -> bool:
    """Is there a store? Raises `DamagedStore` for an emptied one.

    An empty file with no WAL beside it never was one: SQLite tools leave such behind when they open a name that
    does not exist.
    """
    path = directory / DB_NAME
    if not path.exists():
        return False
    if path.stat().st_size > 0:
        return True
    if wal_bytes(path) > 0:
        raise DamagedStore(f"{path}: the file is empty, but its WAL is not")
    return False


def wal_bytes(path: Path) -> int:
    """The size of the WAL file, 0 if there is none."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0


def create(directory: Path, server_id: int, incarnation: bytes) -> None:
    """Make ``alpo.db``, whole or not at all; the directory's lock must be held. Raises `StoreError`."""
    new = directory / _NEW_NAME
    try:
        for suffix in ("", "-journal", "-wal", "-shm"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        _fill(new, Hard(server_id, incarnation, 0, 0, 0, 0, b"", start_to_json(EMPTY_START)))
        _sync(new)
        for suffix in ("-wal", "-shm"):  # of an empty file that stood in its place
            (directory / (DB_NAME + suffix)).unlink(missing_ok=True)
        new.replace(directory / DB_NAME)
        _sync(directory)
        _sync(directory.absolute().parent)
    except sqlite3.Error as error:
        raise translate(error, new) from error
    except OSError as error:
        raise StoreError(f"{new}: {error.strerror}") from error


def _fill(path: Path, hard: Hard) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        for migration in MIGRATIONS:
            migration(db)
        db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        insert_hard(db, hard)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode=WAL")
    finally:
        db.close()


def check(directory: Path, server_id: int, cluster: bytes | None) -> None:
    """May this server use the file? Writes nothing; the directory's lock must be held.

    Raises `WrongStore` (no data file of ours, a newer schema, another server's, another cluster's) or `DamagedStore`.
    """
    path = directory / DB_NAME
    try:
        # Without a WAL the file alone is all there is, and is opened so that not even a lock file is made.
        db = connect_reader(path, immutable=wal_bytes(path) == 0)
        try:
            _check(db, path, server_id, cluster)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _check(db: sqlite3.Connection, path: Path, server_id: int, cluster: bytes | None) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise WrongStore(f"{path} is not an ALPO data file")
    if version > len(MIGRATIONS):
        raise WrongStore(f"{path} was written by a newer version (schema {version}; this one knows {len(MIGRATIONS)})")
    hard = read_hard(db, path)
    if hard.server_id != server_id:
        raise WrongStore(f"{path} belongs to server {hard.server_id}, not {server_id}")
    if cluster and hard.cluster and hard.cluster != cluster:
        raise WrongStore(f"{path} belongs to cluster {hard.cluster.hex()}, not {cluster.hex()}")


def migrate(db: sqlite3.Connection) -> None:
    """Bring an older file up to this version, one transaction a version."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    for number, migration in enumerate(MIGRATIONS[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        migration(db)
        db.execute(f"PRAGMA user_version={number}")
        db.execute("COMMIT")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
