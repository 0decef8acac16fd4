"""The log in memory, and the log's clock: the time that a leader gives its next entry (rules.md#entry-time).

Laws of the log:

* ``runs`` holds (term, first id) of every run of one term since the base, ascending. So the term of any id is known
  without the disk, and matching (R12) never waits for it.
* Up to ``stable_id`` *these* entries are on our disk. An expunge lowers what writes under way will prove, so a late
  completion never vouches for entries that replaced those written (the A-B-A case).
* The tail always holds the entries that are not stable yet. Stable ones stay in it while it is below
  ``tail_bytes_max`` (bodies, and a fixed cost an entry), give or take a quarter.

Laws of the clock:

* It never goes back. It follows the lower median of the voters' clocks, so that no single wrong clock moves it.
* While the log is ahead of the clocks, because they were ahead when earlier entries were made, it goes on at `SLOW` of
  real time. What ends by entry time (leases, sessions) then takes twice as long, and nothing waits until real time has
  caught up.
* If the median leaps ahead by more than `LEAP_MS` against this process's monotonic clock, it is not believed until an
  operator says so: time goes on by the monotonic clock. A leap is only judged by a process that has seen the clocks
  agree with the log, and that has run for `SETTLE_S`: after a start, clocks may still be set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from .disk import Base
from .entries import Entry

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
        self._line_ms, self._line_s = float(last_time_ms), now_s

    def heard(self, now_s: float, wall_ms: int, time_ms: int) -> None:
        """Note an entry of ``time_ms`` from a leader. Our own clock, ``wall_ms``, is trusted from now on if both agree:
        should this server lead, it knows how late it is."""
        self._line_ms, self._line_s = float(time_ms), now_s
        if abs(time_ms - wall_ms) <= LEAP_MS and now_s - self._started_s >= SETTLE_S:
            self._seen = float(wall_ms), now_s

    def slept(self, asleep_s: float) -> None:
        """Note that this host was suspended for so long, and its monotonic clock with it."""
        if self._seen is not None:
            self._seen = self._seen[0] + asleep_s * 1000, self._seen[1]

    def accept(self) -> None:
        """Believe the clocks, wherever they are: an operator says so."""
        self._seen, self.leap_ms = None, 0

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
        if now_s - self._started_s >= SETTLE_S and median_ms >= self.line_ms(now_s) - LEAP_MS:
            self._seen = float(median_ms), now_s  # else one of the two is wrong, and it is not known which
        return median_ms

    def now_ms(self, now_s: float, wall_ms: int) -> int:
        """The log's time now, as far as this server can tell, by its own clock ``wall_ms``: for the ages of entries."""
        own_ms = float(wall_ms)
        if self._seen is not None:
            due_ms = self._seen[0] + (now_s - self._seen[1]) * 1000
            own_ms = due_ms if wall_ms > due_ms + LEAP_MS else wall_ms
        return int(max(own_ms, self.line_ms(now_s)))

    def next_ms(self, now_s: float, median_ms: int, last_time_ms: int) -> int:
        """The time of the next entry; the one before has ``last_time_ms``."""
        time_ms = max(self.look(now_s, median_ms), self.line_ms(now_s), last_time_ms)
        self._line_ms, self._line_s = time_ms, now_s
        return int(time_ms)


#: A field by its place, looked up in C: this runs over every entry.
_BODY = itemgetter(Entry._fields.index("body"))
SLICE_ENTRIES_MAX = 8192
ENTRY_OVERHEAD_BYTES = 400  # a tuple of twelve, its integers and bytes objects, roughly


class _Writing:
    """A write under way: its number, the last id that it proves, the bytes of its bodies, and the monotonic time at
    which it was handed to the writer."""

    __slots__ = ("bodies_bytes", "handed_s", "last_id", "number")

    def __init__(self, number: int, last_id: int, bodies_bytes: int, handed_s: float) -> None:
        self.number = number
        self.last_id = last_id
        self.bodies_bytes = bodies_bytes
        self.handed_s = handed_s


