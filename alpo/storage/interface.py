"""The durability contract between the core's `Write`s and a disk.

Laws every store keeps, and `tests/storage` holds every store to:

* `commit` returns only when all of the writes given are on disk, fsynced; they are one transaction.
* After a crash at any moment a store holds the writes of every `commit` that returned, and of the one under
  way all or nothing.
* Reads never wait for a commit and never see a part of one. `read_entries` and the finders may be called
  from any thread; everything else from the writer thread only.
* What cannot be read back exactly as written raises `DamagedStore`, never reads as absent (R31).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from alpo.core.disk import (
    Image,
    Write,
)
from alpo.core.entries import Entry

from ..core.disk import Boot
from .columns import Columns
from .events import EventRow, KeptEvent


class StoreError(Exception):
    """The store cannot be used: the message is for the operator, one line, names the file."""


class DirectoryInUse(StoreError):
    """Another process holds the directory's lock; the message names it by pid."""


class WrongStore(StoreError):
    """The directory belongs to another server or cluster, or was written by a newer schema. Nothing was written."""


class StoreGone(StoreError):
    """Another file, or none, is where the open one was: what is written from now on would be lost with it."""


class DamagedStore(StoreError):
    """Bytes on disk are not what was written (R31)."""


class LostCommits(DamagedStore):
    """The WAL is damaged before commits that had been synced: SQLite would drop them in silence (R31)."""


class StoreFull(StoreError):
    """The disk is full; nothing of this commit counts, and the same may be tried again."""


class Volume(NamedTuple):
    """The file system that the store is on, bytes: all of it, and what this process may still take. 0, 0: none."""

    total_bytes: int
    free_bytes: int


class Scrubbed(NamedTuple):
    """A stretch of the log that was checked: all before ``next_id`` was looked at, ``damaged`` of it, ascending, is not
    what was written. ``at_end``: the log ends there. ``bytes``: of bodies, and about 100 a row."""

    next_id: int
    damaged: list[int]
    bytes: int
    at_end: bool


@dataclass(frozen=True, slots=True)
class StateCopy:
    """What a backup holds beside entries ``first_id`` … ``end_id``: rows by table, of schema version ``schema``."""

    schema: int
    server_id: int
    first_id: int
    end_id: int
    bytes_about: int
    tables: dict[str, list[tuple[Any, ...]]]


class Rest(IntEnum):
    """How much rest the writer has: more writes wait, none waits just now, or none has come for a while."""

    BUSY = 0
    LULL = 1
    IDLE = 2


class Store(Protocol):
    """One server's log and hard state."""

    def boot(self) -> Boot: ...

    def replay(self, first_id: int) -> Iterator[Entry]:
        """Every entry there is from ``first_id`` on, verified, in bounded memory; what was cleaned is left out (a
        replica asks from ``applied_id + 1`` on, which never was). Raises `DamagedStore`."""

    def commit(self, writes: Sequence[Write]) -> None:
        """One transaction, one fsync. Raises `StoreFull` or `StoreError`."""

    def checkpoint(self, rest: Rest) -> float | None:
        """Housekeeping, when it is due, in a step that a write can wait for. Seconds until the next step if nothing is
        written before, None: nothing is left to do. Raises as `commit` does."""

    def note(self, events: Iterable[EventRow]) -> None:
        """Keep these too, with the next commit or once the writer rests: see `events`. Raises nothing."""

    def give_back(self) -> None:
        """From any thread: the file system shall have all free space back, in steps of `checkpoint` (R19)."""

    def giving_back(self) -> bool:
        """Is free space on its way to the file system, asked for or not? Any thread. Raises `StoreError`."""

    def read_image(self) -> Image | None:
        """The base and the whole replicated state as last saved, for a server that entries alone do not bring up (R27);
        None before any was saved. Any thread. Raises `DamagedStore`."""

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        """Entries ``first_id`` … ``last_id`` in order, verified, as many as fit in ``bytes_max`` of bodies, one at
        least if there is any; fewer if it would take long; [] when ``first_id`` is past the end or was cleaned.
        Raises `DamagedStore` on a gap or a bad checksum."""

    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Columns:
        """The same column by column, and faster. It may also end before what is damaged or missing, unless that is
        ``first_id``. Any thread."""

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        """Check entries from ``first_id`` on, or from the first there is, about ``bytes_max`` of them. Any thread."""

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        """(time_ms, lsn, count) of entry ``id``, or None (cleaned, or past the end)."""

    def find_lsn(self, lsn: int, last_id: int) -> int:
        """The id of the DATA entry that holds payload ``lsn``, looking no further than ``last_id``;
        ``last_id + 1`` if it lies beyond; the first entry there is if it was cleaned."""

    def find_time(self, time_ms: int, last_id: int) -> int:
        """The first id whose ``time_ms`` >= the one given, looking no further than ``last_id``;
        ``last_id + 1`` if none; of cleaned entries nothing is known."""

    def read_events(self, before: int, count: int) -> list[KeptEvent]:
        """The newest ``count`` events with a number below ``before`` (0: of all), oldest first. Any thread."""

    def check_in_place(self) -> None:
        """Raises `StoreGone` if a restart would not find what is written now. Any thread."""

    def volume(self) -> Volume:
        """What the disk has room for. Any thread. Raises `StoreError`."""

    def size_bytes(self) -> int:
        """Bytes on disk, the WAL included. Any thread. Raises `StoreError`."""

    def free_bytes(self) -> int:
        """How many of them hold nothing and are used first by what comes. Any thread. Raises `StoreError`."""

    def live_bytes(self) -> int:
        """Bytes that what is kept takes up; what was cleaned, and the WAL, do not count. Any thread."""

    def copy_state(self, upto_id: int) -> StateCopy:
        """For a backup: all but the entries, as of one moment at which the log reached at least ``upto_id``. Raises
        `StoreError`, also if there is no file."""

    def close(self) -> None: ...
