"""Requests of clients and operators to the core, and its replies. The wire encodes these very types.

The first field is ``origin``, the asker. Between client and server it is the request's number, which the client
chooses. In the core it is a token of the shell (for a connection and that number): the core never looks inside, and
puts it into the reply. Requests that a server answers without its core (pages, status, events, backups) are in
`alpo.wire.requests`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from .directory import DeletedLog, Listing, LogOptions, NamedLog
from .disk import SessionRow

Origin: TypeAlias = Hashable


class Code(IntEnum):
    """The reasons for refusing a request. Verdicts (R21) leave only once what they rest on is guaranteed."""

    NOT_LEADER = 1  # this transmission was never taken
    LOST_LEADERSHIP = 2  # it was taken, outcome unknown
    SERIAL_EXPECTED = 3  # no verdict; ``number``: the serial expected
    FENCED = 4  # verdict; ``number``: the current epoch
    SERIAL_REUSED = 5  # verdict: the serial is that of other payloads
    SKIPPED = 6  # verdict: the serial was left out, and will never be accepted
    TOO_OLD = 7  # verdict: neither done nor refused
    SESSION_EXPIRED = 8  # verdict; ``number``: the horizon, ms
    EPOCH = 9  # verdict on an open or drop; ``number``: the current epoch (0: none)
    TOO_MANY_NAMES = 10  # verdict on an open
    TOO_LARGE = 11  # payload or batch over the limit in ``number``, bytes
    OVERLOADED = 12  # the server has as many clients as it takes
    INVALID = 13  # a client id or request that can never be right
    CANNOT_INIT = 14  # Initialise: ``detail`` says why
    OUT_OF_RANGE = 15  # reads, trims, cursors: ``detail`` is "first_lsn,last_lsn"
    NOT_READY = 16  # reads: not VOTING, or not now; digests: ``number`` is the damaged entry's id, or 0
    NO_SPACE = 17  # no verdict; appends and opens: this transmission was not taken, ``detail`` says which disks
    DROPPED = 18  # verdict on this transmission: name dropped since; ``number``: current epoch (0: not open)
    CONFLICT = 19  # verdict on a conditional append; ``number``: the log's last LSN, which is not the one expected
    CANNOT_CHANGE = 30  # changes of the member list, handovers: ``detail`` says why
    CHANGED = 40  # verdict on a change: what it would change is not as the asker believes; ``detail`` says how it is
    TOO_MANY_CURSORS = 41  # verdict on a new cursor
    CURSOR_HOLDS = 42  # verdict on a trim: ``detail`` names the cursor that needs those payloads
    NO_CURSOR = 43  # verdict on a cursor's drop: there is none of that name, or it is at another LSN
    NO_SUCH_LOG = 44  # there is no log of that name (any more)
    LOG_EXISTS = 45  # verdict on a new log, or a new name: there is one of that name
    TOO_MANY_LOGS = 46  # verdict on a new log
    NO_RIGHT = 50  # never taken: the certificate lacks the role that ``detail`` names; in a Problem: it has none


class Refused(NamedTuple):
    """A refusal of ``count`` appends of ``client`` from ``serial`` on; for other requests these are 0 and "".

    ``number`` and ``detail``: see `Code`; ``leader``: with NOT_LEADER and LOST_LEADERSHIP the leader's id, else 0
    (also: not known).
    """

    origin: Origin
    client: str
    serial: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    code: Code
    number: int = 0
    leader: int = 0
    detail: str = ""


# -- appends and reads (R21, R25)


class AppendRun(NamedTuple):
    """Appends of one client with serials ``serial``, ``serial + 1``, … (R21).

    ``bodies`` are (count, body) pairs, one for each append, as `Entry` defines them. ``sparse``: the client has
    nothing else in flight, so its single serial may leave serials out. ``by_hand``: a retry of an append that another
    process sent. ``epoch``: the one that the client opened; 0 for random clients. ``expect_last``: its single append,
    which is not sparse, is to be taken only if this is the log's last LSN (0: there was never a payload); None: always.
    """

    origin: Origin
    client: str
    epoch: int
    serial: int
    bodies: list[tuple[int, bytes]]
    sparse: bool = False
    by_hand: bool = False
    expect_last: int | None = None


class Appended(NamedTuple):
    """Success: serials ``serial``, ``serial + 1``, … are guaranteed, each one's first payload at its place in ``lsns``
    (consecutive LSNs travel as [first, how many]). ``duplicate``: they had been appended before. A frame of appends has
    an answer for each entry that holds some of them, as soon as that is guaranteed. The origin is not sent: client and
    serial name the appends."""

    origin: Origin
    client: str
    serial: int
    lsns: Sequence[int]
    duplicate: bool


class ReadIndex(NamedTuple):
    """A request for the id of the entry up to which a read that begins now must see the log (R25)."""

    origin: Origin


class ReadAt(NamedTuple):
    """Success: the read is to be answered up to and including entry ``id`` (R25): from our own disk, and from the log's
    tail in memory, as ``id`` may not be on this disk yet."""

    origin: Origin
    id: int


# -- sessions and outcomes (R21, R22)


class OpenSession(NamedTuple):
    """A request to open session ``name`` in place of epoch ``replaces`` (0: none); ``nonce``: 16 bytes, fresh for each
    epoch replaced (R22)."""

    origin: Origin
    name: str
    replaces: int
    nonce: bytes


class Opened(NamedTuple):
    """Success: the session is open, with its last serial as of its SESSION entry, guaranteed (R22)."""

    origin: Origin
    epoch: int
    last_serial: int


class DropSession(NamedTuple):
    """An operator's request to drop session ``name``, if it stands at ``epoch`` (0: at any) (R22)."""

    origin: Origin
    name: str
    epoch: int


