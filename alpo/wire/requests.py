"""What clients and servers say to each other, and the hello that opens every connection.

`alpo.wire.codec` turns these into bytes. A client may have many requests under way; ``request`` numbers are
the client's own and come back with the answer. Appends have none: client and serial name them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from alpo.core.inputs import MemberStep

#: Of this protocol: the one spoken where both sides know it, and the oldest that is still understood.
VERSION = 2
OLDEST_VERSION = 1


class PeerHello(NamedTuple):
    """First frame from a server that dials another, and the answer to it (R27).

    ``cluster`` is b"" before the first start; ``target_incarnation`` b"" when not known. ``timers_ms``:
    (heartbeat, election timeout, stagger). ``horizon_ms``: of the sessions.
    """

    version: int
    cluster: bytes
    id: int
    incarnation: bytes
    address: str
    target_id: int
    target_incarnation: bytes
    time_ms: int
    horizon_ms: int
    timers_ms: tuple[int, int, int]


class ClientHello(NamedTuple):
    """First frame from a client; ``cluster`` b"" if it does not mind which."""

    version: int
    cluster: bytes
    library: str


class ServerHello(NamedTuple):
    """The answer to a `ClientHello`. ``leader`` is 0 while none is known; ``members``: (id, address)."""

    version: int
    cluster: bytes
    id: int
    time_ms: int
    horizon_ms: int
    payload_bytes_max: int
    batch_bytes_max: int
    window: int
    leader: int
    members: tuple[tuple[int, str], ...]


class Problem(NamedTuple):
    """The last frame before a connection is closed: what was wrong. ``code``: a `core.ready.Code`."""

    code: int
    text: str


class Append(NamedTuple):
    """Appends with serials ``serial``, ``serial + 1``, …; see `core.inputs.AppendRun`. ``items``: bytes, or
    (count, joined body) for a batch of more than one."""

    client: str
    epoch: int
    serial: int
    sparse: bool
    by_hand: bool
    items: list[Any]


class Appended(NamedTuple):
    """Success for serials ``serial``, ``serial + 1``, …: the LSN of each one's first payload."""

    client: str
    serial: int
    lsns: list[int]
    duplicate: bool


class AppendRefused(NamedTuple):
    """``count`` serials from ``serial`` on are refused; ``leader`` (0: unknown) and its address are hints."""

    client: str
    serial: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


class Open(NamedTuple):
    request: int
    name: str
    replaces: int
    nonce: bytes


class Opened(NamedTuple):
    request: int
    epoch: int
    last_serial: int


class Drop(NamedTuple):
    request: int
    name: str
    epoch: int


class ListSessions(NamedTuple):
    request: int


class SessionTable(NamedTuple):
    """``rows``: (client, epoch, last_serial, last_id, last_time_ms)."""

    request: int
    rows: list[tuple[str, int, int, int, int]]
    horizon_ms: int


class Init(NamedTuple):
    """R29: found the cluster."""

    request: int


class Trim(NamedTuple):
    """R20: serve no payload below LSN ``before`` any more. ``force``: cursors that need what it takes are dropped."""

    request: int
    before: int
    force: bool


class ChangeMember(NamedTuple):
    """R27: see `core.inputs.ChangeMember`."""

    request: int
    step: MemberStep
    id: int
    address: str
    priority: int


class MemberTable(NamedTuple):
    """The change is guaranteed; ``members`` (JSON text of the plain list) is the list since then."""

    request: int
    members: str


class Transfer(NamedTuple):
    """R28: ``target`` shall lead."""

    request: int
    target: int


class HandedOver(NamedTuple):
    """R28: ``leader`` leads in ``term``."""

    request: int
    leader: int
    term: int


class Trimmed(NamedTuple):
    """The trim is guaranteed; ``first_lsn``: the first LSN that is served from now on."""

    request: int
    first_lsn: int


class Outcome(NamedTuple):
    """What became of the append (``client``, ``serial``, ``epoch``; 0: of any)? See `core.inputs.Outcome`."""

    request: int
    client: str
    serial: int
    epoch: int = 0


class Told(NamedTuple):
    """``fate``: a `core.ready.Fate`; ``lsn``: of the first payload, 0 unless it is APPENDED. ``birth``: see
    `core.ready.Told`; None: version 1 does not tell."""

    request: int
    fate: int
    lsn: int
    birth: int | None = None


class AwaitReplicated(NamedTuple):
    """Answered once every member has payload ``lsn`` on disk, or after ``wait_ms`` (R18; leader only)."""

    request: int
    lsn: int
    wait_ms: int


class Replicated(NamedTuple):
    """``done``: every member has it on disk. Else ``behind``: those not known to (none: the members are changing)."""

    request: int
    done: bool
    behind: tuple[int, ...]


class ShowSettings(NamedTuple):
    request: int


class ChangeSettings(NamedTuple):
    """``changes``: (name, the value that the asker believes it has, the value wanted); all of them or none."""

    request: int
    changes: tuple[tuple[str, int, int], ...]


class SettingsAre(NamedTuple):
    """The replicated settings: (name, value)."""

    request: int
    values: tuple[tuple[str, int], ...]


class SetCursor(NamedTuple):
    """The reader ``name`` needs payload ``lsn`` and all after it."""

    request: int
    name: str
    lsn: int


