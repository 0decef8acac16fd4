"""Types that a replica and its disk exchange: the state at the start, writes, requests to read
(rules.md#hard-state). A run is a maximal sequence of entries of one term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .entries import Entry
from .members import Identity, StartStatus


class StartState(NamedTuple):
    """The progress of the first start (R29), part of the hard state.

    ``incarnations``: while STARTING, the (id, incarnation) of each configured server; ``configured_digest``: digest of
    the configured list and settings that were in force then. Once STARTED, for ever: ``cluster`` (its id),
    ``first_list`` and ``settings`` (both plain), with which the cluster began.
    """

    status: StartStatus
    incarnations: tuple[Identity, ...] = ()
    configured_digest: bytes = b""
    cluster: bytes = b""
    first_list: list[list[Any]] | None = None
    settings: dict[str, int] | None = None


class Base(NamedTuple):
    """The end of the cleaned part of a log: the last cleaned entry's id, term and time (ms since 1970), and the LSN
    that follows."""

    id: int
    term: int
    time_ms: int
    next_lsn: int


NO_BASE = Base(0, 0, 0, 1)


class TableSave(NamedTuple):
    """A save of the replicated state as of entry ``applied_id``: the changes since the save before it (R22,
    rules.md#replicated-state).

    The rows of ``changed`` replace those on disk, the clients of ``ended`` are deleted there, all other rows stay.
    ``members`` and ``settings`` are plain; ``members_id``: the entry that made the member list (0: the first start);
    ``horizon_ms``: see `JournalledSessions.horizon_ms`; ``trim_lsn``: no payload below it is served.
    """

    applied_id: int
    horizon_ms: int
    changed: list[SessionRow]
    ended: list[str]
    members: list[list[Any]]
    members_id: int
    settings: dict[str, int]
    trim_lsn: int = 1
    #: All cursors as (name, LSN).
    cursors: tuple[tuple[str, int], ...] = ()
    #: True if the state came with a `Snapshot`: entries up to ``applied_id`` may still come, and are not applied again.
    ahead: bool = False
    #: The directory of logs, plain; None if no log was ever created besides the first.
    directory: dict[str, Any] | None = None


class Snapshot(NamedTuple):
    """A snapshot, for a server that entries alone cannot bring up (R27, R29). ``base``: its log begins after that;
    ``table``: the whole replicated state, as of that entry or a later one; ``start``: the outcome of the first start.
    """

    base: Base
    table: TableSave
    start: StartState


class Write(NamedTuple):
    """One transaction. Numbers go up by one; a later write never reaches the disk before an earlier one.

    Order inside: ``mended``, ``install``, ``expunge_from`` (delete every entry with an id >= it, and the runs that
    begin there; None: none), ``entries``, ``base``. ``runs``: (term, first id) of every run that begins among
    ``entries``. ``guaranteed_id`` and ``fully_replicated_id`` never cause a write by themselves: on disk they may be
    behind. ``start`` and ``table``: to be saved; None: unchanged.
    """

    number: int
    term: int
    vote: int
    expunge_from: int | None
    entries: list[Entry]
    runs: list[tuple[int, int]]
    guaranteed_id: int
    fully_replicated_id: int
    start: StartState | None = None
    table: TableSave | None = None
    #: Bytes of all bodies together.
    bodies_bytes: int = 0
    #: Done last: delete every entry with an id up to the base's, and the runs that end there (R19). The marks of this
    #: write go to disk with it. None: clean nothing.
    base: Base | None = None
    #: Done before entries: replace every entry, run and session by the snapshot of this base, ``start`` and ``table``.
    install: Base | None = None
    #: Done first: put peers' copies in place of the damaged entries of the same ids (R31).
    mended: tuple[Entry, ...] = ()


class Load(NamedTuple):
    """A request to read entries from ``first_id`` on for ``peer``: bodies of at most ``bytes_max``, but at least one
    entry. ``generation`` is echoed in `Loaded`."""

    peer: int
    first_id: int
    bytes_max: int
    generation: int


class LoadSnapshot(NamedTuple):
    """A request to read a snapshot from disk, for ``peer``."""

    peer: int


class LoadCopy(NamedTuple):
    """A request to read entry ``id`` for ``peer``, whose copy is damaged (R31); no answer if ours is damaged too."""

    peer: Identity
    id: int


class SessionRow(NamedTuple):
    """One session as saved. ``slots``: the remembered appends, (serial, entry id, LSN, epoch, digest), oldest first.
    ``birth``: the epoch with which the name was first opened, or first after its last drop. Random clients have epoch
    and birth 0, nonce b"". Times are ms since 1970."""

    client: str
    epoch: int
    nonce: bytes
    opened_last_serial: int
    last_serial: int
    last_id: int
    last_time_ms: int
    slots: list[tuple[int, int, int, int, bytes]]
    birth: int = 0


@dataclass(frozen=True, slots=True)
class Boot:
    """The state on disk that a replica starts from, without the entries above ``applied_id`` (`Store.replay` gives
    those)."""

    me: Identity
    term: int
    vote: int
    start: StartState
    #: Marks as saved: they may be some thousand ids behind those of the last write.
    guaranteed_id: int
    fully_replicated_id: int
    #: Id and term of the last entry on disk, and the LSN that follows; 0, 0 and 1 when the log is empty.
    last_id: int
    last_term: int
    next_lsn: int
    #: (term, first id) of every run, ascending.
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
    #: No payload below this LSN is served (R20); as of ``applied_id``.
    trim_lsn: int = 1
    #: Reader cursors, (name, LSN); as of ``applied_id``.
    cursors: tuple[tuple[str, int], ...] = ()
    #: The directory of logs, plain (None: no log was ever created besides the first); as of ``applied_id``.
    directory: dict[str, Any] | None = None
    #: The end of the cleaned part (R19): the log goes on from there, and ends there if it holds no entry.
    base: Base = NO_BASE
