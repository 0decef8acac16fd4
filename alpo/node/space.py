"""Watch how full the disk is; `alpo.core.disk_space` decides what follows.

Laws:

* Free pages in the data file count as free space, above a reserve that must be free on the disk itself: for votes, for
  the WAL, and for cleaning.
* After the free space fell below a mark, it must rise well above it again: so a disk near its mark does not flap.
* A store whose files were removed or replaced ends the server: nobody would find what it acknowledges.
* A write that found the disk full means no space at all, whatever the file system says. After such a write, and after a
  slow one, the disk is checked at once.
"""

from __future__ import annotations

from typing import Any

import structlog
import trio

from alpo.core.inputs import Space
from alpo.core.messages import Room
from alpo.core.settings import size_text
from alpo.storage.interface import Store, StoreError, StoreGone, Volume
from alpo.storage.writer import WriterStats

from .driver import Driver
from .threads import in_thread

log = structlog.get_logger()

#: Seconds between two checks: usually; when space is or may soon be low; when so much is free that it cannot be filled
#: before the next check.
SPACE_EVERY_S, SPACE_CLOSELY_S, SPACE_SELDOM_S = 1.0, 0.1, 5.0
_CLOSE_MARKS = 4
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
    """Task that checks the disk and tells the core. ``low_water_bytes`` 0: only failed writes count."""

    def __init__(self, driver: Driver, store: Store, stats: WriterStats, low_water_bytes: int) -> None:
        self._driver = driver
        self._store = store
        self._stats = stats
        self._low_water_bytes = low_water_bytes
        self._free_bytes = 0
        self._told = Room.PLENTY
        self._wanted = trio.Event()

    @property
    def room(self) -> Room:
        """The disk's state, as the core was last told."""
        return self._told

    def look_soon(self) -> None:
        """Request a check before the next one is due."""
        self._wanted.set()

    async def run(self) -> None:
        """Check until cancelled, or the store is gone."""
        while True:
            self._wanted = trio.Event()
            try:
                disk, file_free_bytes = await in_thread(self._look)
            except StoreGone as error:
                return self._driver.failed(error)
            except StoreError as error:
                log.error("cannot_see_space", why=str(error))
            else:
                self._tell(disk, file_free_bytes)
            looked_s = trio.current_time()
            with trio.move_on_at(looked_s + self._pause_s()):
                await self._wanted.wait()
            await trio.sleep_until(looked_s + SPACE_CLOSELY_S)

    def _pause_s(self) -> float:
        """Seconds until the next check if nobody requests an earlier one."""
        if self._told is not Room.PLENTY or self._free_bytes < _CLOSE_MARKS * self._low_water_bytes:
            return SPACE_CLOSELY_S
        far = self._free_bytes - self._low_water_bytes >= _FAR_BYTES
        return SPACE_SELDOM_S if far else SPACE_EVERY_S

    def _look(self) -> tuple[Volume, int]:
        self._store.check_in_place()
        return self._store.volume(), self._store.free_bytes()

    def _tell(self, disk: Volume, file_free_bytes: int) -> None:
        self._free_bytes = disk.free_bytes + file_free_bytes
        room = Room.PLENTY
        if self._stats.full:
            room = Room.NONE
        elif disk.total_bytes:
            room = judge(self._told, self._low_water_bytes, disk.free_bytes, file_free_bytes)
        if room is not self._told or room is not Room.PLENTY:
            self._told = room
            self._driver.post(Space(room, self._free_bytes))
            self._driver.kick()

    def fields(self) -> dict[str, Any]:
        """Status keys of disk space."""
        return {
            "room": self._told.name.lower(),
            "free_bytes": self._free_bytes,
            "low_water_bytes": self._low_water_bytes,
        }

    def remarks(self) -> list[str]:
        """Sentences for an operator; [] while there is enough space."""
        if self._stats.full:
            return [f"no room for a write, which is tried again until there is: {self._stats.full}"]
        if self._told is Room.PLENTY:
            return []
        takes = "no entries" if self._told is Room.NONE else "no appends"
        marks = f"{size_text(self._free_bytes)} free, low-water mark {size_text(self._low_water_bytes)}"
        return [f"low on disk space: {marks}; it takes {takes}"]
