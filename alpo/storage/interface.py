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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from alpo.core.entries import Entry
from alpo.core.members import Identity
from alpo.core.ready import SessionRow, StartState, Write


class StoreError(Exception):
    """The store cannot be used: the message is for the operator, one line, names the file."""


class DirectoryInUse(StoreError):
    """Another process holds the directory's lock; the message names it by pid."""


class WrongStore(StoreError):
    """The directory belongs to another server or cluster, or was written by a newer schema. Nothing was written."""


class DamagedStore(StoreError):
    """Bytes on disk are not what was written (R31)."""


class StoreFull(StoreError):
    """The disk is full; nothing of this commit is on it."""


@dataclass(frozen=True, slots=True)
class Boot:
    """All that a replica starts from, except the entries above ``applied_id`` (`Store.replay`)."""

    me: Identity
    term: int
    vote: int
    start: StartState
    #: The marks may stand up to some thousand ids behind the last write's, never behind its ``table``'s.
    guaranteed_id: int
    fully_replicated_id: int
    #: Last entry on disk: 0, 0 and the next LSN 1 when the log is empty.
    last_id: int
    last_term: int
    next_lsn: int
    #: (term, first id) of every run of one term, ascending.
    runs: list[tuple[int, int]] = field(default_factory=list)
    #: The replicated state as of ``applied_id`` (0: the first start's).
    applied_id: int = 0
    horizon_ms: int = 0
    sessions: list[SessionRow] = field(default_factory=list)
    members: list[list[Any]] | None = None
    members_id: int = 0
    settings: dict[str, int] | None = None
    #: ``time_ms`` of the last entry (0: none): entry time never decreases.
    last_time_ms: int = 0


class Rest(IntEnum):
    """How much rest the writer has: more writes wait, none waits just now, or none has come for a while."""

    BUSY = 0
    LULL = 1
    IDLE = 2


class Store(Protocol):
    """One server's log and hard state."""

    def boot(self) -> Boot: ...

    def replay(self, first_id: int) -> Iterator[Entry]:
        """Every entry from ``first_id`` on, verified, in bounded memory. Raises `DamagedStore`."""

    def commit(self, writes: Sequence[Write]) -> None:
        """One transaction, one fsync. Raises `StoreFull` (nothing was written) or `StoreError`."""

    def checkpoint(self, rest: Rest) -> bool:
        """Housekeeping after a commit, when it is due. True: nothing is left to do. Raises as `commit` does."""

    def read_entries(self, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        """Entries ``first_id`` … ``last_id`` in order, verified, as many as fit in ``bytes_max`` of bodies, one at
        least if there is any; fewer if it would take long; [] when ``first_id`` is past the end.
        Raises `DamagedStore` on a gap or a bad checksum."""

    def entry_head(self, id: int) -> tuple[int, int, int] | None:
        """(time_ms, lsn, count) of entry ``id``, or None."""

    def find_lsn(self, lsn: int, last_id: int) -> int:
        """The id of the DATA entry that holds payload ``lsn``, looking no further than ``last_id``;
        ``last_id + 1`` if it lies beyond."""

    def find_time(self, time_ms: int, last_id: int) -> int:
        """The first id whose ``time_ms`` >= the one given, looking no further than ``last_id``;
        ``last_id + 1`` if none."""

    def size_bytes(self) -> int:
        """Bytes on disk, the WAL included."""

    def close(self) -> None: ...
