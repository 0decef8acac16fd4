"""Return free pages to the file system, in steps short enough for a write to wait for (R19).

Laws:

* SQLite reuses the pages that a cleaning frees for new data first; most files give none back.
* Once more than half of the file is free, pages are given back until `KEEP_SHARE` of it is; on request, all are.
* A step is one transaction of at most `STEP_PAGES_MAX` pages, fewer if a step takes longer than `STEP_S`. While writes
  come, `PACE` times as long as a step took passes before the next.
* Only whoever has the writer's turn uses this, except for `ask`.
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from .interface import Rest

#: Free pages below which a file keeps them: 16 MiB.
FREE_PAGES_MIN = 4096
KEEP_SHARE = 0.25
STEP_S = 0.004
STEP_PAGES_MAX = 128
PACE = 9
#: Pause between two steps while nothing is written, so that a write that came meanwhile goes first.
IDLE_GAP_S = 0.01


class Pages(NamedTuple):
    """Pages of the file as of the last commit: all, and free ones."""

    all: int
    free: int


def count_pages(db: sqlite3.Connection) -> Pages:
    """Read both counts from the file's header. Raises sqlite3.Error."""
    return Pages(*(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")))


class SpaceKeeper:
    """Decides when pages are given back, and gives them back."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._free = count_pages(db).free
        self._keep = 0  # number of free pages to stop at
        self._look_due = True
        self._asked = False
        self._giving_back = False
        self._step_pages = STEP_PAGES_MAX // 8
        self._not_before_s = 0.0

    @property
    def giving_back(self) -> bool:
        """True while pages are being given back."""
        return self._giving_back

    @property
    def is_due(self) -> bool:
        """True if pages are being given back, or were asked for. Any thread."""
        return self._asked or self._giving_back

    def ask(self) -> None:
        """Request that all free pages be given back. Any thread: only sets a flag."""
        self._asked = True

    def deleted(self) -> None:
        """Note that a commit has deleted rows."""
        self._look_due = True

    def look(self) -> int:
        """Count free pages after a deletion, and decide whether to give some back. Returns how many more there are.
        Raises sqlite3.Error."""
        if not (self._look_due or self._asked):
            return 0
        pages, before = count_pages(self._db), self._free
        self._free, self._look_due = pages.free, False
        if self._asked:
            # The order matters: another thread may read `is_due` in between.
            self._keep, self._giving_back, self._asked = 0, pages.free > 0, False
        elif not self._giving_back and pages.free >= FREE_PAGES_MIN and 2 * pages.free > pages.all:
            # The pages in use are to be the rest of the file.
            self._keep, self._giving_back = int((pages.all - pages.free) * KEEP_SHARE / (1 - KEEP_SHARE)), True
        return max(0, pages.free - before)

    def step(self, rest: Rest) -> int:
        """Give back some pages if due; returns how many at most. Raises sqlite3.Error."""
        began_s = time.monotonic()
        if not self._giving_back or (rest is not Rest.IDLE and began_s < self._not_before_s):
            return 0
        asked = min(self._step_pages, self._free - self._keep)
        if asked <= 0:  # the pages were reused meanwhile; 0 would mean "all" to SQLite
            self._giving_back = False
            return 0
        # A script runs to its end: `execute` stops at the first row, and every page gives one. And the GIL is released
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
            self._giving_back, self._look_due = False, True  # more may have been cleaned meanwhile
        return asked
