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
from .session_rows import SessionRow


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


class Code(IntEnum):
    """Why a request was refused. Verdicts (R21) leave only when what they rest on is guaranteed."""

    NOT_LEADER = 1  # this transmission was never taken
    LOST_LEADERSHIP = 2  # it was taken, outcome unknown
    SERIAL_EXPECTED = 3  # no verdict; ``number``: the serial expected
    FENCED = 4  # verdict; ``number``: the current epoch
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
    OUT_OF_RANGE = 15  # of reads and trims: ``detail`` is "first_lsn,last_lsn"
    NOT_READY = 16  # of reads: not VOTING, or the read cannot be served now
    NO_SPACE = 17  # no verdict; of appends and opens: this transmission was not taken, ``detail`` says which disks
    DROPPED = 18  # verdict: the name was dropped since that epoch; ``number``: the current one (0: it is not open)
    CANNOT_CHANGE = 30  # of changes of the member list and handovers: ``detail`` says why
    CHANGED = 40  # verdict on a change: what it would change is not as the asker believes; ``detail`` says how it is
    TOO_MANY_CURSORS = 41  # verdict on a new cursor
    CURSOR_HOLDS = 42  # verdict on a trim: ``detail`` names the cursor that needs what it would take
    NO_CURSOR = 43  # verdict on a drop: there is none of that name, or not where the asker believes


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


class Trimmed(NamedTuple):
    """R20: guaranteed; nothing below ``first_lsn`` is served from now on."""

    origin: Origin
    first_lsn: int


class Sessions(NamedTuple):
    """The session table, guaranteed. Rows without slots."""

    origin: Origin
    rows: list[SessionRow]
    horizon_ms: int


class ReadAt(NamedTuple):
    """R25: a read that began before this may be answered up to and including entry ``id``, from our own disk."""

    origin: Origin
    id: int


class Fate(IntEnum):
    """What became of an append, as far as the session table can tell (R21)."""

    APPENDED = 1
    NOT_APPENDED = 2  # as of now: one that is on its way may still arrive
    TOO_OLD = 3  # nobody can tell any more


class Told(NamedTuple):
    """The fate of an append; ``lsn``: of its first payload (0 unless APPENDED). ``birth``: of a name, the epoch that
    its present life began with, of which alone this speaks; 0: it is not open, or the client is no name."""

    origin: Origin
    fate: Fate
    lsn: int
    birth: int = 0


class SettingsAre(NamedTuple):
    """The replicated settings, guaranteed; after a `ChangeSettings` with what it wanted."""

    origin: Origin
    values: dict[str, int]


class CursorIs(NamedTuple):
    """The cursor stands at ``lsn``, or was dropped from there; guaranteed."""

    origin: Origin
    name: str
    lsn: int


class CursorsAre(NamedTuple):
    """All cursors, (name, LSN), by name; guaranteed."""

    origin: Origin
    rows: tuple[tuple[str, int], ...]


class MembersChanged(NamedTuple):
    """R27: guaranteed; ``members`` (plain) is the list since then."""

    origin: Origin
    members: list[list[Any]]


class HandedOver(NamedTuple):
    """R28: ``leader`` leads in ``term``."""

    origin: Origin
    leader: int
    term: int


class Initialised(NamedTuple):
    """The operator's command was taken: durable once this leaves."""

    origin: Origin


Reply: TypeAlias = (
    Appended | Refused | Opened | Dropped | Trimmed | Sessions | ReadAt | Told | SettingsAre | CursorIs | CursorsAre
    | MembersChanged | HandedOver | Initialised
)


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
    images: list[LoadImage] = field(default_factory=list)
    copies: list[LoadCopy] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: Monotonic seconds by which `step` wants to be called again, with `Tick` if nothing else.
    deadline_s: float = 0.0
    #: R28: leadership is handed over (or was not held): the server may leave.
    may_stop: bool = False
    #: Not None: an invariant broke. Nothing of this Ready may be acted on; the server stops itself.
    alarm: str | None = None
    #: With an alarm: what broke is our disk, which has forgotten something; the store is of no more use (R31).
    lost: bool = False
