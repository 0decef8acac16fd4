"""The data directory: one process at a time in it, and what becomes of a store that is of no more use (R30, R31).

Laws:

* The lock is a file of its own: POSIX locks on ``alpo.db`` itself are SQLite's, and are lost when anything else in
  the process opens and closes that file.
* The kernel drops it with the process, however that ends; a pid left in the file means nothing without the lock.
* A store that is set aside: the data file goes first, by one rename. No moment of a crash leaves it there without its
  WAL, which would be an older state of it that looks sound. A WAL that stays behind belongs to nothing, and is cleared
  away when a store is made.
* A directory that ever lost a store never founds a cluster again: whatever it held, others may still know.
"""

from __future__ import annotations

import fcntl
import os
from datetime import datetime
from pathlib import Path

from . import schema
from .interface import DirectoryInUse, StoreError

LOCK_NAME = "alpo.lock"
_PID_BYTES_MAX = 32


class DirectoryLock:
    """The lock on a data directory, held from `take` to `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @staticmethod
    def take(directory: Path) -> DirectoryLock:
        """Take it without waiting. Raises `DirectoryInUse`, naming the holder's pid, or `StoreError`."""
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
        """Give it back; the file stays (to delete it would let two processes lock two files of one name)."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_PREFIX = "lost-"


def set_aside(directory: Path, now: datetime) -> Path:
    """Move the store out of the way, to be looked at; where it is now. The lock must be held or the server stopped.

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
    """Was a store of this directory ever set aside?"""
    return any(directory.glob(f"{_PREFIX}*"))
