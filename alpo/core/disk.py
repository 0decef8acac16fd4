"""What a replica and its disk exchange: the state at the start, writes, what is to be read (rules.md#hard-state)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .entries import Entry
from .members import Identity, StartStatus


class StartState(NamedTuple):
    """Hard state of the first start (R29); JSON-ready by `to_plain` of its parts.

    ``configured`` [(id, address, priority)] and ``settings`` (plain) are what the map was formed under;
    ``incarnations`` the map while STARTING; ``first_list`` (plain) and ``cluster`` once STARTED, for ever.
    """

    status: StartStatus
    incarnations: tuple[Identity, ...] = ()
    configured_digest: bytes = b""
    cluster: bytes = b""
    first_list: list[list[Any]] | None = None
    settings: dict[str, int] | None = None


class Base(NamedTuple):
    """What stands for all that was cleaned: the last cleaned entry's id, term and time, and the LSN after it."""

    id: int
    term: int
    time_ms: int
    next_lsn: int


NO_BASE = Base(0, 0, 0, 1)


class TableSave(NamedTuple):
    """The replicated state as of ``applied_id``: what changed since the save before (R22,
    rules.md#replicated-state).

    ``changed`` rows replace, ``ended`` clients are deleted, the rest of the table on disk stands.
    ``members`` and ``settings`` in plain form, as of ``applied_id``; ``members_id``: the entry that made them.
    """

    applied_id: int
    horizon_ms: int
    changed: list[SessionRow]
    ended: list[str]
    members: list[list[Any]]
    members_id: int
    settings: dict[str, int]
    trim_lsn: int = 1
    #: All of them, (name, LSN).
    cursors: tuple[tuple[str, int], ...] = ()
    #: It came with an `Image`, and the log that it describes is still to come: entries up to ``applied_id`` are not
    #: applied again.
    ahead: bool = False


class Image(NamedTuple):
    """What a server starts from that cannot be reached by entries alone (R27, R29): where the log begins, the whole
    replicated state as of ``table.applied_id``, which may lie beyond that, and the first start's outcome."""

    base: Base
    table: TableSave
    start: StartState


class Write(NamedTuple):
    """One transaction. Numbers go up by one; a later write never reaches the disk before an earlier one.

    Order inside: ``expunge_from`` (delete every id >= it, and runs that begin there), then ``entries``.
    ``runs``: (term, first id) of every run of one term that begins among ``entries``.
    ``guaranteed_id`` and ``fully_replicated_id`` are lazy marks: they never cause a write by themselves.
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
    #: Of all bodies together; counted once, where the entries come in.
    bodies_bytes: int = 0
    #: Last of all: delete every entry with an id up to the base's, and runs that end there (R19). The marks of this
    #: write go to disk with it.
    base: Base | None = None
    #: First of all: every entry, run and session there is gives way to this base; ``start`` and ``table`` come with it.
    install: Base | None = None
    #: Before all of that: peers' copies, each in place of the damaged entry of its id that is on disk (R31).
    mended: tuple[Entry, ...] = ()


class Load(NamedTuple):
    """Please read entries from ``first_id`` on, at most ``bytes_max`` (at least one entry), for ``peer``."""

    peer: int
    first_id: int
    bytes_max: int
    generation: int


class LoadImage(NamedTuple):
    """Please read the base and the whole table as they are on disk, for ``peer``."""

    peer: int


class LoadCopy(NamedTuple):
    """Please read entry ``id`` for ``peer``, whose own is damaged (R31); nothing is to be answered if ours is too."""

    peer: Identity
    id: int


class SessionRow(NamedTuple):
    """One session as saved: ``slots`` are (serial, id, lsn, epoch, digest), oldest first. ``birth``: the epoch that the
    name's present life began with, when it was first opened or first after a drop; 0 of a random client."""

    client: str
    epoch: int
    nonce: bytes
    opened_last_serial: int
    last_serial: int
    last_id: int
    last_time_ms: int
    slots: list[tuple[int, int, int, int, bytes]]
    birth: int = 0


def birth_untold(epoch: int, slots: Iterable[tuple[int, int, int, int, bytes]]) -> int:
    """The birth of a row that was saved or sent without one: the oldest epoch that it tells of. The true one may be
    older; then some of its appends are told DROPPED, "nobody can tell", instead of "no"."""
    return min([epoch, *(slot[3] for slot in slots)])


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
    #: Nothing below is served (R20); as of ``applied_id``.
    trim_lsn: int = 1
    #: Reader cursors, (name, LSN); as of ``applied_id``.
    cursors: tuple[tuple[str, int], ...] = ()
    #: What was cleaned (R19); the log goes on from there, and ends there if it holds no entry.
    base: Base = NO_BASE
