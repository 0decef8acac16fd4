"""Messages between clients and servers beside those of `alpo.core.requests`: hellos, appends in their encoded form,
refusals, and answers that a server gives without its core.

`alpo.wire.codec` encodes and decodes them. A client may have many requests in flight; ``request`` is the client's own
number, which comes back with the answer (``origin`` in `alpo.core.requests`). Appends have none: client and serial name
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from alpo.core import requests as q

#: Versions of this protocol: the newest, spoken if both sides know it, and the oldest that is still understood.
VERSION = 4
OLDEST_VERSION = 4


class PeerHello(NamedTuple):
    """First frame from a server that dials another, and the answer to it (R27).

    ``cluster`` is b"" before the first start; ``target_incarnation`` is b"" if unknown. ``timers_ms``: (heartbeat,
    election timeout, stagger). ``horizon_ms``: the sessions' horizon. ``process``: a random number that the sender's
    process has drawn at its start.
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
    process: bytes = b""


#: Beginning of the name by which the `alpo` command calls itself.
COMMAND = "alpo-command "


class ClientHello(NamedTuple):
    """First frame from a client; ``cluster`` is b"" if any will do. ``library``: what it is, with its version; a name
    that begins with `COMMAND` is an operator's."""

    version: int
    cluster: bytes
    library: str


class ServerHello(NamedTuple):
    """Answer to a `ClientHello`. ``leader`` is 0 while none is known; ``members``: (id, address)."""

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
    """Last frame before a connection is closed: what was wrong. ``code``: a `core.requests.Code`."""

    code: int
    text: str


class Append(NamedTuple):
    """A `core.requests.AppendRun` in its encoded form. ``items``: bytes, or (count, joined body) for more than one.

    A type of its own for speed: to make a pair of each payload, and to undo that, would cost a client a fifth more for
    each frame.
    """

    client: str
    epoch: int
    serial: int
    sparse: bool
    by_hand: bool
    items: list[Any]


class AppendAfter(NamedTuple):
    """A conditional `core.requests.AppendRun` in its encoded form: one append, to be taken only if ``expect_last`` is
    the log's last LSN. ``item``: as those of `Append`."""

    client: str
    epoch: int
    serial: int
    by_hand: bool
    expect_last: int
    item: Any

    @property
    def items(self) -> list[Any]:
        """The one item, as `Append` has its items."""
        return [self.item]

    @property
    def sparse(self) -> bool:
        """False: it skips no serials."""
        return False


class AppendRefused(NamedTuple):
    """Refusal of ``count`` serials from ``serial`` on; ``leader`` (0: unknown) and its address are hints."""

    client: str
    serial: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


class AwaitReplicated(NamedTuple):
    """Request answered once every member has payload ``lsn`` on disk, or after ``wait_ms`` (R18; leader only)."""

    request: int
    lsn: int
    wait_ms: int


class Replicated(NamedTuple):
    """Answer to `AwaitReplicated`. ``done``: every member has it on disk. Else ``behind``: ids of those not known to
    have it (empty if the members are changing)."""

    request: int
    done: bool
    behind: tuple[int, ...]


class CursorTable(NamedTuple):
    """`core.requests.CursorsAre` with lags that the server's store adds. ``rows``: (name, lsn, lag_bytes, lag_ms), by
    name."""

    request: int
    rows: list[tuple[str, int, int, int]]


class Done(NamedTuple):
    """Success of a request; ``number``: the dropped epoch, the cursor's present or last position, or the last id of a
    backup; else 0."""

    request: int
    number: int


