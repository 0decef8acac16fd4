"""How fast what may wait goes, so that what may not keeps its latency."""

from __future__ import annotations

import math

import trio

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
