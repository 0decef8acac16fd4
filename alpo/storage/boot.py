"""Start of a store: the data directory (its lock, its files staying in place, moving a lost store aside: R30, R31), and
what is read from the data file before a server runs.

Laws of the directory:

* One process uses a directory at a time. The lock is a file of its own: SQLite uses POSIX locks on ``alpo.db`` itself,
  and those are dropped as soon as anything else in the process opens and closes that file.
* The kernel releases the lock when the process ends, in whatever way; a pid in the file means nothing without the lock.
* An open file that was deleted or replaced still takes every write and every fsync, but nobody finds it again: `Place`
  notices that.
* To set a store aside, the data file is moved first, by one rename. So no crash leaves it in place without its WAL,
  which would be an older state that looks sound. A WAL left behind belongs to no file, and is deleted when a store is
  made.
* A directory that ever lost a store never founds a cluster again: other servers may still have what it held.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

from alpo.core.disk import Base, Boot, SessionRow, Snapshot, TableSave
from alpo.core.entries import DamagedEntry, Entry, verify
from alpo.core.members import Identity

from . import schema
from .interface import DamagedStore, DirectoryInUse, StoreError, StoreGone
from .rows import DamagedRow, Hard, applied_from_json, run_checksum, session_from_blob, start_from_json
from .tables import COLUMNS

LOCK_NAME = "alpo.lock"
_PID_BYTES_MAX = 32


class DirectoryLock:
    """The lock on a data directory, held from `take` to `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @staticmethod
    def take(directory: Path) -> DirectoryLock:
        """Take the lock without waiting. Raises `DirectoryInUse` with the holder's pid, or `StoreError`."""
        path = directory / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            pid = os.pread(descriptor, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DirectoryInUse(f"{directory} is in use by process {pid or '(pid not yet known)'}") from error
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{path}: {error.strerror}") from error
        return DirectoryLock(descriptor)

    def release(self) -> None:
        """Release the lock. The file stays: if it were deleted, two processes could hold locks on two files of that
        name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_PREFIX = "lost-"


def set_aside(directory: Path, now: datetime) -> Path:
    """Move the store into a ``lost-…`` directory to be looked at, and return its path. The lock must be held or the
    server stopped.

    Raises `StoreError`.
    """
    aside = directory / f"{_PREFIX}{now:%Y%m%dT%H%M%S.%fZ}"
    try:
        aside.mkdir()
        schema.sync(directory)
        for suffix in ("", "-wal", "-shm"):
            path = directory / (schema.DB_NAME + suffix)
            if path.exists():
                path.rename(aside / path.name)
                schema.sync(directory)
        schema.sync(aside)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
    return aside


def has_lost(directory: Path) -> bool:
    """True if a store of this directory was ever set aside."""
    return any(directory.glob(f"{_PREFIX}*"))


class Place:
    """Identity of the data file and its WAL, taken when they were opened."""

    def __init__(self, path: Path) -> None:
        files = (path, path.with_name(path.name + "-wal"))
        self._files = {file: _which(file) for file in files}

    def check(self) -> None:
        """Raise `StoreGone` unless both files are where they were. A file that cannot be examined counts as in
        place."""
        for file, opened in self._files.items():
            try:
                there = _which(file) == opened
            except OSError:
                continue
            if not there:
                raise StoreGone(
                    f"{file} was removed or replaced under the running server: what it writes would be lost; start it"
                    " again, on what shall be its data"
                )


def _which(file: Path) -> tuple[int, int] | None:
    """(device, inode) of the file at this path; None if there is none."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def read_boot(db: sqlite3.Connection, path: Path) -> Boot:
    """Read the `Boot` in one transaction. Raises `DamagedStore` and sqlite3.Error."""
    try:
        hard = schema.read_hard(db, path)
        base = schema.read_base(db, path)
        last = _last_entry(db)
        _check_front(db, base)
        runs = _runs(db, base, last)
        applied, sessions = read_applied(db)
        applied_id = applied.get("applied_id", 0)
        # the state came with a snapshot, and the entries up to there are still to come
        ahead = applied.get("ahead", False)
        known_id = max(hard.guaranteed_id, 0 if ahead else applied_id)
        if (last.id if last else base.id) < known_id:
            raise DamagedRow(f"the log ends below entry {known_id}, which it held")
        if base.id > min(hard.guaranteed_id, applied_id):
            raise DamagedRow(f"the log was cleaned up to {base.id}, beyond what was guaranteed or applied")
        applied.pop("ahead", None)
        return make_boot(hard, base, last, runs, applied, sessions)
    except (DamagedRow, DamagedEntry) as error:
        raise DamagedStore(f"{path}: {error}") from error


def require_caught_up(boot: Boot, path: Path) -> None:
    """Raise `StoreError` if the server was still receiving a snapshot's entries: its log ends below its saved state."""
    if boot.applied_id > boot.last_id:
        raise StoreError(
            f"{path}: this server was still being brought up: its log ends at entry {boot.last_id}, and the sessions "
            f"are those of entry {boot.applied_id}: take another server's"
        )


def read_snapshot(db: sqlite3.Connection, path: Path) -> Snapshot | None:
    """Read the snapshot to send to another server; None if no state was saved yet. Raises `DamagedStore` and
    sqlite3.Error."""
    try:
        applied, sessions = read_applied(db)
        if not applied:
            return None
        return make_image(schema.read_hard(db, path), schema.read_base(db, path), applied, sessions)
    except DamagedRow as error:
        raise DamagedStore(f"{path}: {error}") from error


def make_image(hard: Hard, base: Base, applied: dict[str, Any], sessions: list[SessionRow]) -> Snapshot:
    """Build a `Snapshot` from its stored parts."""
    fields = {name: value for name, value in applied.items() if name not in ("sessions", "ahead")}
    return Snapshot(base, TableSave(changed=sessions, ended=[], **fields), start_from_json(hard.start))


def make_boot(
    hard: Hard, base: Base, last: Entry | None, runs: list[tuple[int, int]], applied: dict[str, Any],
    sessions: list[SessionRow],
) -> Boot:
    """Build a `Boot` from its stored parts. ``last``: the last entry. ``applied``: fields of `applied_from_json`, {}
    before any save."""
    return Boot(
        me=Identity(hard.server_id, hard.incarnation),
        term=hard.term,
        vote=hard.vote,
        start=start_from_json(hard.start),
        guaranteed_id=hard.guaranteed_id,
        fully_replicated_id=hard.fully_replicated_id,
        last_id=last.id if last else base.id,
        last_term=last.term if last else base.term,
        next_lsn=last.lsn + last.count if last else base.next_lsn,
        last_time_ms=last.time_ms if last else base.time_ms,
        base=base,
        runs=runs,
        sessions=sessions,
        **applied,
    )


def _last_entry(db: sqlite3.Connection) -> Entry | None:
    return _entry(db, "ORDER BY id DESC LIMIT 1")


def _entry(db: sqlite3.Connection, which: str) -> Entry | None:
    row = db.execute(f"SELECT {COLUMNS} FROM log {which}").fetchone()
    if row is None:
        return None
    entry = Entry(*row)
    verify(entry)
    return entry


def _check_front(db: sqlite3.Connection, base: Base) -> None:
    """Check that the log begins right after the base, the last cleaned entry, or is empty."""
    first = _entry(db, "ORDER BY id LIMIT 1")
    if first is not None and first.id != base.id + 1:
        raise DamagedRow(f"the log begins at entry {first.id}, but was cleaned up to {base.id}")
    if first is not None and (
        first.lsn != base.next_lsn or first.term < base.term or first.time_ms < base.time_ms
    ):
        raise DamagedRow(f"entry {first.id} does not follow the base")


def _runs(db: sqlite3.Connection, base: Base, last: Entry | None) -> list[tuple[int, int]]:
    """Read the table of runs as (term, first id), ascending. Each run must end, in an entry of its term, where the next
    one begins; the first may end at the base if its entries above were expunged. Raises `DamagedRow`."""
    runs: list[tuple[int, int]] = []
    for first_id, term, checksum in db.execute("SELECT first_id, term, checksum FROM runs ORDER BY first_id"):
        if run_checksum(term, first_id) != checksum:
            raise DamagedRow(f"the run of term {term} at {first_id} does not match its checksum")
        runs.append((term, first_id))
    if sorted(runs) != runs:
        raise DamagedRow("the runs are out of order")
    if not runs and last is None:
        return runs
    ends = [first_id - 1 for _, first_id in runs[1:]] + [last.id if last else base.id]
    if not runs or runs[0][1] > base.id + 1 or any(
        _term_at(db, base, end) != term for (term, _), end in zip(runs, ends, strict=True)
    ):
        raise DamagedRow("the runs do not fit the log")
    return runs


def _term_at(db: sqlite3.Connection, base: Base, id: int) -> int | None:
    """The term of entry ``id`` or of the base; None if there is no such entry."""
    if id == base.id:
        return base.term
    row = db.execute("SELECT term FROM log WHERE id = ?", (id,)).fetchone()
    return row[0] if row else None


def read_applied(db: sqlite3.Connection) -> tuple[dict[str, Any], list[SessionRow]]:
    """Read the replicated state ({} before the first save) and its sessions. Raises `DamagedRow` and sqlite3.Error."""
    sessions = [
        session_from_blob(client, blob)
        for client, blob in db.execute("SELECT client, state FROM saved_sessions ORDER BY client")
    ]
    row = db.execute("SELECT state, checksum FROM applied WHERE only = 1").fetchone()
    if row is None:
        if sessions:
            raise DamagedRow("there are sessions, but no state that they are of")
        return {}, []
    fields = applied_from_json(*row)
    if fields.pop("sessions") != len(sessions):
        raise DamagedRow("a session is missing")
    return fields, sessions
