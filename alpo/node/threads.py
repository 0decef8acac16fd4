"""Work beside the event loop: in a thread, in a process that may be out of threads for a while; and at a rate that
keeps the latency of appends (passes over the log, and bulk reads).

Laws of threads:

* Work that no thread can be started for waits until one can: a server goes on without it, and does not end.
* An error of the work itself goes to the caller.
* The log says it once for each time that threads were lacking.

Law of the rate: beside appends, bulk reads get small pages at a bounded rate; while no appends come, large pages at
full speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar, TypeVarTuple

import structlog
import trio

from alpo.wire.requests import ColumnPage, Page, Read, ReadColumns
from alpo.wire.shapes import LONG_BYTES

from .pages import PAGE_ROWS_MAX

log = structlog.get_logger()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds until a thread is asked for again.
_AGAIN_S = 0.25


class Jobs:
    """Work in threads of this process: the event loop is to hear at once when it is done."""

    under_way = 0


class _Lack:
    """Mark for a process that is known to be out of threads."""

    told = False


async def in_thread(
    work: Callable[[*Ts], T], *args: *Ts, abandon_on_cancel: bool = False, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Run ``work(*args)`` in a thread, like `trio.to_thread.run_sync`, and return its result. Raises what it raises."""
    begun = False

    def run() -> T:
        nonlocal begun
        begun = True
        return work(*args)

    lacked = False
    while True:
        Jobs.under_way += 1
        try:
            found = await trio.to_thread.run_sync(run, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as error:  # the system is out of threads
            if begun:
                raise
            lacked = True
            if not _Lack.told:
                _Lack.told = True
                log.warning("no_threads", why=str(error))
            await trio.sleep(_AGAIN_S)
        else:
            if lacked:  # else the thread may have been there already
                _Lack.told = False
            return found
        finally:
            Jobs.under_way -= 1


#: Rate at which reading a log costs next to nothing: a thousandth of a core, with small entries.
FREE_BYTES_PER_S = 16 << 10

#: Part of the usual time that a pass over a small log takes.
SMALL_PART = 24


def pass_bytes_per_s(log_bytes: int, bytes_per_s_max: float, pass_s: float) -> float:
    """Rate of a background pass over the log, bytes/s: even, so that it takes ``pass_s``; a small log's takes a
    `SMALL_PART` of that if `FREE_BYTES_PER_S` suffice. ``bytes_per_s_max``: upper bound, however long the pass then
    takes."""
    small = min(log_bytes * SMALL_PART / pass_s, FREE_BYTES_PER_S)
    return max(1.0, min(bytes_per_s_max, max(log_bytes / pass_s, small)))


class Pace:
    """Rate limiter shared by all callers; ``bytes_per_s`` 0: no limit.

    No caller is delayed longer than ``hold_s_max``: it is better to exceed the rate than to have callers give up.
    """

    def __init__(self, bytes_per_s: int, hold_s_max: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self._hold_s_max = hold_s_max
        self._next_s = 0.0

    async def keep(self, size: int) -> None:
        """Wait as the rate demands, before ``size`` bytes are sent. The first caller does not wait; later ones wait
        until earlier bytes are paid for."""
        if self.bytes_per_s:
            now_s = trio.current_time()
            wait_s = self._next_s - now_s
            next_s = max(now_s, self._next_s) + size / self.bytes_per_s
            self._next_s = min(next_s, now_s + self._hold_s_max)
            if wait_s > 0:
                await trio.sleep(wait_s)


#: Bytes that an entry counts beside its body. Measured: a page takes 1.9 µs of a processor an entry, and 1.4 ns a byte.
ENTRY_BYTES = 1400

#: Seconds after an entry was written for which appends count as under way.
BUSY_S = 1.0

#: Page size beside appends: about a millisecond of a processor. With 1 MiB the p99 of appends was twice as high.
BUSY_PAGE_BYTES, BUSY_PAGE_ROWS = 192 << 10, 384


#: Longest delay of a page, however many read: clients ask another server after a second.
HOLD_S_MAX = 0.25


class BulkPace(Pace):
    """Rate limit of the bulk reads of all logs of a server. ``moved_s``: when an entry was last written in one."""

    def __init__(self, bytes_per_s: int) -> None:
        super().__init__(bytes_per_s, HOLD_S_MAX)
        self.moved_s = float("-inf")


class Size(NamedTuple):
    """Upper bounds of a page."""

    bytes: int
    rows: int


def weight_of(ask: Read | ReadColumns, page: Page | ColumnPage) -> int:
    """Cost of making a page, in bytes; 0 if it is no bulk read. A page of one client's payloads counts as a whole one:
    they were searched among others."""
    if isinstance(page, Page):
        return 0
    entries = BUSY_PAGE_ROWS if ask.client else len(page.ids) // LONG_BYTES
    return len(page.bodies) + ENTRY_BYTES * entries


class Bulk:
    """Rate limit of a log's bulk reads; ``pace``: of all logs of the server. ``last_id``: the last entry written here.
    """

    def __init__(self, pace: BulkPace, last_id: int) -> None:
        self._pace = pace
        self._seen_id = last_id

    def notice(self, last_id: int, now_s: float) -> None:
        """Note whether an entry was written; called when a mark has moved, at ``now_s`` of Trio's clock."""
        if last_id != self._seen_id:
            self._seen_id, self._pace.moved_s = last_id, now_s

    def _busy(self) -> bool:
        return self._pace.bytes_per_s > 0 and trio.current_time() - self._pace.moved_s < BUSY_S

    def size(self, ask: Read | ReadColumns, bytes_max: int) -> Size:
        """Size of the next page for a client that would take ``bytes_max``."""
        if isinstance(ask, ReadColumns) and self._busy():
            return Size(min(bytes_max, BUSY_PAGE_BYTES), BUSY_PAGE_ROWS)
        return Size(bytes_max, PAGE_ROWS_MAX)

    async def keep(self, weight: int) -> None:
        """Wait as the rate demands, before a page of that weight is sent."""
        if self._busy():
            await self._pace.keep(weight)
