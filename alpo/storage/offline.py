"""Read a data directory or a backup from outside, whether or not a server runs on it.

Laws:

* Nothing is written, and no file made on the way is left. A running server is not held up: a read transaction lasts at
  most `PAGE_S`, and never while waiting for anything else.
* Unreadable entries are reported by id, and reading continues after them: damage is never the end of the log (R31).
* Data that was read stays valid: if the log's end is rewritten meanwhile, or a server starts on the file, reading ends
  with an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from alpo.core.directory import FIRST_NAME, Listing, changed, listing_of
from alpo.core.disk import Base
from alpo.core.entries import (
    DIGEST_BYTES,
    DamagedEntry,
    Entry,
    Kind,
    body_digest,
    parse_body,
    verify,
    verify_headers,
)

from . import schema
from .boot import LOCK_NAME
from .connections import as_database, connect_reader, translate
from .interface import DamagedStore, StoreError, WrongStore
from .rows import Hard, applied_from_json
from .scrub import read_alone
from .search import first_id_where, holds_lsn, is_since, read_head
from .tables import SELECT, Columns, sound_columns, verify_payloads

PAGE_S = 0.1
PAGE_ROWS = 4096
PAGE_BYTES = 4 << 20

_KINDS = frozenset(map(int, Kind))


class Found(NamedTuple):
    """Content of ids ``first_id`` … ``last_id``: one entry, sound if ``damage`` is "", or nothing readable (``entry``
    None)."""

    first_id: int
    last_id: int
    entry: Entry | None
    damage: str


class Summary(NamedTuple):
    """A file's overview. ``hard`` and ``base`` are None if damaged; ``damage`` says how. ``end_id``: the highest id
    that the file mentions anywhere."""

    hard: Hard | None
    base: Base | None
    end_id: int
    damage: list[str]

    @property
    def first_id(self) -> int:
        return self.base.id + 1 if self.base is not None else 1

    @property
    def guaranteed_id(self) -> int:
        """The guaranteed mark; 0 if it is not known."""
        return self.hard.guaranteed_id if self.hard is not None else 0


def damage_of(entry: Entry) -> str:
    """Description of what is wrong in an entry by itself; "" if nothing is."""
    try:
        verify(entry)
        if entry.kind not in _KINDS or (entry.kind == Kind.DATA) != (entry.count > 0):
            return f"it is of kind {entry.kind} with {entry.count} payloads"
        verify_payloads(entry)
    except DamagedEntry as error:
        return str(error)
    return ""


def _verify_all(entries: list[Entry]) -> None:
    """Check entries with consecutive ids as strictly as `verify_headers` and `verify`, in tight loops.

    Raises `DamagedEntry`.
    """
    verify_headers(entries)
    blake2b = hashlib.blake2b
    for entry in entries:
        count, body = entry[8], entry[10]
        digest = blake2b(body, digest_size=DIGEST_BYTES).digest() if count == 1 else body_digest(count, body)
        if digest != entry[9][:DIGEST_BYTES]:
            raise DamagedEntry(f"the body of entry {entry[0]} does not match its digest")


class Source:
    """A data file or backup open for reading; made by `open_source`."""

    def __init__(self, path: Path, live: bool) -> None:
        self.path = path
        #: True if there is a WAL: a server runs on the file, or was killed.
        self.live = live
        self._before = self._state()
        self._db = connect_reader(path, immutable=not live)
        self._db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        try:
            (application,) = self._db.execute("PRAGMA application_id").fetchone()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            self.is_backup = application == schema.BACKUP_APPLICATION_ID
            schema.check_kind(self._db, path, backup=self.is_backup)
            if version < schema.VERSION:
                how = ("`alpo restore` of this version makes a data directory of it that can be looked at"
                       if self.is_backup else "a server of this version brings it up when it is started")
                raise WrongStore(
                    f"{path} is of an older version (schema {version}; this one reads {schema.VERSION}): {how}"
                )
        except (WrongStore, sqlite3.Error):
            self._db.close()
            raise

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A short read transaction. Raises `StoreError` and its subclasses."""
        try:
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        if not self.live and self._state() != self._before:
            raise StoreError(f"{self.path} was changed while it was read (was a server started?): run it again")

    def _state(self) -> tuple[int, int, int]:
        """File times and sizes: they change when a server starts on a file that was not in use."""
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, schema.wal_bytes(self.path)

    def summary(self) -> Summary:
        """An overview as of this moment (see `summarise`). Raises `StoreError`."""
        with self.snapshot() as db:
            return summarise(db, self.path)

    def walk(self, first_id: int, end_id: int) -> Iterator[Found]:
        """Yield what is at ``first_id`` … ``end_id``, in order; entries that are cleaned meanwhile are left out.

        Raises `StoreError`, also if the end of the log is rewritten meanwhile.
        """
        for page in self.walk_pages(first_id, end_id):
            yield from as_found(page)

    def walk_pages(self, first_id: int, end_id: int) -> Iterator[Columns | list[Found]]:
        """Yield the same pages as `walk`, as columns where all entries are sound."""
        last: Entry | None = None
        while first_id <= end_id:
            page: list[Found] = []
            with self.snapshot() as db:
                first_id = self._go_on(db, first_id, last)
                columns = sound_columns(db, first_id, end_id)
                stop_s, size = time.monotonic() + PAGE_S, 0
                for found in () if columns.ids else _walk(db, first_id, end_id):
                    page.append(found)
                    size += len(found.entry.body) if found.entry is not None and not found.damage else 0
                    if len(page) >= PAGE_ROWS or size >= PAGE_BYTES or time.monotonic() > stop_s:
                        break
            if columns.ids:
                last, first_id = columns.last(), columns.ids[-1] + 1
                yield columns
            elif page:
                last, first_id = page[-1].entry, page[-1].last_id + 1
                yield page
            else:
                return

    def read(self, first_id: int, end_id: int, rows_max: int = PAGE_ROWS) -> list[Entry]:
        """Read a page of sound entries from ``first_id`` on, at least one.

        Raises `DamagedStore` naming the first entry if it is damaged or missing; `StoreError`.
        """
        page: list[Entry] = []
        size = 0
        with self.snapshot() as db:
            for row in db.execute(SELECT, (first_id, min(end_id, first_id + rows_max - 1))):
                entry: Entry = tuple.__new__(Entry, row)
                if entry[0] != first_id + len(page):
                    break
                page.append(entry)
                size += len(entry[10]) if type(entry[10]) is bytes else 0
                if size >= PAGE_BYTES:
                    break
        if not page:
            raise DamagedStore(f"{self.path}: entry {first_id} is missing")
        try:
            _verify_all(page)
        except DamagedEntry:
            return page[: self._sound(page)]
        return page

    def read_columns(self, first_id: int, end_id: int) -> Columns:
        """Read like `read`, but as columns, several times as fast."""
        with self.snapshot() as db:
            columns = sound_columns(db, first_id, end_id)
        # `read` says what is wrong, and where
        return columns if columns.ids else Columns.of(self.read(first_id, end_id))

    def _sound(self, page: list[Entry]) -> int:
        """Number of sound entries at the front of ``page``. Raises `DamagedStore` if the first is not."""
        for at, entry in enumerate(page):
            try:
                verify(entry)
            except DamagedEntry as error:
                if at:
                    return at
                raise DamagedStore(f"{self.path}: entry {entry.id}: {error}") from error
        raise DamagedStore(f"{self.path}: entry {page[0].id} is of a kind that there is not")

    def id_of(self, lsn: int, first_id: int, end_id: int) -> int:
        """The id of the entry that holds payload ``lsn``, among ``first_id`` … ``end_id``; ``end_id + 1`` if none
        does."""
        with self.snapshot() as db:
            return first_id_where(lambda id: read_head(db, self.path, id), first_id, end_id, holds_lsn(lsn))

    def id_since(self, time_ms: int, first_id: int, end_id: int) -> int:
        """The first entry of ``first_id`` … ``end_id`` with that time or later; ``end_id + 1`` if there is none."""
        with self.snapshot() as db:
            return first_id_where(lambda id: read_head(db, self.path, id), first_id, end_id, is_since(time_ms))

    def next_lsn_after(self, id: int) -> int:
        """The LSN after entry ``id``, which must exist. Raises `DamagedStore`."""
        with self.snapshot() as db:
            head = read_head(db, self.path, id)
        return head.lsn + head.payloads

    def _go_on(self, db: sqlite3.Connection, first_id: int, last: Entry | None) -> int:
        """The id to read on from after ``last``: ``first_id``, or the first id left if a cleaning has gone beyond that.

        Raises `StoreError` if ``last`` was rewritten meanwhile.
        """
        if not self.live:
            return first_id
        try:
            base_id = schema.read_base(db, self.path).id
        except DamagedStore:
            base_id = 0  # a damaged base: nothing can have been cleaned meanwhile
        if last is None or base_id >= last.id:
            return max(first_id, base_id + 1)
        row = db.execute('SELECT term, "check" FROM log WHERE id = ?', (last.id,)).fetchone()
        if row != (last.term, last.check):
            raise StoreError(f"{self.path}: the end of the log was rewritten while it was read: run it again")
        return first_id

    def close(self) -> None:
        self._db.close()


