"""What the core asks to be read from the disk for others: entries, bases, copies of single entries.

Laws:

* A log that cannot be read stops the server; a damaged entry is not sent (R31), and is looked at again after a while.
* Those who are behind are brought up at a bounded rate, so that appends keep their latency; but nothing waits for the
  rate while appends wait for those.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from alpo.core.disk import Load, LoadCopy, LoadImage
from alpo.core.entries import Entry
from alpo.core.inputs import CopyLoaded, ImageLoaded, Loaded
from alpo.core.members import Identity
from alpo.storage.interface import DamagedStore, Store, StoreError
from alpo.storage.scrub import ROW_BYTES, read_sound

from .driver import Driver
from .throttle import Pace

#: Until entries that could not be read for a peer are tried again.
DAMAGED_RETRY_S = 1.0
#: Nothing guaranteed for so long while something waits for it: longer than an append takes that waits for nobody.
STUCK_S = 0.25


class CatchUpPace:
    """How fast entries are read for those who are behind, all together. ``bytes_per_s`` 0: as fast as it goes.

    ``state`` gives (guaranteed id, last id): while they differ and the first does not move, appends wait for a
    majority, perhaps for the very server that is being brought up, and then nothing is held up.
    """

    def __init__(self, bytes_per_s: int, state: Callable[[], tuple[int, int]]) -> None:
        self._pace = Pace(bytes_per_s)
        self._state = state
        self._guaranteed_id = -1
        self._moved_s = 0.0

    def bound(self, bytes_per_s: int) -> None:
        """Another rate from now on."""
        self._pace.bytes_per_s = bytes_per_s

    async def keep(self, entries: list[Entry]) -> None:
        """Before these leave."""
        now_s = trio.current_time()
        guaranteed_id, last_id = self._state()
        if guaranteed_id == last_id or guaranteed_id != self._guaranteed_id:
            self._guaranteed_id, self._moved_s = guaranteed_id, now_s
        if now_s - self._moved_s < STUCK_S:
            await self._pace.keep(sum([ROW_BYTES + len(entry.body) for entry in entries]))


class Loader:
    """The driver's loads. Nothing is asked before `start`."""

    def __init__(self, store: Store, catch_up_bytes_per_s: int) -> None:
        self._store = store
        self._pace = CatchUpPace(
            catch_up_bytes_per_s, lambda: (self._replica.guaranteed_id, self._replica.log.last_id)
        )
        self._damage_told = ""
        self.copying: set[Identity] = set()  # for whom a copy is being read

    def bound(self, catch_up_bytes_per_s: int) -> None:
        """Another rate from now on."""
        self._pace.bound(catch_up_bytes_per_s)

    def start(self, driver: Driver, nursery: trio.Nursery) -> None:
        """Reads run in ``nursery``, and what comes of them goes to the driver."""
        self._driver = driver
        self._replica = driver.replica
        self._nursery = nursery

    def load(self, load: Load) -> None:
        """Entries that are no longer in the core's memory."""
        self._nursery.start_soon(self._load, load)

    async def _load(self, load: Load) -> None:
        try:
            entries = await trio.to_thread.run_sync(
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
        """Once: it is asked for again and again."""
        if str(error) != self._damage_told:
            self._damage_told = str(error)
            self._driver.note("cannot_send", peer=peer, why=str(error))

    def load_image(self, wanted: LoadImage) -> None:
        """For a server that entries alone do not bring up."""
        self._nursery.start_soon(self._load_image, wanted)

    async def _load_image(self, wanted: LoadImage) -> None:
        try:
            image = await trio.to_thread.run_sync(self._store.read_image)
        except StoreError as error:
            self._driver.failed(error)
            return
        if image is not None:
            self._driver.post(ImageLoaded(wanted.peer, image))
            self._driver.kick()

    def load_copy(self, wanted: LoadCopy) -> None:
        """For a server that has a damaged one; one at a time for each: whoever needs more asks again."""
        if wanted.peer not in self.copying:
            self.copying.add(wanted.peer)
            self._nursery.start_soon(self._load_copy, wanted)

    async def _load_copy(self, wanted: LoadCopy) -> None:
        """If ours is damaged too, the others are asked in their turn."""
        try:
            entries = await trio.to_thread.run_sync(self._store.read_entries, wanted.id, wanted.id, 1)
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