class Dropped(NamedTuple):
    """Success: the name is dropped, guaranteed; ``epoch`` was its last."""

    origin: Origin
    epoch: int


class ListSessions(NamedTuple):
    """A request for the session table; judged after a read round, like `Outcome`."""

    origin: Origin


class Sessions(NamedTuple):
    """The session table, guaranteed. Of each row client, epoch, last serial, last entry's id and its time in ms are
    sent."""

    origin: Origin
    rows: list[SessionRow]
    horizon_ms: int


class Outcome(NamedTuple):
    """A request for the fate of append (``client``, ``serial``) of ``epoch`` (0: of any since the name's birth, or a
    random client's); judged once a read round has confirmed this leader (R21, R25)."""

    origin: Origin
    client: str
    serial: int
    epoch: int = 0


class Fate(IntEnum):
    """The outcome of an append, as far as the session table can tell (R21)."""

    APPENDED = 1
    NOT_APPENDED = 2  # no transmission was taken so far; one on its way may still arrive
    TOO_OLD = 3  # nobody can tell any more


class Told(NamedTuple):
    """The fate of an append. ``lsn``: its first payload's (0 unless APPENDED). ``birth``: for a name, the epoch with
    which it was opened first since its last drop; nothing is known from before. 0: the name is not open, or the client
    is random."""

    origin: Origin
    fate: Fate
    lsn: int
    birth: int


# -- operators: the first start, trims, members, leadership (R20, R27 to R29)


class Initialise(NamedTuple):
    """An operator's command to found a cluster that waits for it (R29)."""

    origin: Origin


class Initialised(NamedTuple):
    """Success: the cluster has started, durably here."""

    origin: Origin


class Trim(NamedTuple):
    """A request to the leader that no payload below ``before_lsn`` be served any more (R20). Refused with OUT_OF_RANGE
    unless that is an LSN from 1 to one past the end, and with CURSOR_HOLDS if a cursor is below it, unless ``force``
    drops the cursor. To repeat it does no harm."""

    origin: Origin
    before_lsn: int
    force: bool = False


class Trimmed(NamedTuple):
    """Success: no payload below ``first_lsn`` is served from now on, guaranteed (R20); it is above the LSN that was
    asked for if more had been trimmed or cleaned."""

    origin: Origin
    first_lsn: int


class MemberStep(IntEnum):
    """The changes that an operator can ask for."""

    ADD = 1
    REMOVE = 2
    REPLACE = 3


class ChangeMember(NamedTuple):
    """A request to the leader to change member ``id`` (R27); ``address`` and ``priority`` are a new member's (REMOVE:
    "" and 0). Refused with CANNOT_CHANGE. If the change is done already, the leader says so after a read round."""

    origin: Origin
    step: MemberStep
    id: int
    address: str
    priority: int


class MembersChanged(NamedTuple):
    """Success: the change is guaranteed; ``members``: the list with it (R27), for each member [id, address, priority,
    incarnation, role (1 VOTER, 2 LEARNER, 3 GONE), retired incarnations]."""

    origin: Origin
    members: list[list[Any]]


class Transfer(NamedTuple):
    """A request to the leader that server ``target`` lead (R28). Refused with CANNOT_CHANGE; if the target leads
    already, it says so after a read round."""

    origin: Origin
    target: int


class HandedOver(NamedTuple):
    """Success: ``leader`` leads in ``term`` (R28)."""

    origin: Origin
    leader: int
    term: int


# -- settings and cursors