class Log:
    """Entries with ids from ``base_id + 1`` to ``last_id``; those up to ``base_id`` were cleaned.

    ``generation`` counts expunges and installs: entries loaded from disk in an earlier one may be gone.
    ``writing_bytes``: bodies handed to the writer that are not yet on disk.
    """

    def __init__(self, tail_bytes_max: int) -> None:
        self.tail_bytes_max = tail_bytes_max
        self.base_id = 0
        self.base_term = 0
        self.base_next_lsn = 1
        self.last_id = 0
        self.last_term = 0
        self.last_time_ms = 0
        self.next_lsn = 1
        self.stable_id = 0
        self.runs: list[tuple[int, int]] = []
        self._run_ids: list[int] = []
        self.generation = 0
        self._tail: list[Entry] = []
        self._tail_first = 1
        self._tail_bytes = 0
        self._groups: deque[tuple[int, int]] = deque()  # (last id, bytes) of entries appended, and dropped, together
        self.writes: deque[_Writing] = deque()
        self.writing_bytes = 0  # bytes of bodies handed out to be written, not yet on disk
        self._slices: dict[int, tuple[list[Entry], int]] = {}

    def restore(
        self, base: Base, runs: Sequence[tuple[int, int]], last_id: int, last_term: int, last_time_ms: int,
        next_lsn: int,
    ) -> None:
        """Begin with the log that is on disk: all of it is stable, none of it is in the tail."""
        self.base_id, self.base_term, _, self.base_next_lsn = base
        self.runs = list(runs)
        self._run_ids = [first for _, first in runs]
        self.last_id = self.stable_id = last_id
        self.last_term, self.last_time_ms, self.next_lsn = last_term, last_time_ms, next_lsn
        self._tail_first = last_id + 1

    def term_at(self, id: int) -> int | None:
        """The term of entry ``id``, from the base on; None beyond the end, and below the base, where terms are
        forgotten."""
        if id > self.last_id or id < self.base_id:
            return None
        if id == self.base_id:
            return self.base_term
        return self.runs[bisect_right(self._run_ids, id) - 1][0]

    def run_at(self, id: int) -> tuple[int, int]:
        """(term, first id) of the run that holds ``id``, which must be in the log above the base; a run that began
        below the base has its first id there."""
        return self.runs[bisect_right(self._run_ids, id) - 1]

    def last_id_of_term(self, term: int) -> int | None:
        """The last id of ``term``, None if the log has no entry of it."""
        at = bisect_right(self.runs, (term, self.last_id + 1)) - 1
        if at < 0 or self.runs[at][0] != term:
            return self.base_id if term == self.base_term and self.base_id else None
        return self.runs[at + 1][1] - 1 if at + 1 < len(self.runs) else self.last_id

    def append(self, entries: Sequence[Entry], bodies_bytes: int) -> list[tuple[int, int]]:
        """Add entries at the end, whose ids must follow on; ``bodies_bytes``: of all their bodies. Returns the runs
        that begin among them."""
        new_runs = []
        first, last = entries[0], entries[-1]
        if first.term == last.term:
            if first.term != self.last_term or not self.runs:
                new_runs.append((first.term, first.id))
        else:
            term = self.last_term if self.runs else -1
            for entry in entries:
                if entry.term != term:
                    term = entry.term
                    new_runs.append((term, entry.id))
        for run in new_runs:
            self.runs.append(run)
            self._run_ids.append(run[1])
        self._tail.extend(entries)
        size = bodies_bytes + ENTRY_OVERHEAD_BYTES * len(entries)
        self._tail_bytes += size
        self._groups.append((last.id, size))
        self.last_id, self.last_term, self.last_time_ms = last.id, last.term, last.time_ms
        self.next_lsn = last.lsn + last.count
        if self._slices:
            self._slices.clear()
        if self._tail_bytes > self.tail_bytes_max + self.tail_bytes_max // 4:
            self._trim()
        return new_runs

    def expunge(self, from_id: int) -> None:
        """Delete every entry with id >= ``from_id``. ``next_lsn`` and ``last_time_ms`` are wrong until the append that
        must follow at once."""
        self.generation += 1
        while self._run_ids and self._run_ids[-1] >= from_id:
            self._run_ids.pop()
            self.runs.pop()
        keep = max(0, from_id - self._tail_first)
        self._tail_bytes -= sum(len(e.body) + ENTRY_OVERHEAD_BYTES for e in self._tail[keep:])
        del self._tail[keep:]
        self._groups = deque([(self._tail_first + keep - 1, self._tail_bytes)] if self._tail else [])
        self._tail_first = min(self._tail_first, from_id)
        self._slices.clear()
        self.last_id = from_id - 1
        self.last_term = self.runs[-1][0] if self.runs else self.base_term
        self.stable_id = min(self.stable_id, self.last_id)
        for write in self.writes:
            write.last_id = min(write.last_id, self.last_id)

    def install(self, base: Base) -> None:
        """Begin anew, empty, after ``base``. Writes under way vouch for nothing beyond it."""
        self.generation += 1
        self.restore(base, [], base.id, base.term, base.time_ms, base.next_lsn)
        self._tail, self._tail_bytes, self._groups = [], 0, deque()
        self._slices.clear()
        for write in self.writes:
            write.last_id = min(write.last_id, base.id)

    def clean(self, base: Base) -> None:
        """Drop every entry up to the base, all of which must be stable."""
        while self.runs and (self._run_ids[1] - 1 if len(self.runs) > 1 else self.last_id) <= base.id:
            self.runs.pop(0)
            self._run_ids.pop(0)
        self.base_id, self.base_term, _, self.base_next_lsn = base
        gone = min(max(0, base.id + 1 - self._tail_first), len(self._tail))
        if gone:
            self._tail_bytes -= sum(len(e.body) + ENTRY_OVERHEAD_BYTES for e in self._tail[:gone])
            del self._tail[:gone]
            self._slices.clear()
            last_id = self._tail_first + gone + len(self._tail) - 1
            self._groups = deque([(last_id, self._tail_bytes)] if self._tail else [])
        self._tail_first = max(self._tail_first, base.id + 1)

    def entry(self, id: int) -> Entry | None:
        """Entry ``id`` if it is in the tail, else None."""
        at = id - self._tail_first
        return self._tail[at] if 0 <= at < len(self._tail) else None

    def between(self, first_id: int, last_id: int) -> list[Entry]:
        """The entries from ``first_id`` to ``last_id`` that are in the tail."""
        return self._tail[max(0, first_id - self._tail_first) : max(0, last_id + 1 - self._tail_first)]

    def not_on_disk(self, upto_id: int) -> list[Entry]:
        """The entries up to ``upto_id`` that are not known to be on our own disk yet; the tail always holds them."""
        return self.between(self.stable_id + 1, upto_id)

    def slice(self, first_id: int, bytes_max: int) -> tuple[list[Entry], int] | None:
        """Entries from ``first_id`` on, at least one, with up to ``bytes_max`` of bodies, and the bytes of those; None
        if the tail does not reach so far back.

        Peers at the same place get the same list object, so that the shell encodes it once.
        """
        cached = self._slices.get(first_id)
        if cached is not None and cached[1] <= bytes_max:
            return cached
        at = first_id - self._tail_first
        if at < 0:
            return None
        chosen = self._tail[at : at + SLICE_ENTRIES_MAX]
        size = sum(map(len, map(_BODY, chosen)))
        if size > bytes_max:
            size = 0
            for count, entry in enumerate(chosen):
                size += len(entry.body)
                if size > bytes_max and count:
                    del chosen[count:]
                    size -= len(entry.body)
                    break
        self._slices[first_id] = (chosen, size)
        return chosen, size

    def handed_to_disk(self, number: int, bodies_bytes: int = 0, now_s: float = 0.0) -> None:
        """Note that write ``number``, up to the present end of the log, was handed to the writer at ``now_s``;
        ``bodies_bytes``: the size of its bodies."""
        self.writes.append(_Writing(number, self.last_id, bodies_bytes, now_s))
        self.writing_bytes += bodies_bytes

    def oldest_write(self, after: int = 0) -> _Writing | None:
        """The oldest write under way, of those with a number above ``after``; None if there is none."""
        writes = self.writes
        if not writes or writes[0].number > after:
            return writes[0] if writes else None
        return next((write for write in writes if write.number > after), None)

    def persisted(self, number: int) -> None:
        """Note that every write up to ``number`` is on disk."""
        while self.writes and self.writes[0].number <= number:
            write = self.writes.popleft()
            self.stable_id = max(self.stable_id, write.last_id)
            self.writing_bytes -= write.bodies_bytes

    def stable_after(self, number: int) -> int:
        """The value that ``stable_id`` will have once every write up to ``number`` is on disk."""
        stable_id = self.stable_id
        for write in self.writes:
            if write.number > number:
                break
            stable_id = max(stable_id, write.last_id)
        return stable_id

    def _trim(self) -> None:
        """Drop stable entries from the front of the tail until it is within its bound, a group at a time."""
        groups, size, first = self._groups, self._tail_bytes, self._tail_first
        while size > self.tail_bytes_max and len(groups) > 1 and groups[0][0] <= self.stable_id:
            last_id, group_bytes = groups.popleft()
            size -= group_bytes
            first = last_id + 1
        del self._tail[: first - self._tail_first]
        self._tail_first = first
        self._tail_bytes = size
