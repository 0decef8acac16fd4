"""A store of no more use is set aside, and the server begins anew as another member (R30, R31).

Laws:

* The data file goes first, by one rename: no moment of a crash leaves it there without its WAL, which would be an older
  state of it that looks sound. A WAL that stays behind belongs to nothing, and is cleared away when a store is made.
* A directory that ever lost a store never founds a cluster again: whatever it held, others may still know.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from . import schema
from .interface import StoreError

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