def summarise(db: sqlite3.Connection, path: Path) -> Summary:
    """The overview of a file. Damaged parts are listed in the result, not raised."""
    damage: list[str] = []
    hard = base = None
    try:
        hard = schema.read_hard(db, path)
    except (StoreError, sqlite3.Error) as error:
        damage.append(str(error))
    try:
        base = schema.read_base(db, path)
    except (StoreError, sqlite3.Error) as error:
        damage.append(str(error))
    ends = [hard.guaranteed_id if hard is not None else 0, base.id if base is not None else 0]
    for sql in ("SELECT max(id) FROM log", "SELECT max(first_id) FROM runs"):
        with contextlib.suppress(sqlite3.Error):  # `walk` reports the damage that prevents this
            ends.append(db.execute(sql).fetchone()[0] or 0)
    return Summary(hard, base, max(ends), damage)


def as_found(page: Columns | list[Found]) -> list[Found]:
    """The page as a list of `Found`, whichever form it has."""
    return [Found(entry.id, entry.id, entry, "") for entry in page.entries()] if isinstance(page, Columns) else page


def _walk(db: sqlite3.Connection, first_id: int, end_id: int) -> Iterator[Found]:
    log, id = as_database(db).table("log"), first_id
    while id <= end_id:
        try:
            for fields in log.rows_where("id BETWEEN ? AND ?", (id, end_id), order_by="id"):
                entry = Entry(**fields)
                if entry.id > id:
                    yield Found(id, entry.id - 1, None, "missing")
                yield Found(entry.id, entry.id, entry, damage_of(entry))
                id = entry.id + 1
            if id <= end_id:
                yield Found(id, end_id, None, "missing")
            return
        except sqlite3.Error as error:
            unread_id = id
            while id <= end_id and (row := read_alone(db, id)) is None:
                id += 1
            if id > unread_id:
                yield Found(unread_id, id - 1, None, str(error))
            if row is not None:
                entry = Entry(*row)
                yield Found(id, id, entry, damage_of(entry))
                id += 1


