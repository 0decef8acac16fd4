"""Background scrub: reads and checks the whole log, slowly, again and again (R31).

Laws:

* It reads short ranges, in a reader's thread, no faster than needed to pass over the log in the configured time
  (`threads.pass_bytes_per_s`), and at most at the configured rate.
* Damage is an alarm, once, and stays in status until a later look finds the entry sound, or it was cleaned. A damaged
  entry is never served or sent; the core decides what else follows (`alpo.core.damage`).
* An entry that any other reader finds damaged is checked at once, with or without a scrub: all that follows is the
  same. Readers wait for the sound copy (`Scrubber.past_damage`), as long as another server may have one.
* An entry rewritten from a peer's copy is checked as soon as it is on disk: only then does it count as sound. If
  entries stay damaged all the same, SQLite cannot write there: the store is lost (R30).
* After a restart, entries found damaged before count as damaged before anything is said, and are checked first; then
  the scrub continues where it was.
* Only a bounded number of damaged ids is listed, the lowest. While there were more, the log is not called sound before
  the rest has been checked.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import structlog
import trio

from alpo.core.ready import DamageFound
from alpo.storage.interface import DamagedStore, Scrubbed, Store, StoreError
from alpo.storage.scrub import DAMAGED_MAX

from .admission import DiskCare
from .driver import Driver, wall_ms
from .threads import SMALL_PART, Pace, in_thread, pass_bytes_per_s

log = structlog.get_logger()

STRETCH_BYTES = 64 << 10
#: Seconds until the next attempt when the store cannot be read; between two saves of the position.
RETRY_S, REMEMBER_S = 10.0, 300.0
#: Times that an entry is rewritten before the store is given up.
MENDED_MAX = 3
#: Damaged ids shown in status.
SHOWN_MAX = 100
#: Election timeouts for which a reader waits until a damaged entry is mended: for two members' copies. Damaged entries
#: that one read may meet.
MEND_TIMEOUTS, MET_MAX = 2, 8

T = TypeVar("T")


def unreadable(error: StoreError, what: str = "read") -> str:
    """Reason for not serving a read, for the asker. If a single entry is damaged, the reason names that entry."""
    if isinstance(error, DamagedStore) and error.id:
        return f"entry {error.id} is damaged on this server's disk, and no sound copy has come yet: {error}"
    return f"this server's store cannot be {what}: {error}"


class Scrubber:
    """Task that scrubs. ``pace``: of all logs of the server; ``now_ms`` returns the wall clock."""

    def __init__(
        self, driver: Driver, store: Store, care: DiskCare, pace: Pace | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._pace = pace or Pace(0)
        self._driver = driver
        self._store = store
        self._bytes_per_s = care.scrub_bytes_per_s
        self._pass_s = care.scrub_pass_s
        self._mark = care.mark
        self._now_ms = now_ms
        self._next_id = 1
        self._damaged: set[int] = set()
        self._unlisted_id = 0  # the first damaged id that was not listed; 0: none
        self._recalled: list[int] = []
        self._told: list[int] = []
        self._passes = 0
        self._ended_ms: int | None = None  # end of the last pass
        self._mended_count = 0  # entries mended since the start
        self._mended_ms: int | None = None  # when the last one was
        self._remembered_s = trio.current_time()
        self._mended: list[int] = []
        self._in_vain: dict[int, int] = {}  # id -> how often it was rewritten and stayed damaged
        self._suspects: dict[int, None] = {}  # entries that other readers found damaged, to be checked at once
        self._look = trio.Event()
        self._checked = trio.Event()  # set, and replaced, after entries were checked at once

    def suspect(self, damage: DamagedStore) -> None:
        """Take damage that some reader has met: an entry is checked at once."""
        if not damage.id:
            self._driver.note("read_failed", why=str(damage))
        elif damage.id not in self._damaged and len(self._suspects) < DAMAGED_MAX:
            self._suspects[damage.id] = None
            self._look.set()

    async def past_damage(self, read: Callable[[], Awaitable[T]]) -> T:
        """Await ``read()``; if it meets a damaged entry, wait for a sound copy from another member, and read again.
        Raises as ``read`` does: `DamagedStore` if no copy came in time."""
        for _ in range(MET_MAX):
            try:
                return await read()
            except DamagedStore as damage:
                self.suspect(damage)
                if not damage.id or not await self._until_sound(damage.id):
                    raise
        return await read()

    async def _until_sound(self, id: int) -> bool:
        """Wait until entry ``id`` was checked, and mended if it is damaged; False if that is not so in time."""
        replica = self._driver.replica
        with trio.move_on_after(MEND_TIMEOUTS * replica.cfg.election_timeout_s):
            while id in self._suspects or id in self._damaged:
                if id in self._damaged and not replica.members.other_replicas():
                    return False
                await self._checked.wait()
            return True
        return False

    def mended(self, ids: Sequence[int]) -> None:
        """Note entries that are about to be rewritten, to be checked once they are on disk."""
        self._mended.extend(ids)
        self._look.set()

    async def recall(self) -> None:
        """Load the findings from before a restart. Call before anything is said to other servers."""
        if self._mark is not None:
            known = await in_thread(self._mark.read)
            self._next_id, self._recalled, self._ended_ms = known
            self._damaged = self._of_the_log(self._recalled)
            self._tell()

    async def run(self) -> None:
        """Scrub until cancelled."""
        for id in self._recalled:
            await self._stretch(id, 1)
        if not self._bytes_per_s:
            await self._rest(math.inf)
        began_s = trio.current_time()
        while True:
            found = await self._stretch(self._next_id, STRETCH_BYTES)
            if found is None:
                await self._rest(RETRY_S)
                continue
            self._next_id = found.next_id
            await self._pace.keep(found.bytes)
            rest_s = await self._paid_for(found.bytes)
            if found.at_end:
                self._next_id = 1
                self._passes += 1
                self._ended_ms = self._now_ms()
                rest_s = max(rest_s, began_s + self._pass_s / SMALL_PART - trio.current_time())
                began_s = trio.current_time() + rest_s
            if found.at_end or trio.current_time() - self._remembered_s >= REMEMBER_S:
                await self._remember()
            await self._rest(rest_s)

    async def _paid_for(self, size_bytes: int) -> float:
        """Seconds to rest after reading ``size_bytes``."""
        try:
            log_bytes = await in_thread(self._store.live_bytes)
        except StoreError as error:
            log.error("cannot_scrub", why=str(error))
            return RETRY_S
        return size_bytes / pass_bytes_per_s(log_bytes, self._bytes_per_s, self._pass_s)

    async def _rest(self, rest_s: float) -> None:
        """Rest, but check suspects at once, and rewritten entries as soon as they are on disk."""
        until_s = trio.current_time() + rest_s
        while True:
            with trio.move_on_at(until_s):
                await self._look.wait()
            if not self._look.is_set():
                return
            ids, self._mended, self._look = self._mended, [], trio.Event()
            for id in list(self._suspects):
                await self._stretch(id, 1)
                del self._suspects[id]
            if ids:
                await self._driver.on_disk()
            for id in ids:
                if await self._stretch(id, 1) is not None:
                    self._heed_mended(id)
            self._checked.set()
            self._checked = trio.Event()

    def _heed_mended(self, id: int) -> None:
        if id not in self._damaged:
            self._in_vain.pop(id, None)
            self._mended_count += 1
            self._mended_ms = self._now_ms()
            return
        self._in_vain[id] = self._in_vain.get(id, 0) + 1
        if self._in_vain[id] == MENDED_MAX:
            self._driver.failed(DamagedStore(f"entry {id} was written anew {MENDED_MAX} times and is still damaged"))

    async def _stretch(self, first_id: int, bytes_max: int) -> Scrubbed | None:
        """Check one range and act on it; None if the store could not be read."""
        found = await self._look_at(first_id, bytes_max)
        while found is not None and self._unlisted_id and not self._damaged:
            from_id, self._unlisted_id = self._unlisted_id, 0
            further = await self._look_at(from_id, STRETCH_BYTES)
            if further is None:
                self._unlisted_id = from_id
                return None
            if not self._unlisted_id and not further.at_end:
                self._unlisted_id = further.next_id
            await trio.sleep(further.bytes / (self._bytes_per_s or STRETCH_BYTES))
        if found is not None and self._tell():
            await self._remember()
        return found

    async def _look_at(self, first_id: int, bytes_max: int) -> Scrubbed | None:
        try:
            found = await in_thread(self._store.scrub, first_id, bytes_max)
        except StoreError as error:
            log.error("cannot_scrub", why=str(error))
            return None
        kept = [id for id in self._damaged if not first_id <= id < found.next_id]
        known = sorted(self._of_the_log([*kept, *found.damaged]))
        self._damaged = set(known[:DAMAGED_MAX])
        if len(known) > DAMAGED_MAX:
            self._unlisted_id = min(self._unlisted_id or known[DAMAGED_MAX], known[DAMAGED_MAX])
        return found

    def _of_the_log(self, ids: Iterable[int]) -> set[int]:
        """Subset of ``ids`` that is still in the log: nothing else will ever be found sound."""
        of = self._driver.replica.log
        return {id for id in ids if of.base_id < id <= of.last_id}

    def _tell(self) -> bool:
        """Report the damaged ids to the core if they changed; True if so."""
        if sorted(self._damaged) == self._told:
            return False
        self._told = sorted(self._damaged)
        self._driver.post(DamageFound(tuple(self._told)))
        self._driver.pump()
        return True

    async def _remember(self) -> None:
        self._remembered_s = trio.current_time()
        if self._mark is not None:
            try:
                await in_thread(self._mark.write, self._next_id, self._told, self._ended_ms)
            except OSError as error:  # a full disk, perhaps: the next pass finds it again
                log.warning("cannot_remember_scrub", why=str(error))

    def fields(self) -> dict[str, Any]:
        """Status keys of the scrub."""
        return {
            "damaged": self._told[:SHOWN_MAX],
            "scrubbed_id": self._next_id - 1,
            "scrub_passes": self._passes,
            "scrub_ended_ms": self._ended_ms,
            "mended": self._mended_count,
            "mended_ms": self._mended_ms,
        }

    def remarks(self) -> list[str]:
        """A sentence for an operator if entries are damaged, else []."""
        if not self._told:
            return []
        ids = ", ".join(map(str, self._told[:10])) + (" …" if len(self._told) > 10 else "")
        return [f"its disk holds damaged entries, {len(self._told)} known: {ids}; it serves and sends none of them"]
