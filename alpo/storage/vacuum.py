"""Giving free pages back to the file system, in steps that a write can wait for (R19).

Laws:

* Pages that a cleaning frees are used first by what comes after it (SQLite's own doing); most files give none back.
* Once more than half of the file is free, pages are given back until `KEEP_SHARE` of it is; when asked, all of them.
* A step is one transaction of at most `STEP_PAGES_MAX` pages, fewer if a step takes longer than `STEP_S`. While writes
  come, `PACE` times as long as a step took passes before the next.
* The writer's thread alone uses it, but for `ask`.
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from .interface import Rest

#: A file of fewer free pages keeps them: 16 MiB.
FREE_PAGES_MIN = 4096
KEEP_SHARE = 0.25
STEP_S = 0.004
STEP_PAGES_MAX = 128
PACE = 9
#: Between two steps while nothing is written: what has come meanwhile goes first.
IDLE_GAP_S = 0.01


class Pages(NamedTuple):
    """Of the whole file, as of the last commit."""

    all: int
    free: int


def count_pages(db: sqlite3.Connection) -> Pages:
    """Two reads of the file's header. Raises sqlite3.Error."""
    return Pages(*(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")))


class SpaceKeeper:
    """Decides when pages are given back, and does it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._free = count_pages(db).free
        self._keep = 0  # free pages to stop at
        self._look_due = True
        self._asked = False
        self._giving_back = False
        self._step_pages = STEP_PAGES_MAX // 8
        self._not_before_s = 0.0

    @property
    def giving_back(self) -> bool:
        return self._giving_back

    @property
    def is_due(self) -> bool:
        """Is it giving back, or asked to and yet to begin? Any thread."""
        return self._asked or self._giving_back

    def ask(self) -> None:
        """All free pages shall be given back. From any thread: no more than a flag is set."""
        self._asked = True

    def deleted(self) -> None:
        """A commit has deleted rows."""
        self._look_due = True

    def look(self) -> int:
        """After a deletion: how many more pages are free; is it time to give some back? Raises sqlite3.Error."""
        if not (self._look_due or self._asked):
            return 0
        pages, before = count_pages(self._db), self._free
        self._free, self._look_due = pages.free, False
        if self._asked:
            # In this order: `is_due` may be asked for in between.
            self._keep, self._giving_back, self._asked = 0, pages.free > 0, False
        elif not self._giving_back and pages.free >= FREE_PAGES_MIN and 2 * pages.free > pages.all:
            # What is in use makes up the rest of the file.
            self._keep, self._giving_back = int((pages.all - pages.free) * KEEP_SHARE / (1 - KEEP_SHARE)), True
        return max(0, pages.free - before)

    def step(self, rest: Rest) -> int:
        """Give back a few pages if it is due; how many at most. Raises sqlite3.Error."""
        began_s = time.monotonic()
        if not self._giving_back or (rest is not Rest.IDLE and began_s < self._not_before_s):
            return 0
        asked = min(self._step_pages, self._free - self._keep)
        if asked <= 0:  # used again meanwhile; to SQLite it would mean all of them at once
            self._giving_back = False
            return 0
        # As a script, since `execute` stops at the first row and every page is one; and the interpreter is let go of
        # once, not once a page.
        self._db.executescript(f"BEGIN IMMEDIATE; PRAGMA incremental_vacuum({asked})")
        worked_s = time.monotonic() - began_s
        self._db.execute("COMMIT")
        now_s = time.monotonic()
        self._not_before_s = now_s + PACE * (now_s - began_s)
        if worked_s > STEP_S:
            self._step_pages = max(1, self._step_pages // 2)
        elif worked_s < STEP_S / 2:
            self._step_pages = min(STEP_PAGES_MAX, self._step_pages * 2)
        self._free = count_pages(self._db).free
        if self._free <= self._keep:
            self._giving_back, self._look_due = False, True  # there may have been more cleaned meanwhile
        return asked