class DropCursor(NamedTuple):
    request: int
    name: str


class ListCursors(NamedTuple):
    request: int


class CursorTable(NamedTuple):
    """``rows``: (name, lsn, lag_bytes, lag in ms), by name."""

    request: int
    rows: list[tuple[str, int, int, int]]


class Done(NamedTuple):
    """What was asked is done; ``number``: the dropped epoch, or where the cursor stands or stood."""

    request: int
    number: int


class Read(NamedTuple):
    """Asks for one page from LSN ``start`` on.

    ``start`` 0: the first available. ``last`` > 0: instead the last so many payloads. ``since_ms`` > 0: instead from
    the first entry at or after that time. ``linearizable``: fix the end by R25 (leader only); otherwise this server's
    own copy (R26), which first waits until it reaches ``end`` if that is given (> 0), for at most
    ``wait_ms``. ``wait_ms`` with ``end`` 0: long poll, answer when there is something at ``start`` or the time is up.
    ``client``: only this client's payloads ("" all).
    """

    request: int
    start: int
    end: int
    last: int
    since_ms: int
    bytes_max: int
    linearizable: bool
    wait_ms: int
    client: str


class Page(NamedTuple):
    """``entries``: (id, term, time_ms, client, serial, lsn, count, body) of DATA entries, in order, each whole.
    ``next_lsn``: where the next page begins; ``end_lsn``: the last LSN that this server could serve when it
    answered (for a linearizable read: its fixed end); ``first_lsn``: the first available.
    """

    request: int
    entries: list[tuple[int, int, int, str, int, int, int, bytes]]
    next_lsn: int
    end_lsn: int
    first_lsn: int


class ReadColumns(NamedTuple):
    """`Read`, answered by a `ColumnPage`: for whoever reads a great deal."""

    request: int
    start: int
    end: int
    last: int
    since_ms: int
    bytes_max: int
    linearizable: bool
    wait_ms: int
    client: str


class ColumnPage(NamedTuple):
    """A `Page` column by column, as `wire.column_pages` packs it: integers of 8 bytes; ``names`` the clients there are,
    ``clients`` the place of each entry's in it; ``lengths`` of the bodies, and the bodies in one.
    """

    request: int
    ids: bytes
    terms: bytes
    times_ms: bytes
    names: list[str]
    clients: bytes
    serials: bytes
    lsns: bytes
    counts: bytes
    lengths: bytes
    bodies: bytes
    next_lsn: int
    end_lsn: int
    first_lsn: int


class Status(NamedTuple):
    request: int


class ListEvents(NamedTuple):
    """Asks this server for the newest ``count`` of its events with a number below ``before`` (0: of all)."""

    request: int
    before: int
    count: int  # type: ignore[assignment]


class EventList(NamedTuple):
    """``rows``: (number, time_ms, name, fields as JSON), oldest first, without a gap; [] if there are none below
    ``before``. ``time_ms``: server ``id``'s clock as it was asked."""

    request: int
    id: int
    time_ms: int
    rows: list[tuple[int, int, str, str]]


class StatusAnswer(NamedTuple):
    """``fields``: see `node.status`."""

    request: int
    fields: dict[str, Any]


class Backup(NamedTuple):
    """Asks for a copy of this server's log, without hard state and incarnation."""

    request: int


class BackupHead(NamedTuple):
    """The first answer to a `Backup`; `BackupRows` follow, then `Done`, ``number``: the last id. ``schema``: of which
    version the rows are. ``end_id``: the copy's last entry. ``bytes_about``: how large the file will be."""

    request: int
    schema: int
    server: int
    end_id: int
    bytes_about: int


class BackupRows(NamedTuple):
    """Rows of the data file's ``table``, each as its columns are; every row has its own checksum."""

    request: int
    table: str
    rows: list[tuple[Any, ...]]


class GiveBack(NamedTuple):
    """R19: this server shall give the free pages of its data file back to the file system, while it serves."""

    request: int


class RangeDigest(NamedTuple):
    """Asks this server for a digest over its entries ``first_id`` … ``last_id`` (R31)."""

    request: int
    first_id: int
    last_id: int


class DigestIs(NamedTuple):
    """See `storage.digest.Span`: of what was asked for as much as the server holds, knows to be guaranteed and reads
    for one request; a ``last_id`` below ``first_id``: nothing."""

    request: int
    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    digest: bytes


class RequestRefused(NamedTuple):
    """Any numbered request."""

    request: int
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


ClientRequest: TypeAlias = (
    Append | Open | Drop | ListSessions | Init | Read | Status | Trim | Outcome | AwaitReplicated | ListEvents
    | ShowSettings | ChangeSettings | SetCursor | DropCursor | ListCursors | Backup | ChangeMember | Transfer
    | GiveBack | RangeDigest | ReadColumns
)
ServerReply: TypeAlias = (
    Appended | AppendRefused | Opened | SessionTable | Done | Page | StatusAnswer | RequestRefused | Trimmed | Told
    | Replicated | EventList | SettingsAre | CursorTable | BackupHead | BackupRows | MemberTable | HandedOver
    | DigestIs | ColumnPage
)
Hello: TypeAlias = PeerHello | ClientHello | ServerHello