class ShowSettings(NamedTuple):
    """A request for the replicated settings (rules.md#settings); judged after a read round, like `Outcome`."""

    origin: Origin


class ChangeSettings(NamedTuple):
    """A request to change settings: all of ``changes`` or none. Each is (name, value that the asker believes is in
    force, value wanted). Refused with CHANGED if a setting has neither value."""

    origin: Origin
    changes: tuple[tuple[str, int, int], ...]


class SettingsAre(NamedTuple):
    """The replicated settings, guaranteed; the answer to `ChangeSettings` holds the change."""

    origin: Origin
    values: dict[str, int]


class SetCursor(NamedTuple):
    """A request to put cursor ``name`` at ``lsn``, the next LSN that its reader needs, at most one past the end; judged
    after a read round. Refused with OUT_OF_RANGE or TOO_MANY_CURSORS."""

    origin: Origin
    name: str
    lsn: int


class DropCursor(NamedTuple):
    """A request to drop cursor ``name``; refused with NO_CURSOR. The server's own retention drops it only if it is at
    ``lsn`` (0: wherever it is), and says ``why`` in the event; clients send neither."""

    origin: Origin
    name: str
    lsn: int = 0
    why: str = "operator"


class CursorIs(NamedTuple):
    """Success: the cursor is at ``lsn``, or was dropped from there; guaranteed."""

    origin: Origin
    name: str
    lsn: int


class ListCursors(NamedTuple):
    """A request for all cursors; judged after a read round, like `Outcome`."""

    origin: Origin


class CursorsAre(NamedTuple):
    """All cursors, (name, LSN), by name; guaranteed. The shell adds how far each is behind before it sends them."""

    origin: Origin
    rows: tuple[tuple[str, int], ...]


# -- logs besides the first (rules.md#logs); all but `FoundLog` are judged after a read round, like `Outcome`


class CreateLog(NamedTuple):
    """A request to create a log; ``nonce``: 16 bytes, fresh for each log; ``settings``: plain, all that it begins with.
    With a nonce that has created a log already, that log is the answer. Refused with INVALID, LOG_EXISTS,
    TOO_MANY_LOGS; with NO_SUCH_LOG if it was deleted since."""

    origin: Origin
    name: str
    nonce: bytes
    options: LogOptions
    settings: dict[str, int]


class FoundLog(NamedTuple):
    """Word of this server's hosting that log ``number`` may begin with the plain member list ``members``: of those who
    have made its store. No answer; the leader founds no log twice, and none while its own list is not guaranteed."""

    number: int
    members: list[list[Any]]


class SetLog(NamedTuple):
    """A request to change options of log ``name``: (name of the option, value). Refused with INVALID, NO_SUCH_LOG."""

    origin: Origin
    name: str
    changes: tuple[tuple[str, int], ...]


class RenameLog(NamedTuple):
    """A request to call log ``name`` ``new``. Refused with INVALID, NO_SUCH_LOG, LOG_EXISTS."""

    origin: Origin
    name: str
    new: str


class DeleteLog(NamedTuple):
    """A request to delete log ``name``; ``nonce``: 16 bytes, fresh. With one that has deleted a log already, that log
    is the answer. Refused with NO_SUCH_LOG."""

    origin: Origin
    name: str
    nonce: bytes


class ListLogs(NamedTuple):
    """A request for the directory."""

    origin: Origin


class LogIs(NamedTuple):
    """Success: the log is in the directory as it is here, guaranteed. It need not be founded yet."""

    origin: Origin
    log: NamedLog


class LogDeleted(NamedTuple):
    """Success: the log is out of the directory, guaranteed. A server's shell tells it to a client once no append
    that is asked for from then on can be acknowledged."""

    origin: Origin
    log: DeletedLog


class LogsAre(NamedTuple):
    """The directory, guaranteed."""

    origin: Origin
    listing: Listing


LogAnswer: TypeAlias = LogIs | LogDeleted | LogsAre
#: Requests of clients about logs.
LogRequest: TypeAlias = CreateLog | SetLog | RenameLog | DeleteLog | ListLogs
#: Requests that are passed to the core as they were received.
Request: TypeAlias = (
    OpenSession | DropSession | ListSessions | Outcome | Initialise | Trim | ChangeMember | Transfer | ShowSettings
    | ChangeSettings | SetCursor | DropCursor | ListCursors
)
#: Replies that are sent as the core gives them.
Answer: TypeAlias = Appended | Opened | Sessions | Told | Trimmed | MembersChanged | HandedOver | SettingsAre
Reply: TypeAlias = Answer | Refused | ReadAt | Dropped | Initialised | CursorIs | CursorsAre | LogAnswer