class Read(NamedTuple):
    """Request for one page from LSN ``start`` on.

    ``start`` 0: the first available. ``last`` > 0: instead the last so many payloads. ``since_ms`` > 0: instead from
    the first entry at or after that time. ``linearizable``: a read round fixes the end (R25; leader only); otherwise
    this server's own copy is read (R26), after waiting at most ``wait_ms`` until it reaches ``end``, if given (> 0).
    ``wait_ms`` with ``end`` 0: long poll, answered when there is something at ``start`` or the time is up. ``client``:
    only this client's payloads ("": all).
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
    """Answer to `Read`. ``entries``: (id, term, time_ms, client, serial, lsn, count, body) of appends, in order, each
    whole; those of a run share its id, term, time and client (R32). ``next_lsn``: where the next page begins;
    ``end_lsn``: the last LSN that this server could serve when it answered (for a linearizable read: its fixed end);
    ``first_lsn``: the first available."""

    request: int
    entries: list[tuple[int, int, int, str, int, int, int, bytes]]
    next_lsn: int
    end_lsn: int
    first_lsn: int


class ReadColumns(NamedTuple):
    """`Read` answered by a `ColumnPage`: for readers of many payloads."""

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
    """A `Page` in columns, packed by `wire.column_pages`: integers of 8 bytes; ``names``: all clients, ``clients``:
    position of each entry's client in them; ``lengths`` of the bodies, and the bodies joined; ``steps``: see
    `column_pages.PageColumns`, a byte each."""

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
    steps: bytes = b""


class Status(NamedTuple):
    """Request for this server's status."""
    request: int


class ListEvents(NamedTuple):
    """Request for the newest ``count`` events of this server with a number below ``before`` (0: no limit)."""

    request: int
    before: int
    count: int  # type: ignore[assignment]


class EventList(NamedTuple):
    """Answer to `ListEvents`. ``rows``: (number, time_ms, name, fields as JSON), oldest first, without gaps; [] if
    there are none below ``before``. ``time_ms``: server ``id``'s clock when it was asked."""

    request: int
    id: int
    time_ms: int
    rows: list[tuple[int, int, str, str]]


class StatusAnswer(NamedTuple):
    """Answer to `Status`; ``fields``: see `node.status`."""

    request: int
    fields: dict[str, Any]


class Backup(NamedTuple):
    """Request for a copy of this server's log, without hard state and incarnation."""

    request: int


class BackupHead(NamedTuple):
    """First answer to a `Backup`; `BackupRows` follow, then `Done` with the last id as ``number``. ``schema``: version
    of the rows. ``end_id``: the copy's last entry. ``bytes_about``: expected size of the file."""

    request: int
    schema: int
    server: int
    end_id: int
    bytes_about: int


class BackupRows(NamedTuple):
    """Rows of the data file's ``table``, with its columns; every row has its own checksum."""

    request: int
    table: str
    rows: list[tuple[Any, ...]]


class GiveBack(NamedTuple):
    """Request to return the free pages of this server's data file to the file system, while it serves (R19)."""

    request: int


class AcceptClocks(NamedTuple):
    """Request of an operator to believe the members' clocks, though they have leapt ahead. For the leader; answered by
    `Done` with the milliseconds of the leap."""

    request: int


class RangeDigest(NamedTuple):
    """Request for a digest over this server's entries ``first_id`` … ``last_id`` (R31)."""

    request: int
    first_id: int
    last_id: int


class DigestIs(NamedTuple):
    """Answer to `RangeDigest`, see `storage.scrub.Span`: as much of the range as the server holds, knows to be
    guaranteed and reads for one request; empty if ``last_id`` is below ``first_id``."""

    request: int
    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    digest: bytes


class RequestRefused(NamedTuple):
    """Refusal of a numbered request."""

    request: int
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


ClientRequest: TypeAlias = (
    Append | AppendAfter | q.Request | Read | ReadColumns | Status | AwaitReplicated | ListEvents | Backup | GiveBack
    | RangeDigest | AcceptClocks
)
ServerReply: TypeAlias = (
    q.Answer | AppendRefused | RequestRefused | Done | Page | ColumnPage | StatusAnswer | Replicated | EventList
    | CursorTable | BackupHead | BackupRows | DigestIs
)
Hello: TypeAlias = PeerHello | ClientHello | ServerHello
