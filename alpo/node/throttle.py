"""How fast what may wait goes, so that what may not keeps its latency: passes over the log, and great reads.

Great reads come in small pages and at a bounded rate beside appends. While no appends come, pages are as large as they
can be, and come as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import trio

from alpo.wire.requests import ColumnPage, Page, Read, ReadColumns
from alpo.wire.shapes import LONG_BYTES

from .pages import PAGE_ROWS_MAX

#: A pass over a log that is read so fast costs next to nothing: a thousandth of a core, of small entries.
FREE_BYTES_PER_S = 16 << 10

#: A pass over a small log takes this part of the time that others take.
SMALL_PART = 24


def pass_bytes_per_s(log_bytes: int, bytes_per_s_max: int, pass_s: float) -> float:
    """How fast a pass over the log goes in the background: evenly, so that it takes ``pass_s``; a small log's a
    `SMALL_PART` of that, where `FREE_BYTES_PER_S` suffice. ``bytes_per_s_max``: no faster, however long it takes."""
    small = min(log_bytes * SMALL_PART / pass_s, FREE_BYTES_PER_S)
    return max(1.0, min(bytes_per_s_max, max(log_bytes / pass_s, small)))


class Pace:
    """At most ``bytes_per_s`` pass, all together; 0: as fast as they come.

    Nothing is held up for longer than ``hold_s_max``: rather more pass than that those who wait give up.
    """

    def __init__(self, bytes_per_s: int, hold_s_max: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self._hold_s_max = hold_s_max
        self._next_s = 0.0

    async def keep(self, size: int) -> None:
        """Before these bytes leave. The first do not wait; those after them wait until the first are paid for."""
        if self.bytes_per_s:
            now_s = trio.current_time()
            wait_s = self._next_s - now_s
            next_s = max(now_s, self._next_s) + size / self.bytes_per_s
            self._next_s = min(next_s, now_s + self._hold_s_max)
            if wait_s > 0:
                await trio.sleep(wait_s)


#: What an entry weighs beside its body. Measured: a page takes 1.9 µs of a processor an entry, and 1.4 ns a byte.
ENTRY_BYTES = 1400

#: For so long after an entry was written appends are taken to be under way.
BUSY_S = 1.0

#: A page beside appends: about a millisecond of a processor. With pages of 1 MiB the p99 of appends was twice as high.
BUSY_PAGE_BYTES, BUSY_PAGE_ROWS = 192 << 10, 384


#: No page is held up for longer, however many read: clients ask elsewhere after a second.
HOLD_S_MAX = 0.25


class Size(NamedTuple):
    """Of a page, at most."""

    bytes: int
    rows: int


def weight_of(ask: Read | ReadColumns, page: Page | ColumnPage) -> int:
    """What it costs to make a page, as bytes; of one that is no great read, 0. Of one client's, whose entries were
    sought among others: that of a whole one."""
    if isinstance(page, Page):
        return 0
    entries = BUSY_PAGE_ROWS if ask.client else len(page.ids) // LONG_BYTES
    return len(page.bodies) + ENTRY_BYTES * entries


class Bulk:
    """The bound of one server. ``bytes_per_s`` 0: none. ``last_id`` gives the last entry written here."""

    def __init__(self, bytes_per_s: int, last_id: Callable[[], int]) -> None:
        self._pace = Pace(bytes_per_s, HOLD_S_MAX)
        self._last_id = last_id
        self._seen_id = last_id()
        self._moved_s = float("-inf")

    def bound(self, bytes_per_s: int) -> None:
        """Another bound from now on; 0: none."""
        self._pace.bytes_per_s = bytes_per_s

    def notice(self) -> None:
        """Something was done: did an entry come?"""
        last_id = self._last_id()
        if last_id != self._seen_id:
            self._seen_id, self._moved_s = last_id, trio.current_time()

    def _busy(self) -> bool:
        return self._pace.bytes_per_s > 0 and trio.current_time() - self._moved_s < BUSY_S

    def size(self, ask: Read | ReadColumns, bytes_max: int) -> Size:
        """Of the page for whoever would take ``bytes_max``."""
        if isinstance(ask, ReadColumns) and self._busy():
            return Size(min(bytes_max, BUSY_PAGE_BYTES), BUSY_PAGE_ROWS)
        return Size(bytes_max, PAGE_ROWS_MAX)

    async def keep(self, weight: int) -> None:
        """Before a page of that weight leaves."""
        if self._busy():
            await self._pace.keep(weight)
