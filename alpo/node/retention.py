"""Retention: what this server keeps of its log, the lag of cursors that need more, the task that cleans the rest (R19,
R20), and how full the disk is (`alpo.core.disk_space` decides what follows).

Laws of cleaning:

* Only the core cleans. This task asks; the core grants no more than what all members hold (R19).
* What a reader's cursor needs stays, until the cursor lags further than the policy allows: then the leader drops it.
* Trimmed payloads are always cleaned; those beyond the limits of age, size or number only if the policy has limits.
* One chunk is cleaned at a time. The next follows when the last is on disk and the disk has rested: appends continue
  meanwhile. A slow chunk makes the next one smaller.
* Ids are searched in a reader's thread. A store that cannot be read does not stop the server (its reads fail too).
* A lag in bytes is an estimate: the cursor's share, by entries, of the data file. A lag in seconds is the age of the
  first payload that the reader has not had. Both are 0 at the end of the log.

Laws of space:

* Free pages in the data file count as free space, above a reserve that must be free on the disk itself: for votes, for
  the WAL, and for cleaning.
* After the free space fell below a mark, it must rise well above it again: so a disk near its mark does not flap.
* A store whose files were removed or replaced ends the server: nobody would find what it acknowledges.
* A write that found the disk full means no space at all, whatever the file system says. After such a write, and after a
  slow one, the disk is checked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog
import trio

from alpo.core.messages import Room
from alpo.core.ready import Clean, Space
from alpo.core.replica import Replica
from alpo.core.requests import Code, CursorsAre, DropCursor, ListCursors, Refused, Reply
from alpo.core.settings import size_text
from alpo.storage.interface import DamagedStore, Store, StoreError, StoreGone, Volume
from alpo.storage.writer import WriterStats
from alpo.wire import requests as w

from .client_connection import ClientConnection
from .driver import Driver, wall_ms
from .reads import Reads
from .scrub import Scrubber, unreadable
from .threads import in_thread


class Lag(NamedTuple):
    """A cursor's position and lag; ``upto_id``: it needs no entry up to there."""

    name: str
    lsn: int
    upto_id: int
    lag_bytes: int
    lag_s: float


def lags(
    store: Store, cursors: Iterable[tuple[str, int]], base_id: int, end_id: int, now_ms: int | None = None
) -> list[Lag]:
    """The lag of each cursor behind entry ``end_id``, in a log that begins after ``base_id``. ``now_ms``: the log's
    time; None: this server's clock. For a thread. Raises `StoreError`."""
    found: list[Lag] = []
    live_bytes, now_ms = store.live_bytes(), wall_ms() if now_ms is None else now_ms
    for name, lsn in cursors:
        id = store.find_lsn(lsn, end_id)
        head = store.entry_head(id) if id <= end_id else None
        if head is None:
            found.append(Lag(name, lsn, end_id, 0, 0.0))
            continue
        share = (end_id - id + 1) / max(1, end_id - base_id)
        found.append(Lag(name, lsn, id - 1, round(live_bytes * min(1.0, share)), max(0, now_ms - head[0]) / 1000))
    return found


class Nobody:
    """Origin of the server's own requests to its core; ignores the answer."""

    def answer(self, reply: Reply) -> None:
        """Ignore the reply; its effect shows in the log."""

    def flush(self) -> None:
        """Do nothing: no replies are collected."""


class _Wait:
    """Origin of one `ListCursors`, with the task that waits for its answer."""

    def __init__(self) -> None:
        self._reply: CursorsAre | Refused | None = None
        self._event = trio.Event()

    def answer(self, reply: Reply) -> None:
        assert isinstance(reply, CursorsAre | Refused)
        self._reply = reply
        self._event.set()

    def flush(self) -> None:
        """Do nothing: no replies are collected."""

    async def wait(self) -> CursorsAre | Refused:
        await self._event.wait()
        assert self._reply is not None
        return self._reply


