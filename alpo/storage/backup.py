"""Backups: a data file's log and replicated state, without its hard state (term, vote) and incarnation.

Laws:

* A backup ends at a guaranteed entry, and its marks stand there. Its rows are the data file's, checksums included.
* It is a file of the same schema with another application id, so no server starts on it. It has no WAL.
* FILE appears by a rename, whole and synced; until then there is only ``FILE.partial``, which is no backup yet.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alpo.core.entries import DamagedEntry, Entry, verify

from . import schema
from .boot import read_boot, require_caught_up
from .connections import as_database, translate
from .interface import DamagedStore, StateCopy, StoreError, WrongStore
from .rows import Hard
from .tables import COLUMNS
from .vacuum import count_pages

PARTIAL_SUFFIX = ".partial"

#: Tables that a backup holds beside the log.
_TABLES = ("hard", "base", "runs", "applied", "saved_sessions")


class Finished(NamedTuple):
    """First and last LSN and size of a finished backup."""

    first_lsn: int
    last_lsn: int
    bytes: int


def copy_state(db: sqlite3.Connection, path: Path, upto_id: int) -> StateCopy:
    """Rows for a backup, read in one transaction; implements `Store.copy_state`. Raises `DamagedStore` and
    sqlite3.Error."""
    boot = read_boot(db, path)
    require_caught_up(boot, path)
    end_id = max(upto_id, boot.applied_id)
    mine = schema.read_hard(db, path)
    hard = Hard(mine.server_id, b"", 0, 0, end_id, min(mine.fully_replicated_id, end_id), mine.cluster, mine.start)
    tables: dict[str, list[tuple[Any, ...]]] = {"hard": [(1, *hard, hard.checksum())]}
    for table in ("base", "applied", "saved_sessions"):
        tables[table] = db.execute(f"SELECT * FROM {table}").fetchall()
    tables["runs"] = db.execute("SELECT * FROM runs WHERE first_id <= ?", (end_id,)).fetchall()
    pages = count_pages(db)
    return StateCopy(
        schema.VERSION, mine.server_id, boot.base.id + 1, end_id,
        (pages.all - pages.free) * schema.PAGE_BYTES, tables,
    )


class BackupWriter:
    """Writer of one backup: fills ``FILE.partial``, then `finish` renames it to FILE. Calls may come from different
    threads, one at a time."""

    def __init__(self, file: Path, version: int) -> None:
        """Begin ``FILE.partial``. ``version``: schema version of the rows to come. Raises `WrongStore`,
        `StoreError`."""
        if not min(schema.MIGRATIONS) <= version <= schema.VERSION:
            raise WrongStore(f"the server writes schema {version}; this version knows {schema.VERSION}")
        self._file = file
        self._partial = file.with_name(file.name + PARTIAL_SUFFIX)
        self._last_id: int | None = None
        #: Sum of body sizes so far, in bytes.
        self.bodies_bytes = 0
        try:
            self._partial.unlink(missing_ok=True)
            self._db = sqlite3.connect(self._partial, isolation_level=None, check_same_thread=False)
            # The file counts for nothing before the rename: no journal, and one fsync at the end.
            for pragma in (f"page_size={schema.PAGE_BYTES}", "auto_vacuum=INCREMENTAL", "journal_mode=OFF",
                           "synchronous=OFF"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.execute("BEGIN")
            schema.run_migrations(self._db, 0, version)
            self._tables = {name: as_database(self._db).table(name) for name in _TABLES}
            self._columns = {name: list(table.columns_dict) for name, table in self._tables.items()}
            self._tables["base"].delete_where()
        except sqlite3.Error as error:
            raise translate(error, self._partial) from error
        except OSError as error:
            raise StoreError(f"{self._partial}: {error.strerror}") from error

    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows to ``table``. Entries must match their checksums and have consecutive ids. Raises `DamagedStore`,
        `StoreError`."""
        try:
            if table == "log":
                self._add_entries(rows)
            elif table not in _TABLES or any(len(row) != len(self._columns[table]) for row in rows):
                raise WrongStore(f"rows of {table!r} do not belong in a backup")
            else:
                self._tables[table].insert_all([self._columns[table], *rows])
        except sqlite3.Error as error:
            raise translate(error, self._partial) from error

    def _add_entries(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            try:
                entry = Entry._make(row)
                verify(entry)
            except (DamagedEntry, TypeError) as error:
                raise DamagedStore(f"an entry was damaged on its way: {error}") from error
            if self._last_id is not None and entry.id != self._last_id + 1:
                raise DamagedStore(f"entry {entry.id} came where {self._last_id + 1} belongs")
            self._last_id = entry.id
            self.bodies_bytes += len(entry.body)
        self._db.executemany(
            f"INSERT INTO log ({COLUMNS}) VALUES ({', '.join('?' * len(Entry._fields))})", rows
        )

    def finish(self, end_id: int) -> Finished:
        """Check that the log ends at ``end_id``, sync, and rename to FILE. Raises `DamagedStore`, `StoreError`."""
        try:
            self._db.execute(f"PRAGMA application_id={schema.BACKUP_APPLICATION_ID}")
            self._db.execute("COMMIT")
            boot = read_boot(self._db, self._partial)
            if boot.last_id != end_id:
                raise DamagedStore(f"{self._partial}: it ends at entry {boot.last_id}, not {end_id}")
            self._db.close()
            schema.sync(self._partial)
            self._partial.replace(self._file)
            schema.sync(self._file.absolute().parent)
            return Finished(boot.base.next_lsn, boot.next_lsn - 1, self._file.stat().st_size)
        except sqlite3.Error as error:
            raise translate(error, self._partial) from error
        except OSError as error:
            raise StoreError(f"{self._file}: {error.strerror}") from error

    def give_up(self) -> None:
        """Close and delete ``FILE.partial``."""
        self._db.close()
        self._partial.unlink(missing_ok=True)
