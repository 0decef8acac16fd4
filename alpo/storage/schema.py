"""The data file's tables and versions: how it is made, recognised and migrated.

Laws:

* ``alpo.db`` appears by a rename, whole: with its tables and its hard row, synced. A crash before leaves only
  ``alpo.db.new``, in which no hard state was ever used.
* Nothing read from a directory is trusted before `settle`: a killed process may have left it in the page cache only.
  Whatever was reported from it would be gone after a power cut; and WAL frames written after a commit that nobody
  synced would make that commit look synced.
* The owner of the file and its schema version are checked on a read-only connection, before any other is opened.
* A file of a newer schema is never written to; an older one is migrated, one transaction a version, or refused.
* The version is SQLite's own `user_version`, so it is read without a table that could be damaged.
* sqlite-utils, which migrations are written with, is imported only if there is something to migrate.
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

from .connections import as_database, connect_reader, translate
from .filescan import check_end, check_wal
from .interface import DamagedStore, StoreError, WrongStore
from .rows import (
    EMPTY_START,
    DamagedRow,
    Hard,
    base_checksum,
    start_to_json,
)
from .tables import SCHEMA

if TYPE_CHECKING:
    from sqlite_utils import Database

DB_NAME = "alpo.db"
#: Folder in a data directory with the stores of logs besides the first, by their numbers.
LOGS = "logs"
_NEW_NAME = DB_NAME + ".new"
APPLICATION_ID = 0x414C504F  # "ALPO"
#: Application id of a backup, which has the same schema: no server of any version starts on it.
BACKUP_APPLICATION_ID = 0x414C5042  # "ALPB"
#: Measured at 100 B, 1 KiB and 4 KiB in groups of 100: larger pages write up to three times as much.
PAGE_BYTES = 4096

#: Errors that mean that a directory cannot be synced at all, or not by this user: no sign of a failing disk.
_CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EROFS)

_SELECT_TABLES = "SELECT name, tbl_name, sql FROM sqlite_master"
_HARD_COLUMNS = "server_id, incarnation, term, vote, guaranteed_id, fully_replicated_id, cluster, start"


def _version_6(db: Database) -> None:
    """Create everything, and the one row of `base`, which is always there, so that its loss is noticed (R19)."""
    _create(db)


#: Schema version -> the step to it from the one before; the first is from an empty file, and older files are refused.
#: What a step creates never changes once released. Together they make `SCHEMA`.
MIGRATIONS: dict[int, Callable[[Database], None]] = {6: _version_6}
VERSION = max(MIGRATIONS)


def _create(db: sqlite3.Connection | Database) -> None:
    for sql in SCHEMA.values():
        db.execute(sql)
    _insert_first_base(db)


def _insert_first_base(db: sqlite3.Connection | Database) -> None:
    db.execute("INSERT INTO base VALUES (1, ?, ?, ?, ?, ?)", (*NO_BASE, base_checksum(NO_BASE)))


def insert_hard(db: sqlite3.Connection, hard: Hard) -> None:
    """Write the hard row with its checksum, replacing the present one."""
    db.execute(
        f"INSERT OR REPLACE INTO hard (only, {_HARD_COLUMNS}, checksum) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*hard, hard.checksum()),
    )


def read_hard(db: sqlite3.Connection, path: Path) -> Hard:
    """Read the hard row. Raises `DamagedStore` if it is missing or not what was written."""
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
    """Read the base: the last cleaned entry, after which the log begins. Raises `DamagedStore` if it is missing or not
    what was written."""
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
    """True if the directory holds a store. Raises `DamagedStore` if its file was emptied.

    An empty file without a WAL never was a store: SQLite tools leave one when they open a name that does not exist.
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
    """Make ``alpo.db``, whole or not at all. The directory's lock must be held. Raises `StoreError`."""
    new = directory / _NEW_NAME
    try:
        for suffix in ("", "-journal", "-wal", "-shm"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        _fill(new, Hard(server_id, incarnation, 0, 0, 0, 0, b"", start_to_json(EMPTY_START)))
        sync(new)
        for suffix in ("-wal", "-shm"):  # left by an earlier store or an empty file
            (directory / (DB_NAME + suffix)).unlink(missing_ok=True)
        sync(directory)  # otherwise they would be taken for the new file's
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
        _create(db)
        db.execute(f"PRAGMA user_version={VERSION}")
        insert_hard(db, hard)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode=WAL")
    finally:
        db.close()


def check(directory: Path, server_id: int, cluster: bytes | None) -> None:
    """Check that this server may use the file. Writes nothing; the directory's lock must be held.

    Raises `WrongStore` (not a data file of ALPO's, a schema not known here, another server's or cluster's),
    `LostCommits` or `DamagedStore`.
    """
    path = directory / DB_NAME
    try:
        # A file without a WAL is everything, and is opened in a way that does not even make a lock file.
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
    """Check that the file is a data file (or a ``backup``) with a schema known here. Raises `WrongStore`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application == BACKUP_APPLICATION_ID and not backup:
        raise WrongStore(f"{path} is a backup: `alpo restore` makes a data directory of it")
    if application not in (APPLICATION_ID, BACKUP_APPLICATION_ID):
        raise WrongStore(f"{path} is not an ALPO data file")
    if application == APPLICATION_ID and backup:
        raise WrongStore(f"{path} is no backup but a server's data file")
    if version > VERSION:
        raise WrongStore(f"{path} was written by a newer version (schema {version}; this one knows {VERSION})")
    if version < (oldest := min(MIGRATIONS)):
        raise WrongStore(f"{path} is too old (schema {version}; this version brings up schema {oldest} and newer)")


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    """Check that a file of the newest version has all tables as they were made. Raises `DamagedStore`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == VERSION and not _tables() <= {*db.execute(_SELECT_TABLES)}:
        raise DamagedStore(f"{path}: the schema is not what was written")


@functools.cache
def _tables() -> set[tuple[str, str, str | None]]:
    db = sqlite3.connect(":memory:")
    try:
        _create(db)
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
    """Migrate an older file to this version, one transaction a version. Raises sqlite3.Error."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version < VERSION:
        run_migrations(db, version, VERSION)


def run_migrations(db: sqlite3.Connection, version: int, wanted: int) -> None:
    """Bring the tables from schema ``version`` (0: an empty file) to ``wanted``, and set `user_version`."""
    database = as_database(db)
    for number in sorted(each for each in MIGRATIONS if version < each <= wanted):
        with database.atomic():
            MIGRATIONS[number](database)
            db.execute(f"PRAGMA user_version={number}")


def make_directory(directory: Path) -> list[Path]:
    """Make the data directory (0700) and missing parents. Returns the directories in which something was made, for
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
    """Sync the WAL, the data file, the directory and its parents, so that what is read of a store is on disk. The lock
    must be held. ``made_in``: result of `make_directory`. Raises `StoreError`."""
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
    """Sync the parents, which a killed process may have made too. Those in ``made_in`` must sync, and so must the
    nearest one if it is writable; others may fail if they cannot be synced."""
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
    """fsync a file or directory. ``forget``: drop it from the page cache, so that later reads come from the disk, as
    far as the system allows. Raises OSError with the path."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if forget and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