async def serve_list(
    driver: Driver, store: Store, reads: Reads, scrubber: Scrubber, client: ClientConnection, request: int
) -> None:
    """Answer a client's ``request`` with all cursors and their lags."""
    wait = _Wait()
    driver.post(ListCursors(wait))
    driver.kick()
    reply = await wait.wait()
    if isinstance(reply, Refused):
        client.refuse(request, reply.code, number=reply.number, leader=reply.leader, detail=reply.detail)
        return
    replica: Replica = driver.replica
    look = partial(lags, store, reply.rows, replica.log.base_id, replica.guaranteed_id)
    try:
        rows = await scrubber.past_damage(partial(reads.ask_disk, look))
    except StoreError as error:
        client.refuse(request, Code.NOT_READY, detail=unreadable(error))
        return
    client.settle(w.CursorTable(request, [(r.name, r.lsn, r.lag_bytes, round(r.lag_s * 1000)) for r in rows]))


#: Seconds between two looks for what can be cleaned, and how many times that while a log is kept whole.
LOOK_EVERY_S, _WHOLE_TIMES = 1.0, 5
#: Entries in one chunk. The first is small: the size of the entries is not known yet.
CHUNK_ENTRIES_MIN, CHUNK_ENTRIES_MAX = 64, 2_000
#: Duration beyond which, plus so many usual commits, a chunk halves the next one; else it is doubled.
CHUNK_S_MAX, COMMITS_MAX = 0.03, 2.0
#: Rest after a chunk: at least so many seconds, and so many times the chunk's duration.
REST_S_MIN, REST_TIMES = 0.02, 2.0
#: Servers named in one reason why cleaning waits.
_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention policy of a server, by the log's clock and its own disk; None: no limit. Entries beyond any limit may
    be cleaned."""

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_entries: int | None = None
    #: Lags, each with a limit: the leader drops a cursor that holds cleaning back and exceeds either.
    cursor_lag_bytes: int | None = 16 << 30
    cursor_lag_s: float | None = 7 * 24 * 3600.0

    @property
    def limits(self) -> bool:
        """True if entries that were not trimmed may be cleaned."""
        return self.max_age_s is not None or self.max_bytes is not None or self.max_entries is not None


#: The default: only trimmed entries are cleaned.
KEEP_ALL = Retention()


class Cleaner:
    """Task that asks the core to clean. ``commit_s`` returns the present duration of a commit in seconds."""

    def __init__(self, driver: Driver, store: Store, policy: Retention, commit_s: Callable[[], float]) -> None:
        self._driver = driver
        self._replica: Replica = driver.replica
        self._store = store
        self.policy = policy
        self._commit_s = commit_s
        self._chunk = CHUNK_ENTRIES_MIN
        self._wanted_id = 0  # id up to which the last look found entries to clean
        self._noted_beat = -1.0  # multiple of `LOOK_EVERY_S` in which the waiting was last noted
        #: Reasons why less is cleaned than could be, a sentence each.
        self.waits: list[str] = []
        self._holder: Lag | None = None  # the cursor that holds cleaning back
        #: The kind that holds cleaning back, "member" or "cursor" ("" nobody does), and since when, by Trio's clock.
        self.held = ("", 0.0)

    async def run(self) -> None:
        """Clean when due, until cancelled."""
        while True:
            try:
                cleaned = await self._clean_chunk()
            except StoreError as error:
                self._driver.note("cannot_clean", why=str(error))
                cleaned = False
            if not cleaned:
                # Full seconds: all tasks that wait for them wake together, so an idle server wakes less often.
                every_s = LOOK_EVERY_S if self._may_clean() else _WHOLE_TIMES * LOOK_EVERY_S
                await trio.sleep_until((trio.current_time() // every_s + 1) * every_s)

    def _may_clean(self) -> bool:
        return self.policy.limits or self._replica.cleaning.trim_lsn > 1

    async def _clean_chunk(self) -> bool:
        """Clean one chunk, then rest. False if nothing can be cleaned now. Raises `StoreError`."""
        r = self._replica
        base_id = r.log.base_id
        upto_id = base_id
        if self._may_clean():
            upto_id = await in_thread(
                self._find, r.guaranteed_id, base_id, r.cleaning.trim_lsn, self._log_now_ms()
            )
        await self._look_at_cursors(upto_id)
        beat = trio.current_time() // LOOK_EVERY_S
        if beat != self._noted_beat:
            self._noted_beat = beat
            self._note(upto_id)
        chunk_id = min(upto_id, r.cleaning.cleanable_id, base_id + self._chunk)
        if self._holder is not None:
            chunk_id = min(chunk_id, self._holder.upto_id)
        if chunk_id <= base_id:
            return False
        head = await in_thread(self._store.entry_head, chunk_id)
        if head is None:
            raise DamagedStore(f"entry {chunk_id} is missing", chunk_id)
        time_ms, lsn, count = head
        began_s = trio.current_time()
        self._driver.post(Clean(chunk_id, time_ms, lsn + count))
        self._driver.pump()
        await self._driver.on_disk()
        took_s = trio.current_time() - began_s
        if took_s > CHUNK_S_MAX + COMMITS_MAX * self._commit_s():
            self._chunk = max(CHUNK_ENTRIES_MIN, self._chunk // 2)
        else:
            self._chunk = min(CHUNK_ENTRIES_MAX, self._chunk * 2)
        await trio.sleep(max(REST_S_MIN, REST_TIMES * took_s))
        return r.log.base_id > base_id

    # -- what may go ------------------------------------------------------------------------------------

    def _log_now_ms(self) -> int:
        """The log's time: it may be ahead of this server's clock, and that may have leapt."""
        return self._replica.log_clock.now_ms(trio.current_time(), wall_ms())

    def _find(self, end_id: int, base_id: int, trim_lsn: int, now_ms: int) -> int:
        """The last id of ``base_id + 1`` … ``end_id`` that need not be kept at ``now_ms``, the log's time; ``base_id``
        if all must. Runs in a thread."""
        store, policy = self._store, self.policy
        upto_id = base_id
        if end_id <= base_id:
            return base_id
        if trim_lsn > 1:
            upto_id = max(upto_id, store.find_lsn(trim_lsn, end_id) - 1)
        if policy.max_age_s is not None:
            oldest_ms = now_ms - round(policy.max_age_s * 1000)
            upto_id = max(upto_id, store.find_time(oldest_ms, end_id) - 1)
        if policy.max_entries is not None:
            upto_id = max(upto_id, end_id - policy.max_entries)
        if policy.max_bytes is not None and store.live_bytes() > policy.max_bytes:
            upto_id = max(upto_id, min(end_id, base_id + self._chunk))
        return upto_id

    async def _look_at_cursors(self, upto_id: int) -> None:
        """Find the cursor that holds back the most, if any; if it lags too far, have the leader drop it."""
        r, policy = self._replica, self.policy
        lowest = min(r.cursors.now.items(), key=lambda cursor: cursor[1], default=None)
        self._holder = None
        if lowest is None or upto_id <= r.log.base_id:
            return
        (lag,) = await in_thread(
            lags, self._store, [lowest], r.log.base_id, r.guaranteed_id, self._log_now_ms()
        )
        if lag.upto_id >= upto_id:
            return
        self._holder = lag
        too_far = (policy.cursor_lag_bytes is not None and lag.lag_bytes > policy.cursor_lag_bytes) or (
            policy.cursor_lag_s is not None and lag.lag_s > policy.cursor_lag_s
        )
        if too_far and r.leadership is not None:
            self._driver.post(DropCursor(Nobody(), lag.name, lag.lsn, "lag"))
            self._driver.pump()

    def _note(self, upto_id: int) -> None:
        """Record what holds cleaning back, if something could already have been cleaned at the look before."""
        cleanable_id, holder = self._replica.cleaning.cleanable_id, self._holder
        if holder is not None:
            cleanable_id = min(cleanable_id, holder.upto_id)
        held = max(cleanable_id, self._replica.log.base_id) < min(self._wanted_id, upto_id)
        self._wanted_id = upto_id
        if held and holder is not None and cleanable_id == holder.upto_id:
            waits = [f"cleaning waits at LSN {holder.lsn}: the reader of cursor {holder.name} has not come further"]
        else:
            waits = reasons(self._replica, cleanable_id, upto_id) if held else []
        by = "" if not waits else "cursor" if "the reader of cursor" in waits[0] else "member"
        if by != self.held[0]:
            self.held = by, trio.current_time()
        if bool(waits) != bool(self.waits):
            self._driver.note("cleaning_waits" if waits else "cleaning_goes_on", cleanable_id=cleanable_id, why=waits)
        self.waits = waits


def reasons(replica: Replica, cleanable_id: int, wanted_id: int) -> list[str]:
    """Reasons why entries up to ``wanted_id`` cannot be cleaned although nobody needs to keep them (R18, R19)."""
    if replica.damage.binds:
        return [f"cleaning waits at entry {cleanable_id}: entries on this server's disk are damaged"]
    if replica.log.stable_id < wanted_id and replica.log.stable_id == cleanable_id:
        return [f"cleaning waits at entry {cleanable_id}: this server's own disk holds no more"]
    leadership = replica.leadership
    if leadership is None:
        who = f"server {replica.leader_id} leads and knows which" if replica.leader_id else "there is no leader"
        return [f"cleaning waits at entry {cleanable_id}: not every member is known to hold more ({who})"]
    behind = [peer for peer in leadership.peers.values() if peer.match_id < wanted_id]
    if not behind:
        return [f"cleaning waits at entry {cleanable_id}: a change of the members is under way"]
    return [
        f"cleaning waits at entry {cleanable_id}: server {peer.who.id} is not known to hold more than {peer.match_id}"
        for peer in sorted(behind, key=lambda peer: peer.match_id)[:_NAMED_MAX]
    ]


log = structlog.get_logger()

#: Seconds between two checks: usually; when space is or may soon be low; when so much is free that it cannot be filled
#: before the next check.
SPACE_EVERY_S, SPACE_CLOSELY_S, SPACE_SELDOM_S = 1.0, 0.1, 5.0
_CLOSE_MARKS = 4
#: Parts of a log's ``bytes_max``: above the first it is looked at as closely as a disk that fills up, and below the
#: second a log that was full takes appends again.
_NEAR_PART, _AGAIN_PART = 0.75, 0.95
_FAR_BYTES = 16 << 30
#: The reserve, as a part of the low-water mark; the distance above a mark at which it counts as cleared, as a part of
#: it.
RESERVE_PART, MARGIN_PART = 4, 4


def judge(before: Room, low_water_bytes: int, disk_free_bytes: int, file_free_bytes: int) -> Room:
    """The disk's new state, given the one ``before``. ``file_free_bytes``: free pages in the data file."""
    def above(mark_bytes: int, crossed: bool) -> int:
        return mark_bytes + mark_bytes // MARGIN_PART if crossed else mark_bytes

    if disk_free_bytes < above(low_water_bytes // RESERVE_PART, before is Room.NONE):
        return Room.NONE
    if disk_free_bytes + file_free_bytes < above(low_water_bytes, before is not Room.PLENTY):
        return Room.LOW
    return Room.PLENTY


class DiskWatch:
    """Task that checks the disk, and the size of the log, and tells the core. ``low_water_bytes`` 0: only failed writes
    count. ``looking``: bounds how many logs look at a time, which they do at the same times."""

    def __init__(
        self, driver: Driver, store: Store, stats: WriterStats, low_water_bytes: int,
        looking: trio.CapacityLimiter | None = None,
    ) -> None:
        self._looking = looking
        self._driver = driver
        self._store = store
        self._stats = stats
        self._low_water_bytes = low_water_bytes
        self._free_bytes = 0
        self._told = Room.PLENTY
        self._bytes_max = self._live_bytes = 0
        self._full_log = ""
        self._wanted = trio.Event()

    @property
    def room(self) -> Room:
        """The disk's state, as the core was last told."""
        return self._told

    def bound(self, bytes_max: int) -> None:
        """Have the log take no appends while its live entries are more; 0: no bound."""
        if bytes_max != self._bytes_max:
            self._bytes_max = bytes_max
            self.look_soon()

    def look_soon(self) -> None:
        """Request a check before the next one is due."""
        self._wanted.set()

    async def run(self) -> None:
        """Check until cancelled, or the store is gone."""
        while True:
            self._wanted = trio.Event()
            try:
                disk, file_free_bytes, self._live_bytes = await in_thread(self._look, limiter=self._looking)
            except StoreGone as error:
                return self._driver.failed(error)
            except StoreError as error:
                log.error("cannot_see_space", why=str(error))
            else:
                self._tell(disk, file_free_bytes)
            looked_s, pause_s = trio.current_time(), self._pause_s()
            with trio.move_on_at((looked_s // pause_s + 1) * pause_s):  # all logs look together
                await self._wanted.wait()
            if self._wanted.is_set():
                await trio.sleep_until(looked_s + SPACE_CLOSELY_S)

    def _pause_s(self) -> float:
        """Seconds until the next check if nobody requests an earlier one."""
        if self._told is not Room.PLENTY or self._free_bytes < _CLOSE_MARKS * self._low_water_bytes:
            return SPACE_CLOSELY_S
        if self._bytes_max:
            return SPACE_CLOSELY_S if self._live_bytes > _NEAR_PART * self._bytes_max else SPACE_EVERY_S
        far = self._free_bytes - self._low_water_bytes >= _FAR_BYTES
        return SPACE_SELDOM_S if far else SPACE_EVERY_S

    def _look(self) -> tuple[Volume, int, int]:
        self._store.check_in_place()
        live_bytes = self._store.live_bytes() if self._bytes_max else 0
        return self._store.volume(), self._store.free_bytes(), live_bytes

    def _tell(self, disk: Volume, file_free_bytes: int) -> None:
        self._free_bytes = disk.free_bytes + file_free_bytes
        room = Room.PLENTY
        if self._stats.full:
            room = Room.NONE
        elif disk.total_bytes:
            room = judge(self._told, self._low_water_bytes, disk.free_bytes, file_free_bytes)
        full = self._why_full()
        if (room, full) != (self._told, self._full_log) or room is not Room.PLENTY:
            self._told, self._full_log = room, full
            self._driver.post(Space(room, self._free_bytes, full))
            self._driver.kick()

    def _why_full(self) -> str:
        """The reason why the log takes no appends for its size; "" if it does. It is full until it is well below."""
        if not self._bytes_max or self._live_bytes <= self._bytes_max * (_AGAIN_PART if self._full_log else 1):
            return ""
        held, most = size_text(self._live_bytes), size_text(self._bytes_max)
        return f"the log holds {held}, and its bytes_max is {most}: trim it, or raise that"

    def fields(self) -> dict[str, Any]:
        """Status keys of disk space."""
        return {
            "room": self._told.name.lower(),
            "free_bytes": self._free_bytes,
            "low_water_bytes": self._low_water_bytes,
        }

    def remarks(self) -> list[str]:
        """Sentences for an operator; [] while there is enough space."""
        if self._full_log:
            return [f"it takes no appends: {self._full_log}", *self._of_disk()]
        return self._of_disk()

    def _of_disk(self) -> list[str]:
        if self._stats.full:
            return [f"no room for a write, which is tried again until there is: {self._stats.full}"]
        if self._told is Room.PLENTY:
            return []
        takes = "no entries" if self._told is Room.NONE else "no appends"
        marks = f"{size_text(self._free_bytes)} free, low-water mark {size_text(self._low_water_bytes)}"
        return [f"low on disk space: {marks}; it takes {takes}"]
