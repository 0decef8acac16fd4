"""What a step asks of the shell, with the ordering duties written on the fields that carry them.

The order is: `send` may leave at once. `write` goes to the writer. `send_after_write` leaves only after
`write` (and so every write before it) is on disk, fsynced (R14); the shell then also gives the core
`Persisted(write.number)`. `replies` may leave at once: the core only makes them when they may (R24).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from .entries import Entry
from .inputs import Origin
from .members import Identity
from .messages import Envelope, StartStatus


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


class SessionRow(NamedTuple):
    """One session as saved: ``slots`` are (serial, id, lsn, epoch, digest), oldest first."""

    client: str
    epoch: int
    nonce: bytes
    opened_last_serial: int
    last_serial: int
    last_id: int
    last_time_ms: int
    slots: list[tuple[int, int, int, int, bytes]]


class TableSave(NamedTuple):
    """The replicated state as of ``applied_id``: what changed since the save before (R22, section 2).

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


class Load(NamedTuple):
    """Please read entries from ``first_id`` on, at most ``bytes_max`` (at least one entry), for ``peer``."""

    peer: int
    first_id: int
    bytes_max: int
    generation: int


class Code(IntEnum):
    """Why a request was refused. Verdicts (R21) leave only when what they rest on is guaranteed."""

    NOT_LEADER = 1  # this transmission was never taken
    LOST_LEADERSHIP = 2  # it was taken, outcome unknown
    SERIAL_EXPECTED = 3  # no verdict; ``number``: the serial expected
    FENCED = 4  # verdict; ``number``: the current epoch (0: the name is not open)
    SERIAL_REUSED = 5  # verdict
    SKIPPED = 6  # verdict
    TOO_OLD = 7  # verdict: neither done nor refused
    SESSION_EXPIRED = 8  # verdict; ``number``: the horizon, ms
    EPOCH = 9  # verdict on an open or drop; ``number``: the current epoch (0: none)
    TOO_MANY_NAMES = 10  # verdict on an open
    TOO_LARGE = 11  # of the listener; payload or batch over the limit in ``number``
    OVERLOADED = 12  # of the listener
    INVALID = 13  # of the listener: a client id or request that can never be right
    CANNOT_INIT = 14  # Initialise: ``detail`` says why
    OUT_OF_RANGE = 15  # of reads: ``detail`` is "first_lsn,last_lsn"
    NOT_READY = 16  # of reads: not VOTING, or the read cannot be served now


class Appended(NamedTuple):
    """Guaranteed: serials ``serial``, ``serial + 1``, … are at ``lsns``. ``duplicate``: they had been before."""

    origin: Origin
    client: str
    serial: int
    lsns: list[int]
    duplicate: bool


class Refused(NamedTuple):
    """``count`` appends of ``client`` from ``serial`` on are refused (0 and "" for other requests).

    ``leader`` is the leader's id (0: not known) with NOT_LEADER and LOST_LEADERSHIP.
    """

    origin: Origin
    client: str
    serial: int
    count: int  # type: ignore[assignment]
    code: Code
    number: int = 0
    leader: int = 0
    detail: str = ""


class Opened(NamedTuple):
    """A session as of its SESSION entry, guaranteed (R22)."""

    origin: Origin
    epoch: int
    last_serial: int


class Dropped(NamedTuple):
    """The name is forgotten, guaranteed."""

    origin: Origin
    epoch: int


class Sessions(NamedTuple):
    """The session table, guaranteed. Rows without slots."""

    origin: Origin
    rows: list[SessionRow]
    horizon_ms: int


class ReadAt(NamedTuple):
    """R25: a read that began before this may be answered up to and including entry ``id``, from our own disk."""

    origin: Origin
    id: int


class Initialised(NamedTuple):
    """The operator's command was taken: durable once this leaves."""

    origin: Origin


Reply: TypeAlias = Appended | Refused | Opened | Dropped | Sessions | ReadAt | Initialised


class Event(NamedTuple):
    """Something worth a line in the log; the shell adds time and server."""

    name: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Ready:
    """All that one step asks for; see the module's head for the order."""

    send: list[Envelope] = field(default_factory=list)
    write: Write | None = None
    send_after_write: list[Envelope] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: Monotonic seconds by which `step` wants to be called again, with `Tick` if nothing else.
    deadline_s: float = 0.0
    #: R28: leadership is handed over (or was not held): the server may leave.
    may_stop: bool = False
    #: Not None: an invariant broke. Nothing of this Ready may be acted on; the server stops itself.
    alarm: str | None = None
