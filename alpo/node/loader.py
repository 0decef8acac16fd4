"""Reads from disk that the core asks for on behalf of other servers: entries, snapshots, copies of single entries.

Laws:

* A log that cannot be read stops the server; a damaged entry is not sent (R31), and is tried again later.
* Servers that are behind are served at a bounded rate, so that appends keep their latency; but not while appends wait
  for those very servers.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from alpo.core.disk import Load, LoadCopy, LoadSnapshot
from alpo.core.entries import Entry
from alpo.core.members import Identity
from alpo.core.ready import CopyLoaded, Loaded, SnapshotLoaded
from alpo.storage.interface import DamagedStore, Store, StoreError
from alpo.storage.scrub import ROW_BYTES, read_sound

from .driver import Driver
from .threads import Pace, in_thread

#: Seconds until entries that could not be read for a peer are tried again.
DAMAGED_RETRY_S = 1.0
#: Time without progress of the guaranteed mark after which appends count as waiting: longer than an append takes.
STUCK_S = 0.25


class CatchUpPace:
    """Rate limit for entries read for servers that are behind, all together, and for all logs that share ``pace``.

    ``state`` returns (guaranteed id, last id). While they differ and the first does not move, appends wait for a
    majority, perhaps for the very server that is catching up: then nothing is delayed.
    """

    def __init__(self, pace: Pace, state: Callable[[], tuple[int, int]]) -> None:
        self._pace = pace
        self._state = state
        self._guaranteed_id = -1
        self._moved_s = 0.0

    async def keep(self, entries: list[Entry]) -> None:
        """Wait as the rate demands, before ``entries`` are sent."""
        now_s = trio.current_time()
        guaranteed_id, last_id = self._state()
        if guaranteed_id == last_id or guaranteed_id != self._guaranteed_id:
            self._guaranteed_id, self._moved_s = guaranteed_id, now_s
        if now_s - self._moved_s < STUCK_S:
            await self._pace.keep(sum([ROW_BYTES + len(entry.body) for entry in entries]))


class Loader:
    """The driver's reads from disk. Call `start` first."""

    def __init__(self, store: Store, pace: Pace) -> None:
        self._store = store
        self._pace = CatchUpPace(pace, lambda: (self._replica.guaranteed_id, self._replica.log.last_id))
        self._damage_told = ""
        self.copying: set[Identity] = set()  # servers for which a copy is being read

    def start(self, driver: Driver, nursery: trio.Nursery) -> None:
        """Set the nursery in which reads run, and the driver that gets their results."""
        self._driver = driver
        self._replica = driver.replica
        self._nursery = nursery

    def load(self, wanted: Load | LoadSnapshot | LoadCopy) -> None:
        """Read from the disk, in a thread; part of `alpo.core.ready.Shell`. Copies are read one at a time for each
        peer, which asks again for more."""
        if isinstance(wanted, Load):
            self._nursery.start_soon(self._load, wanted)
        elif isinstance(wanted, LoadSnapshot):
            self._nursery.start_soon(self._load_snapshot, wanted)
        elif wanted.peer not in self.copying:
            self.copying.add(wanted.peer)
            self._nursery.start_soon(self._load_copy, wanted)

    async def _load(self, load: Load) -> None:
        """Read entries that are no longer in the core's memory."""
        try:
            entries = await in_thread(
                read_sound, self._store, load.first_id, self._replica.log.stable_id, load.bytes_max
            )
        except DamagedStore as error:
            self._tell_damage(load.peer, error)
            await trio.sleep(DAMAGED_RETRY_S)
            entries = []
        except StoreError as error:
            self._driver.failed(error)
            return
        await self._pace.keep(entries)
        self._driver.post(Loaded(load.peer, load.first_id, load.generation, entries))
        self._driver.kick()

    def _tell_damage(self, peer: int, error: DamagedStore) -> None:
        """Report the damage once: the peer asks again and again."""
        if str(error) != self._damage_told:
            self._damage_told = str(error)
            self._driver.note("cannot_send", peer=peer, why=str(error))

    async def _load_snapshot(self, wanted: LoadSnapshot) -> None:
        """Read a snapshot for a server that entries alone cannot bring up to date."""
        try:
            snapshot = await in_thread(self._store.read_snapshot)
        except StoreError as error:
            self._driver.failed(error)
            return
        if snapshot is not None:
            self._driver.post(SnapshotLoaded(wanted.peer, snapshot))
            self._driver.kick()

    async def _load_copy(self, wanted: LoadCopy) -> None:
        """Read an entry for a server whose own is damaged. If it is damaged here too, nothing is sent: the peer asks
        other servers in turn."""
        try:
            entries = await in_thread(self._store.read_entries, wanted.id, wanted.id, 1)
        except DamagedStore as error:
            self._tell_damage(wanted.peer.id, error)
            return
        except StoreError as error:
            self._driver.failed(error)
            return
        finally:
            self.copying.discard(wanted.peer)
        for entry in entries:
            self._driver.post(CopyLoaded(wanted.peer, entry))
        self._driver.kick()
