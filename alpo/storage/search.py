"""Find an entry by LSN or time without an index: by bisection, or by a guess.

``time_ms`` never decreases along the log and neither does the LSN after an entry. So both searches are for the first id
that fulfils a condition which all later ids fulfil too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from alpo.core.entries import DamagedEntry, Entry, verify_header

from .connections import translate
from .interface import DamagedStore
from .tables import SELECT_HEAD


class Head(NamedTuple):
    """Fields of an entry that the searches look at."""

    time_ms: int
    lsn: int
    payloads: int


def read_head(db: sqlite3.Connection, path: Path, id: int) -> Head:
    """Head of entry ``id``, which must exist, checked. Raises `DamagedStore`, sqlite3.Error."""
    try:
        row = db.execute(SELECT_HEAD, (id,)).fetchone()
    except sqlite3.Error as error:
        meaning = translate(error, path)
        if not isinstance(meaning, DamagedStore):
            raise
        raise DamagedStore(f"{meaning} (at entry {id})", id) from error
    if row is None:
        raise DamagedStore(f"{path}: entry {id} is missing", id)
    entry: Entry = tuple.__new__(Entry, row)
    try:
        verify_header(entry)
    except DamagedEntry as error:
        raise DamagedStore(f"{path}: entry {id}: {error}", id) from error
    return Head(entry.time_ms, entry.lsn, entry.count)


def first_id_where(
    head: Callable[[int], Head], first_id: int, last_id: int, holds: Callable[[Head], bool], guess_id: int = 0
) -> int:
    """The first id in ``first_id`` … ``last_id`` whose head fulfils ``holds``; ``last_id + 1`` if none does.

    A right ``guess_id`` takes two reads; a wrong one costs two more than none. A guess that is out of range, or at a
    damaged entry, is ignored.
    """
    def halve(low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if holds(head(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    if first_id <= guess_id <= last_id:
        with suppress(DamagedStore):  # perhaps at the guess, which bisection may never read
            if not holds(head(guess_id)):
                return halve(guess_id + 1, last_id + 1)
            if guess_id > first_id and holds(head(guess_id - 1)):
                return halve(first_id, guess_id - 1)
            return guess_id
    return halve(first_id, last_id + 1)


def holds_lsn(lsn: int) -> Callable[[Head], bool]:
    """Condition for `first_id_where`: payload ``lsn`` is in this entry or before. The first that fulfils it is its DATA
    entry."""
    return lambda head: head.lsn + head.payloads > lsn


def is_since(time_ms: int) -> Callable[[Head], bool]:
    """Condition for `first_id_where`: the entry's time is ``time_ms`` or later."""
    return lambda head: head.time_ms >= time_ms


class Places:
    """Cache of the entries in which LSNs were found lately, to begin the next search there: a reader usually asks for
    what follows its last page, up to the same end. Any thread; a forgotten or wrong place only costs reads."""

    _COUNT = 32

    def __init__(self) -> None:
        self._found = [(0, 0)] * self._COUNT
        self._next = 0

    def add(self, lsn: int, id: int) -> None:
        """Note that payload ``lsn`` is in entry ``id``, or will be."""
        self._found[self._next % self._COUNT] = (lsn, id)
        self._next += 1

    def id_of(self, lsn: int) -> int:
        """The entry that was noted for ``lsn``; 0 if none."""
        return dict(self._found).get(lsn, 0)