@contextmanager
def open_source(where: Path) -> Iterator[Source]:
    """Open a data directory, a data file or a backup for reading. Raises `StoreError` and its subclasses."""
    path = where / schema.DB_NAME if where.is_dir() else where
    if not path.is_file():
        raise StoreError(f"{where}: there is no data file or backup")
    if path.stat().st_size == 0 and not schema.wal_bytes(path):
        raise DamagedStore(f"{path}: the file is empty")
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    there = [file.exists() for file in beside]
    # A WAL with its index: a server runs or was killed, and reading makes no file. Neither: nothing is beside the file
    # itself. A WAL alone belongs to a copy of a store: SQLite makes the index to read it, and it is deleted again at
    # the end.
    live = all(there) or schema.wal_bytes(path) > 0
    try:
        source = Source(path, live)
        try:
            yield source
        finally:
            source.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error
    finally:
        if live and not there[1]:
            _take_away(beside[1])


def folder_named(data: Path, name: str) -> Path:
    """The folder of a log in a data directory, by the name that it has at the end of the first log's file there; "":
    the first log. Raises `StoreError`."""
    if name in ("", FIRST_NAME):
        return data
    if data.is_file():
        raise StoreError(f"{data} is a file of one log: a log is picked by its name in a data directory")
    with open_source(data) as source:
        try:
            with source.snapshot() as db:
                listing = _listing(db)
        except ValueError as error:
            raise DamagedStore(f"{source.path}: the directory of logs: {error}") from error
    found = listing.named(name)
    if found is None:
        names = ", ".join(log.name for log in listing.logs) or "none"
        raise StoreError(f"{data} has no log {name}; besides the first it has {names}")
    return data / schema.LOGS / str(found.number)


def _listing(db: sqlite3.Connection) -> Listing:
    """The directory of logs at the end of a file. Raises ValueError."""
    row = db.execute("SELECT state, checksum FROM applied WHERE only = 1").fetchone()
    saved = applied_from_json(*row) if row is not None else {}
    listing = listing_of(saved.get("directory"))
    later = "kind = ? AND id > ?", (int(Kind.LOGS), saved.get("applied_id", 0))
    for fields in as_database(db).table("log").rows_where(*later, order_by="id"):
        entry = Entry(**fields)
        verify(entry)
        listing = changed(listing, parse_body(entry))
    return listing


def _take_away(index: Path) -> None:
    """Delete the WAL index that reading made, unless a server has started meanwhile and uses it."""
    try:
        lock = os.open(index.with_name(LOCK_NAME), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        index.unlink(missing_ok=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        index.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
