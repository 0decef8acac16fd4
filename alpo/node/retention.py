"""What this server keeps of its log, and the task that cleans the rest (R19, R20).

Laws:

* Nothing is cleaned but by the core, which is only asked, and grants no more than all members hold (R19).
* What a reader's cursor needs stays, until the cursor lags further than the policy allows: then the leader drops it.
* What was trimmed is let go always; what is older, larger or more than the policy allows, only if there is a policy.
* A chunk at a time, the next one when the last is on disk and the disk has had some rest: appends go on beside it. A
  chunk that took long makes the next one smaller.
* The ids are looked for in a reader's thread; a store that cannot be read stops no server (its reads fail too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from alpo.core.inputs import Clean, DropCursor
from alpo.core.replica import Replica
from alpo.storage.interface import DamagedStore, Store, StoreError

from .cursor_lag import Lag, Nobody, lags
from .driver import Driver, wall_ms

#: Between two looks at what may go.
LOOK_EVERY_S = 1.0
#: Entries of one chunk. It begins small, for nobody knows how large the entries are.
CHUNK_ENTRIES_MIN, CHUNK_ENTRIES_MAX = 64, 2_000
#: A chunk that took longer than this and so many usual commits halves the next one, else it is doubled.
CHUNK_S_MAX, COMMITS_MAX = 0.03, 2.0
#: Rest after a chunk: so long at least, and so many times what the chunk took.
REST_S_MIN, REST_TIMES = 0.02, 2.0
#: Servers named in one reason why cleaning waits.
_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class Retention:
    """What a server keeps, by its own clock and disk; None: no limit. What is over any limit may go."""

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_entries: int | None = None
    #: A cursor that holds cleaning back and lags further than either is dropped by the leader.
    cursor_lag_bytes: int | None = 16 << 30
    cursor_lag_s: float | None = 7 * 24 * 3600.0

    @property
    def limits(self) -> bool:
        """May anything go that nobody trimmed?"""
        return self.max_age_s is not None or self.max_bytes is not None or self.max_entries is not None


#: The default: only what was trimmed may go.
KEEP_ALL = Retention()


class Cleaner:
    """Asks the core to clean, when due. ``commit_s``: how long commits take at present, seconds."""

    def __init__(self, driver: Driver, store: Store, policy: Retention, commit_s: Callable[[], float]) -> None:
        self._driver = driver
        self._replica: Replica = driver.replica
        self._store = store
        self.policy = policy
        self._commit_s = commit_s
        self._chunk = CHUNK_ENTRIES_MIN
        self._wanted_id = 0  # what could go, as last looked
        self._noted_beat = -1.0  # the multiple of `LOOK_EVERY_S` in which it was last noted what waits
        #: Why less is cleaned than could be, a sentence a reason.
        self.waits: list[str] = []
        self._holder: Lag | None = None  # the cursor that holds back what could go

    async def run(self) -> None:
        """Clean on a schedule until cancelled."""
        while True:
            try:
                cleaned = await self._clean_chunk()
            except StoreError as error:
                self._driver.note("cannot_clean", why=str(error))
                cleaned = False
            if not cleaned:
                # Whoever waits for full seconds is woken with the others: an idle server wakes less often.
                await trio.sleep_until((trio.current_time() // LOOK_EVERY_S + 1) * LOOK_EVERY_S)

    async def _clean_chunk(self) -> bool:
        """One chunk and the rest after it. False: nothing may go just now. Raises `StoreError`."""
        r = self._replica
        base_id = r.log.base_id
        upto_id = base_id
        if self.policy.limits or r.cleaning.trim_lsn > 1:
            upto_id = await trio.to_thread.run_sync(self._find, r.guaranteed_id, base_id, r.cleaning.trim_lsn)
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
        head = await trio.to_thread.run_sync(self._store.entry_head, chunk_id)
        if head is None:
            raise DamagedStore(f"entry {chunk_id} is missing")
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

    def _find(self, end_id: int, base_id: int, trim_lsn: int) -> int:
        """The last id of ``base_id + 1`` … ``end_id`` that need not be kept; ``base_id`` if all must. In a thread."""
        store, policy = self._store, self.policy
        upto_id = base_id
        if end_id <= base_id:
            return base_id
        if trim_lsn > 1:
            upto_id = max(upto_id, store.find_lsn(trim_lsn, end_id) - 1)
        if policy.max_age_s is not None:
            oldest_ms = wall_ms() - round(policy.max_age_s * 1000)
            upto_id = max(upto_id, store.find_time(oldest_ms, end_id) - 1)
        if policy.max_entries is not None:
            upto_id = max(upto_id, end_id - policy.max_entries)
        if policy.max_bytes is not None and store.live_bytes() > policy.max_bytes:
            upto_id = max(upto_id, min(end_id, base_id + self._chunk))
        return upto_id

    async def _look_at_cursors(self, upto_id: int) -> None:
        """Which one holds back the most, if any does; too far behind, the leader drops it."""
        r, policy = self._replica, self.policy
        lowest = min(r.cursors.now.items(), key=lambda cursor: cursor[1], default=None)
        self._holder = None
        if lowest is None or upto_id <= r.log.base_id:
            return
        (lag,) = await trio.to_thread.run_sync(lags, self._store, [lowest], r.log.base_id, r.guaranteed_id)
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
        """Is something held back that could have gone at the look before this?"""
        cleanable_id, holder = self._replica.cleaning.cleanable_id, self._holder
        if holder is not None:
            cleanable_id = min(cleanable_id, holder.upto_id)
        held = max(cleanable_id, self._replica.log.base_id) < min(self._wanted_id, upto_id)
        self._wanted_id = upto_id
        if held and holder is not None and cleanable_id == holder.upto_id:
            waits = [f"cleaning waits at LSN {holder.lsn}: the reader of cursor {holder.name} has not come further"]
        else:
            waits = reasons(self._replica, cleanable_id, upto_id) if held else []
        if bool(waits) != bool(self.waits):
            self._driver.note("cleaning_waits" if waits else "cleaning_goes_on", cleanable_id=cleanable_id, why=waits)
        self.waits = waits


def reasons(replica: Replica, cleanable_id: int, wanted_id: int) -> list[str]:
    """Why entries up to ``wanted_id`` cannot go although nobody needs to keep them (R18, R19)."""
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
