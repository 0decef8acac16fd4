"""The data file: its tables, its versions, how it is made and how it is recognised.

Laws:

* ``alpo.db`` appears by a rename, whole: with its tables and its hard row, synced. A crash before leaves only
  ``alpo.db.new``, in which no hard state was ever used.
* Nothing of a directory is believed before `settle`: a process that was killed may have left it in memory alone. What
  was told of it would be gone after a power cut; and frames written behind a commit that nobody synced would make that
  look like one that was.
* Whose file it is and whether this version may write it is settled on a read-only connection, before any other.
* A file of a newer schema is never written to; an older one is brought up in one transaction a version.
* The version is SQLite's own number of it (`user_version`), so it is read without a table that could be damaged.
* sqlite-utils, which migrations are written with, is loaded where there is something to migrate, and by no other start.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import sqlite3
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from alpo.core.disk import NO_BASE, Base
from alpo.core.entries import Entry

from .connections import as_database, connect_reader, translate
from .endscan import check_end
from .interface import DamagedStore, StoreError, WrongStore
from .rows import (
    EMPTY_START,
    DamagedRow,
    Hard,
    base_checksum,
    session_columns,
    session_from_blob_4,
    session_to_blob,
    start_to_json,
)
from .tables import SCHEMA
from .walscan import check_wal

if TYPE_CHECKING:
    from sqlite_utils import Database

DB_NAME = "alpo.db"
_NEW_NAME = DB_NAME + ".new"
APPLICATION_ID = 0x414C504F  # "ALPO"
#: Of a backup, in the same schema: no server may start on it, by any version.
BACKUP_APPLICATION_ID = 0x414C5042  # "ALPB"
#: Measured at 100 B, 1 KiB and 4 KiB in groups of 100: larger pages write up to three times as much.
PAGE_BYTES = 4096

#: `Entry`'s fields in its order, as every statement names them. In the table the body stands last, so that a head
#: is read without walking through it.
COLUMNS = ", ".join(f'"{name}"' for name in Entry._fields)

#: What a system says of a directory that cannot be synced at all, or not by us; no sign of a disk that fails.
_CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS)

_SELECT_TABLES = "SELECT name, tbl_name, sql FROM sqlite_master"
_HARD_COLUMNS = "server_id, incarnation, term, vote, guaranteed_id, fully_replicated_id, cluster, start"


def _version_1(db: Database) -> None:
    """`log` a row an entry; `runs`; `hard` the one row of hard state; `sessions` and `applied` (R22)."""
    for name in ("log", "runs", "hard", "applied"):
        db.execute(SCHEMA[name])
    db.execute("CREATE TABLE sessions (client TEXT PRIMARY KEY, state BLOB NOT NULL)")


def _version_2(db: Database) -> None:
    """`base` the one row that stands for what was cleaned (R19); there from the start, so that its loss is seen."""
    db.execute(SCHEMA["base"])
    _insert_first_base(db)


def _version_3(db: Database) -> None:
    """`event_log` what happened to this server, oldest dropped (`events`); `events` the same to read."""
    db.execute(SCHEMA["event_log"])
    db.execute(SCHEMA["events"])


def _version_4(db: Database) -> None:
    """Views to be read with plain SQL. `sessions` becomes one: the table is `saved_sessions`, with columns for it."""
    db.execute(SCHEMA["saved_sessions"])
    names = db.table("saved_sessions").columns_dict
    rows = (dict(zip(names, _session_columns_4(**row), strict=True)) for row in db.table("sessions").rows)
    db.table("saved_sessions").insert_all(rows)
    db.table("sessions").drop()
    for name in ("payloads", "sessions", "elections"):
        db.execute(SCHEMA[name])


def _session_columns_4(client: str, state: bytes) -> tuple[str, int, int, int, int, bytes]:
    try:
        return (*session_columns(session_from_blob_4(client, state))[:-1], state)
    except DamagedRow:  # to be found, as ever, when the table is read
        return client, 0, 0, 0, 0, state


def _version_5(db: Database) -> None:
    """A session's state tells its birth too (R22): of those from before, the oldest epoch that they tell of."""
    saved = db.table("saved_sessions")
    saved.insert_all([{**row, "state": _state_5(row["client"], row["state"])} for row in saved.rows], replace=True)


def _state_5(client: str, state: bytes) -> bytes:
    try:
        return session_to_blob(session_from_blob_4(client, state))
    except DamagedRow:  # as above
        return state


#: One function a schema version; what it makes never changes once released. All of them come to `SCHEMA`.
MIGRATIONS: tuple[Callable[[Database], None], ...] = (
    _version_1, _version_2, _version_3, _version_4, _version_5,
)


def _insert_first_base(db: sqlite3.Connection | Database) -> None:
    db.execute("INSERT INTO base VALUES (1, ?, ?, ?, ?, ?)", (*NO_BASE, base_checksum(NO_BASE)))


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


def read_base(db: sqlite3.Connection, path: Path) -> Base:
    """The base. Raises `DamagedStore` if it is missing or not what was written."""
    row = db.execute("SELECT id, term, time_ms, next_lsn, checksum FROM base WHERE only = 1").fetchone()
    if row is None:
        raise DamagedStore(f"{path}: the base is missing")
    base = Base(*row[:-1])
    try:
        if base_checksum(base) != row[-1]:
            raise DamagedStore(f"{path}: the base does not match its checksum")
    except DamagedRow as error:
        raise DamagedStore(f"{path}: {error}") from error
    return base


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
        sync(new)
        for suffix in ("-wal", "-shm"):  # of another store that was here, or of an empty file
            (directory / (DB_NAME + suffix)).unlink(missing_ok=True)
        sync(directory)  # they would be taken for the new file's
        new.replace(directory / DB_NAME)
        sync(directory)
    except sqlite3.Error as error:
        raise translate(error, new) from error
    except OSError as error:
        raise StoreError(f"{new}: {error.strerror}") from error


