"""The store's interface: what the core's `Write`s may expect of a disk.

Laws of every store, tested for each in `tests/storage`:

* `commit` returns only when all of the writes given are on disk, fsynced; they are one transaction.
* After a crash at any moment the store holds the writes of every `commit` that returned, and all or nothing of the one
  that was under way.
* Reads never wait for a commit and never see a part of one. `read_entries` and the finders may be called from any
  thread; everything else by whoever has the writer's turn (`alpo.storage.writer`).
* Data that cannot be read back exactly as written raises `DamagedStore`; it never reads as absent (R31).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from alpo.core.disk import (
    Snapshot,
    Write,
)
from alpo.core.entries import Entry

from ..core.disk import Boot
from .events import EventRow, KeptEvent
from .tables import Columns


class StoreError(Exception):
    """The store cannot be used. The message is for the operator: one line that names the file."""


class DirectoryInUse(StoreError):
    """Another process holds the directory's lock; the message gives its pid."""


class WrongStore(StoreError):
    """The directory belongs to another server or cluster, or was written by a newer schema. Nothing was written."""


class StoreGone(StoreError):
    """The open file was removed or replaced: whatever is written from now on would be lost."""


class DamagedStore(StoreError):
    """Bytes on disk are not what was written (R31). ``id``: the entry that is damaged or missing; 0: the damage is not
    known to be in an entry."""

    def __init__(self, why: str, id: int = 0) -> None:
        super().__init__(why)
        self.id = id


class LostCommits(DamagedStore):
    """The WAL is damaged before commits that were synced: SQLite would silently drop them (R31)."""


class StoreFull(StoreError):
    """The disk is full. Nothing of this commit counts; the same commit may be tried again."""


class Volume(NamedTuple):
    """The store's file system, in bytes: its size and what this process may still use. 0, 0 for a store without a
    disk."""

    total_bytes: int
    free_bytes: int


class Scrubbed(NamedTuple):
    """Result of checking a range of the log. All ids below ``next_id`` were checked; ``damaged`` lists, ascending, the
    entries that are damaged or missing. ``bytes``: body sizes plus about 100 a row. ``at_end``: the log ends there."""

    next_id: int
    damaged: list[int]
    bytes: int
    at_end: bool


@dataclass(frozen=True, slots=True)
class StateCopy:
    """Content of a backup beside entries ``first_id`` … ``end_id``: rows by table name, of schema version
    ``schema``."""

    schema: int
    server_id: int
    first_id: int
    end_id: int
    bytes_about: int
    tables: dict[str, list[tuple[Any, ...]]]


class Rest(IntEnum):
    """Degree of the writer's idleness: more writes wait, none waits just now, or none has come for a while."""

    BUSY = 0
    LULL = 1
    IDLE = 2


class Readable(Protocol):
    """The reads of a `Store` of which pages are made; it describes them."""

    def read_entries(self, first_id: int, last_id: int, bytes_max: int, /) -> list[Entry]: ...

    def read_columns(self, first_id: int, last_id: int, bytes_max: int, /) -> Columns: ...

    def read_heads(self, first_id: int, last_id: int, /) -> Columns: ...

    def scrub(self, first_id: int, bytes_max: int, /) -> Scrubbed: ...

    def entry_head(self, id: int, /) -> tuple[int, int, int] | None: ...

    def find_lsn(self, lsn: int, last_id: int, /) -> int: ...

    def find_time(self, time_ms: int, last_id: int, /) -> int: ...


class Store(Protocol):
    """One server's log and hard state."""

    #: Called with the damage that a read of entries, of a snapshot or of events meets, whoever reads, before the error
    #: is raised; from any thread. The scrub reports what it finds by its result alone.
    on_damage: Callable[[DamagedStore], None]

    def boot(self) -> Boot: ...

    def replay(self, first_id: int) -> Iterator[Entry]:
        """Yield all entries from ``first_id`` on, verified, in bounded memory. Entries that were cleaned are left out;
        a replica asks from ``applied_id + 1`` on, which never was. Raises `DamagedStore`."""

    def commit(self, writes: Sequence[Write]) -> None:
        """Write in one transaction with one fsync. Raises `StoreFull` or `StoreError`."""

    def checkpoint(self, rest: Rest) -> float | None:
        """Do a step of housekeeping if it is due, short enough for a write to wait for. Returns the seconds until the
        next step if nothing is written before; None if nothing is left to do. Raises like `commit`."""

    def note(self, events: Iterable[EventRow]) -> None:
        """Queue events, to be written with the next commit or when the writer is idle (see `events`). Raises
        nothing."""

    def give_back(self) -> None:
        """Ask for all free space to be returned to the file system, in steps of `checkpoint` (R19). Any thread."""

    def giving_back(self) -> bool:
        """True while free space is being returned to the file system, whether asked for or not. Any thread. Raises
        `StoreError`."""

    def read_snapshot(self) -> Snapshot | None:
        """Read the snapshot as last saved, for a server that entries alone cannot bring up to date (R27); None before
        the first save. Any thread. Raises `DamagedStore`."""

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        """Read entries ``first_id`` … ``last_id`` in order, verified, as many as fit in ``bytes_max`` of bodies, at
        least one if there is any; fewer if it would take long. [] if ``first_id`` is past the end or was cleaned.
        Raises `DamagedStore` on a gap or a bad checksum."""

    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Columns:
        """Read like `read_entries`, but as columns, which is faster. May also end before a damaged or missing entry,
        unless that is ``first_id``. Any thread."""

    def read_heads(self, first_id: int, last_id: int) -> Columns:
        """Read entries ``first_id`` … ``last_id``, some thousand at most, without their bodies (b""), which are not
        verified; empty if ``first_id`` is past the end or was cleaned. Any thread. Raises `DamagedStore`."""

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        """Check about ``bytes_max`` of entries, from ``first_id`` or the first one there is. Any thread."""

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        """(time_ms, lsn, count) of entry ``id``; None if it was cleaned or is past the end."""

    def find_lsn(self, lsn: int, last_id: int) -> int:
        """The id of the DATA entry that holds payload ``lsn``, searching up to ``last_id``; ``last_id + 1`` if it lies
        beyond; the first id there is if it was cleaned."""

    def find_time(self, time_ms: int, last_id: int) -> int:
        """The first id whose ``time_ms`` is at least the one given, searching up to ``last_id``; ``last_id + 1`` if
        there is none. Cleaned entries are not considered."""

    def read_events(self, before: int, count: int) -> list[KeptEvent]:
        """The newest ``count`` events with a number below ``before`` (0: no limit), oldest first. Any thread."""

    def check_in_place(self) -> None:
        """Raise `StoreGone` if a restart would not find what is written now. Any thread."""

    def volume(self) -> Volume:
        """Size and free space of the disk. Any thread. Raises `StoreError`."""

    def size_bytes(self) -> int:
        """Size on disk in bytes, the WAL included. Any thread. Raises `StoreError`."""

    def wal_bytes(self) -> int:
        """Size of the file of writes that are not yet in the data file; 0 without one."""

    def free_bytes(self) -> int:
        """Bytes of the file that hold nothing and are reused first. Any thread. Raises `StoreError`."""

    def live_bytes(self) -> int:
        """Bytes in use, without free pages and the WAL. Any thread."""

    def copy_state(self, upto_id: int) -> StateCopy:
        """Read all that a backup holds beside entries, in one transaction in which the log reached at least
        ``upto_id``. Raises `StoreError`, also if the store has no file."""

    def close(self) -> None: ...
