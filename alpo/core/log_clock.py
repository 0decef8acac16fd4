"""The log's clock: the time that a leader gives its next entry (rules.md#entry-time).

Laws:

* It never goes back. It follows the lower median of the voters' clocks, so that no single wrong clock moves it.
* While the log is ahead of the clocks, because they were ahead when earlier entries were made, it goes on at `SLOW` of
  real time. What ends by entry time (leases, sessions) then takes twice as long, and nothing waits until real time has
  caught up.
* If the median leaps ahead by more than `LEAP_MS` against this process's monotonic clock, it is not believed until an
  operator says so: time goes on by the monotonic clock. A leap is only judged by a process that has seen the clocks
  agree with the log, and that has run for `SETTLE_S`: after a start, clocks may still be set.
"""

from __future__ import annotations

LEAP_MS = 3_600_000
SETTLE_S = 600.0
SLOW = 0.5
#: Milliseconds that the log must be ahead of the clocks before a leader tells of it.
AHEAD_TOLD_MS = 60_000


class LogClock:
    """The log's clock as one process knows it. All ``now_s`` are its monotonic clock, all ``_ms`` are since 1970."""

    def __init__(self) -> None:
        self._started_s = 0.0
        # the log's time as of the last entry, and when that came or was made; it goes on from there at `SLOW`
        self._line_ms, self._line_s = 0.0, 0.0
        self._seen: tuple[float, float] | None = None  # clocks that agreed with the log, and when; None: none yet
        #: Milliseconds by which the voters' clocks have leapt ahead of what is believed; 0: they are believed.
        self.leap_ms = 0
        #: True from the event that reports a leap, or a log that is ahead, to the event that reports its end.
        self.told_leap = self.told_ahead = False

    def start(self, now_s: float, last_time_ms: int) -> None:
        """Begin, as the process does, with a log that ends at ``last_time_ms``."""
        self._started_s = now_s
        self._line_ms, self._line_s = last_time_ms, now_s

    def heard(self, now_s: float, wall_ms: int, time_ms: int) -> None:
        """Note an entry of ``time_ms`` from a leader. Our own clock, ``wall_ms``, is trusted from now on if both agree:
        should this server lead, it knows how late it is."""
        self._line_ms, self._line_s = time_ms, now_s
        if abs(time_ms - wall_ms) <= LEAP_MS:
            self._trust(now_s, wall_ms)

    def slept(self, asleep_s: float) -> None:
        """Note that this host was suspended for so long, and its monotonic clock with it."""
        if self._seen is not None:
            self._seen = self._seen[0] + asleep_s * 1000, self._seen[1]

    def accept(self) -> None:
        """Believe the clocks, wherever they are: an operator says so."""
        self._seen, self.leap_ms = None, 0

    def _trust(self, now_s: float, clock_ms: float) -> None:
        if now_s - self._started_s >= SETTLE_S:
            self._seen = clock_ms, now_s

    def line_ms(self, now_s: float) -> float:
        """The log's time if it is ahead of the clocks."""
        return self._line_ms + max(0.0, now_s - self._line_s) * 1000 * SLOW

    def look(self, now_s: float, median_ms: int) -> float:
        """The time by the voters' clocks, as far as they are believed; notes whether they are."""
        due_ms = None if self._seen is None else self._seen[0] + (now_s - self._seen[1]) * 1000
        if due_ms is not None and median_ms > due_ms + LEAP_MS:
            self.leap_ms = int(median_ms - due_ms)
            return due_ms
        self.leap_ms = 0
        if median_ms >= self.line_ms(now_s) - LEAP_MS:  # else one of the two is wrong, and it is not known which
            self._trust(now_s, median_ms)
        return median_ms

    def now_ms(self, now_s: float, wall_ms: int) -> int:
        """The log's time now, as far as this server can tell, by its own clock ``wall_ms``: for the ages of entries."""
        own_ms: float = wall_ms
        if self._seen is not None:
            due_ms = self._seen[0] + (now_s - self._seen[1]) * 1000
            own_ms = due_ms if wall_ms > due_ms + LEAP_MS else wall_ms
        return int(max(own_ms, self.line_ms(now_s)))

    def next_ms(self, now_s: float, median_ms: int, last_time_ms: int) -> int:
        """The time of the next entry; the one before has ``last_time_ms``."""
        time_ms = max(self.look(now_s, median_ms), self.line_ms(now_s), last_time_ms)
        self._line_ms, self._line_s = time_ms, now_s
        return int(time_ms)
