"""The data directory: its lock, its files staying in place, and moving a lost store aside (R30, R31).

Laws:

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
from datetime import datetime
from pathlib import Path

from . import schema
from .interface import DirectoryInUse, StoreError, StoreGone

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
