"""What a step asks of the shell, with the ordering duties written on the fields that carry them.

The order is: `send` may leave at once. `write` goes to the writer. `send_after_write` leaves only after
`write` (and so every write before it) is on disk, fsynced (R14); the shell then also gives the core
`Persisted(write.number)`. `replies` may leave at once: the core only makes them when they may (R24).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from .disk import Load, LoadCopy, LoadImage, SessionRow, Write
from .inputs import Origin
from .messages import Envelope


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
    """All that one step asks of whoever drives the replica; see the module's head for the order."""

    #: Messages that may leave at once, before anything is written.
    send: list[Envelope] = field(default_factory=list)
    #: Hand it to the writer, which takes writes in the order of their numbers; report with `Persisted`.
    write: Write | None = None
    #: Messages that may leave only once ``write``, and every write before it, is on disk (R14). Never without a write.
    send_after_write: list[Envelope] = field(default_factory=list)
    #: Answers to clients. They may leave at once: none is made before it may be given (R24).
    replies: list[Reply] = field(default_factory=list)
    #: Entries to read from the disk; step with `Loaded`.
    loads: list[Load] = field(default_factory=list)
    #: Saved states to read from the disk, for newcomers; step with `ImageLoaded`.
    images: list[LoadImage] = field(default_factory=list)
    #: Sound copies of entries to read from the disk, for a member that lost them; step with `CopyLoaded`.
    copies: list[LoadCopy] = field(default_factory=list)
    #: Lines for the log.
    events: list[Event] = field(default_factory=list)
    #: Monotonic seconds by which `step` wants to be called again, with `Tick` if nothing else.
    deadline_s: float = 0.0
    #: R28: leadership is handed over (or was not held): the server may leave.
    may_stop: bool = False
    #: Not None: an invariant broke. Nothing of this Ready may be acted on; the server stops itself.
    alarm: str | None = None
    #: With an alarm: what broke is our disk, which has forgotten something; the store is of no more use (R31).
    lost: bool = False