def _fill(path: Path, hard: Hard) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        for sql in SCHEMA.values():
            db.execute(sql)
        db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        _insert_first_base(db)
        insert_hard(db, hard)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode=WAL")
    finally:
        db.close()


def check(directory: Path, server_id: int, cluster: bytes | None) -> None:
    """May this server use the file? Writes nothing; the directory's lock must be held.

    Raises `WrongStore` (no data file of ours, a newer schema, another server's, another cluster's), `LostCommits` or
    `DamagedStore`.
    """
    path = directory / DB_NAME
    try:
        # Without a WAL the file alone is all there is, and is opened so that not even a lock file is made.
        immutable = wal_bytes(path) == 0
        db = connect_reader(path, immutable=immutable)
        try:
            db.execute("BEGIN")
            check_kind(db, path)
            if not immutable:
                check_wal(path, PAGE_BYTES)
            _check_tables(db, path)
            _check(db, path, server_id, cluster)
            check_end(db, path, PAGE_BYTES, with_wal=not immutable)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error


def check_kind(db: sqlite3.Connection, path: Path, *, backup: bool = False) -> None:
    """Is it a data file, or if so wanted a ``backup``, of a schema that this version knows? Raises `WrongStore`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application == BACKUP_APPLICATION_ID and not backup:
        raise WrongStore(f"{path} is a backup: `alpo restore` makes a data directory of it")
    if application not in (APPLICATION_ID, BACKUP_APPLICATION_ID):
        raise WrongStore(f"{path} is not an ALPO data file")
    if application == APPLICATION_ID and backup:
        raise WrongStore(f"{path} is no backup but a server's data file")
    if version > len(MIGRATIONS):
        raise WrongStore(f"{path} was written by a newer version (schema {version}; this one knows {len(MIGRATIONS)})")


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    """Of the newest version, all that is wanted is there as it was made. Raises `DamagedStore`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == len(MIGRATIONS) and not _tables() <= {*db.execute(_SELECT_TABLES)}:
        raise DamagedStore(f"{path}: the schema is not what was written")


@functools.cache
def _tables() -> set[tuple[str, str, str | None]]:
    db = sqlite3.connect(":memory:")
    try:
        for sql in SCHEMA.values():
            db.execute(sql)
        return {*db.execute(_SELECT_TABLES)}
    finally:
        db.close()


def _check(db: sqlite3.Connection, path: Path, server_id: int, cluster: bytes | None) -> None:
    hard = read_hard(db, path)
    if hard.server_id != server_id:
        raise WrongStore(f"{path} belongs to server {hard.server_id}, not {server_id}")
    if cluster and hard.cluster and hard.cluster != cluster:
        raise WrongStore(f"{path} belongs to cluster {hard.cluster.hex()}, not {cluster.hex()}")


def migrate(db: sqlite3.Connection) -> None:
    """Bring an older file up to this version, one transaction a version."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version < len(MIGRATIONS):
        run_migrations(db, version, len(MIGRATIONS))


def run_migrations(db: sqlite3.Connection, version: int, wanted: int) -> None:
    """Make schema ``wanted`` of ``version`` (0: of nothing): its tables and views, and `PRAGMA user_version`."""
    database = as_database(db)
    for number, migration in enumerate(MIGRATIONS[version:wanted], version + 1):
        with database.atomic():
            migration(database)
            db.execute(f"PRAGMA user_version={number}")


def make_directory(directory: Path) -> list[Path]:
    """Make the data directory (0700), and what is missing of those above it; in which directories that was, for
    `settle`. Raises `StoreError`."""
    try:
        made = list(itertools.takewhile(lambda path: not path.exists(), (directory, *directory.parents)))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreError(f"{directory} is a file: the data directory of a server is wanted") from error
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
    return [path.absolute().parent for path in made]


def settle(directory: Path, made_in: Collection[Path] = ()) -> None:
    """See to it that what is read of a store is on disk: the WAL, the data file, the directory, those that it is in.
    The directory's lock must be held. ``made_in``: as from `make_directory`. Raises `StoreError`."""
    path = directory / DB_NAME
    try:
        for file in (path.with_name(path.name + "-wal"), path):
            with suppress(FileNotFoundError):
                sync(file, forget=True)
        sync(directory)
        _sync_above(directory.absolute(), made_in)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: cannot be synced: {error.strerror}") from error


def _sync_above(directory: Path, made_in: Collection[Path]) -> None:
    """They may have been made with it, by a process that was killed. Others need not be such as can be synced; the one
    that it is in must be, unless nothing can be made there."""
    device = directory.stat().st_dev
    for above in directory.parents:
        try:
            if above.stat().st_dev != device:
                break
            sync(above)
        except OSError as error:
            needed = above in made_in or (above == directory.parent and os.access(above, os.W_OK | os.X_OK))
            if needed or error.errno not in _CANNOT_SYNC:
                raise


def sync(path: Path, *, forget: bool = False) -> None:
    """fsync of a file or directory; ``forget``: what is read from now on comes from the disk, as far as the system
    allows. Raises OSError, with the path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if forget and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
