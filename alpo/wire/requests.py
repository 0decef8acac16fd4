"""Messages between clients and servers beside those of `alpo.core.requests`: hellos, appends in their encoded form,
refusals, and answers that a server gives without its core.

`alpo.wire.codec` encodes and decodes them. A client may have many requests in flight; ``request`` is the client's own
number, which comes back with the answer (``origin`` in `alpo.core.requests`). Appends have none: client and serial name
them.

A page in columns holds entries as readers see them, packed and unpacked without a Python step for each entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from alpo.core import requests as q
from alpo.core.directory import FIRST_NAME, FIRST_NUMBER
from alpo.core.entries import DIGEST_BYTES, Entry, Kind, counts_of, parts, serials_of, split_payloads

from .shapes import INT_MAX, LONG_BYTES, refuse

#: Versions of this protocol: the newest, spoken if both sides know it, and the oldest that is still understood.
VERSION = 5
OLDEST_VERSION = 4
#: The first version that knows other logs than the first.
LOGS_VERSION = 5


class PeerHello(NamedTuple):
    """First frame from a server that dials another, and the answer to it (R27).

    ``cluster`` is b"" before the first start; a *different* one closes the connection. ``address``: where the sender
    listens, ``host:port``. ``target_incarnation`` is b"" if unknown. ``time_ms``: the sender's clock. ``horizon_ms``:
    the sessions' horizon (R22). ``timers_ms``: heartbeat, election timeout, stagger; to warn when they differ.
    ``process``: a random number that the sender's process has drawn at its start, to notice that two processes have one
    identity.
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
    """First frame from a client; ``cluster`` is b"" if any will do. ``library``: what it is, with its version; that of
    the `alpo` command begins with "alpo-command ", another server's with "alpod ". ``log``: the name of the log that
    all of the connection is about, "" for the first; version 4 knows no other."""

    version: int
    cluster: bytes
    library: str
    log: str = ""


class ServerHello(NamedTuple):
    """Answer to a `ClientHello`. ``cluster`` is the log's id, b"" before the first start; ``id`` is this server's,
    ``time_ms`` its clock. ``horizon_ms``: the sessions' horizon: random client ids are made newer than it (R22).
    ``batch_bytes_max``: of a batch's body as it travels, lengths included. ``window``: appends that one client may have
    in flight. ``leader`` is 0 while none is known; ``members``: (id, address). ``number`` and ``name``: the log's.
    """

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
    number: int = FIRST_NUMBER
    name: str = FIRST_NAME


class Problem(NamedTuple):
    """Last frame before a connection is closed, perhaps instead of an answer: what was wrong, in a line for people.
    Between servers NOT_READY means that the sender is stopping: its absence should raise no alarm."""

    code: int
    text: str


class Append(NamedTuple):
    """Appends with serials ``serial``, ``serial + 1``, … (R21), the last at most 2^63 - 1.

    ``epoch``: of a named client's session; 0 for a random client. ``sparse``: the client has no other append in flight,
    so its single serial may skip others. ``by_hand``: a retry by another process. An item is a payload (binary), or a
    batch: [count, body], the body being each payload behind its length (4 bytes, unsigned, little endian).
    """
    # The core's AppendRun would not do: to make a pair of each payload, and undo that, costs a client a fifth more.

    client: str
    epoch: int
    serial: int
    sparse: bool
    by_hand: bool
    items: list[Any]


class AppendAfter(NamedTuple):
    """A conditional append (R21): taken only if ``expect_last`` is the log's last LSN (0: it never held a payload).
    Otherwise refused with CONFLICT, which leaves the serial free. If the refusal's ``number`` is above ``expect_last``,
    no transmission of it can be taken any more; if below, a late one can. The other fields are as in `Append`."""

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
    """Refusal of ``count`` serials from ``serial`` on; ``number`` depends on the code; ``leader`` (0: unknown) and its
    address are hints; ``detail`` is for people."""

    client: str
    serial: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


class AwaitReplicated(NamedTuple):
    """Request answered once every member has payload ``lsn`` on disk, or after ``wait_ms``, at most 60,000 (R18; leader
    only)."""

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
    """All cursors, guaranteed. ``rows``, by name: name, LSN, about how many bytes it holds, age in ms of the payload at
    that LSN (0 at the end)."""

    request: int
    rows: list[tuple[str, int, int, int]]


class Done(NamedTuple):
    """Success of `Initialise`, `DropSession`, `SetCursor`, `DropCursor` or `AcceptClocks`, the end of a `Backup`, or
    the begin of `GiveBack`. ``number``: the dropped epoch, the cursor's present or last position, the last id of a
    backup, or the clocks' leap in ms; else 0."""

    request: int
    number: int


class Read(NamedTuple):
    """Request for one page from LSN ``start`` on.

    ``start`` 0: the first available; below that: OUT_OF_RANGE (R20). ``last`` > 0: instead the last so many payloads.
    ``since_ms`` > 0: instead from the first entry at or after that time. ``linearizable``: a read round fixes the end
    (R25; leader only); otherwise this server's own copy is read (R26), after waiting at most ``wait_ms`` until it
    reaches ``end``, if given (> 0). ``wait_ms`` with ``end`` 0: long poll, answered when there is something at
    ``start`` or the time is up. ``client``: only this client's payloads ("": all). ``bytes_max``: of all bodies
    together; the server has its own limit too.
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
    whole; those of a run share its id, term, time and client (R32). Of a batch in which the log was trimmed only the
    payloads from ``first_lsn`` on are there, with their lsn and count. ``next_lsn``: where the next page begins;
    ``end_lsn``: the last LSN that this server could serve when it answered (for a linearizable read: its fixed end);
    ``first_lsn``: the first available, one above ``end_lsn`` if there is
    nothing."""

    request: int
    entries: list[tuple[int, int, int, str, int, int, int, bytes]]
    next_lsn: int
    end_lsn: int
    first_lsn: int


class ReadColumns(NamedTuple):
    """`Read` answered by a `ColumnPage`, which is faster for many payloads; the fields are the same."""

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
    """A `Page` in columns of equal length. ``names``: the clients, each once; ``clients``: for each entry the position
    of its client in them, from 0; ``lengths`` of the bodies, and the bodies joined. ``steps``: a byte for each entry, 1
    if its payloads have the serials ``serial``, ``serial + 1``, … (a run), 0 if all have ``serial``."""

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
    """Request for the newest ``count`` events of this server with a number below ``before`` (0: no limit); a page
    holds at most 1,000."""

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
    """Answer to `Status`; ``fields``: text to null, booleans, numbers, text, arrays and such maps, at most 16 deep."""

    request: int
    fields: dict[str, Any]


class Backup(NamedTuple):
    """Request for a copy of this server's log as far as it is guaranteed, without hard state and incarnation. Answered
    by `BackupHead`, `BackupRows` and `Done`; or, even in the middle, by a refusal: OUT_OF_RANGE when cleaning has
    overtaken the copy (ask again), or NOT_READY."""

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
    """Rows of the data file's ``table``: hard, base, applied, saved_sessions, runs or, last and in order of their ids,
    log; with its columns in order, those of log as an entry. Every row of log has its own checksum."""

    request: int
    table: str
    rows: list[tuple[Any, ...]]


class GiveBack(NamedTuple):
    """Request to return the free pages of this server's data file to the file system, while it serves (R19).
    Answered at once by `Done`; the status shows how far it is."""

    request: int


class AcceptClocks(NamedTuple):
    """Request of an operator to believe the members' clocks, though they have leapt ahead. For the leader; answered by
    `Done` with the milliseconds of the leap."""

    request: int


class RangeDigest(NamedTuple):
    """Request for a digest over this server's entries ``first_id`` … ``last_id`` (R31). Any server answers. Refused
    with NOT_READY if one of them is damaged (its id is the ``number``; 0: the store cannot be read), and with INVALID
    if ``last_id`` is below ``first_id``."""

    request: int
    first_id: int
    last_id: int


class DigestIs(NamedTuple):
    """Answer to `RangeDigest`: for as much of the range as the server holds, knows to be guaranteed and reads for one
    request (4,096 entries, about 1 MiB, or what it reads in a second); ask again from ``last_id`` + 1. Empty if
    ``last_id`` is below ``first_id``. LSNs: of the first and the last payload in these entries; ``last_lsn`` is
    ``first_lsn`` - 1 if they hold none, ``first_lsn`` 0 if there is no entry."""

    request: int
    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    digest: bytes


class RequestRefused(NamedTuple):
    """Refusal of a numbered request; its fields are as in `AppendRefused`."""

    request: int
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


ClientRequest: TypeAlias = (
    Append | AppendAfter | q.Request | q.LogRequest | Read | ReadColumns | Status | AwaitReplicated | ListEvents
    | Backup | GiveBack | RangeDigest | AcceptClocks
)
ServerReply: TypeAlias = (
    q.Answer | q.LogAnswer | AppendRefused | RequestRefused | Done | Page | ColumnPage | StatusAnswer | Replicated
    | EventList | CursorTable | BackupHead | BackupRows | DigestIs
)
Hello: TypeAlias = PeerHello | ClientHello | ServerHello


class PageColumns(NamedTuple):
    """The fields of `Page.entries` as columns, all of one length, and ``steps``: 1 for a run (R32), whose payloads have
    one serial each, consecutive from the entry's on; 0 where all payloads of an entry have its serial."""

    ids: Sequence[int]
    terms: Sequence[int]
    times_ms: Sequence[int]
    clients: Sequence[str]
    serials: Sequence[int]
    lsns: Sequence[int]
    counts: Sequence[int]
    bodies: Sequence[bytes]
    steps: Sequence[int]

    @staticmethod
    def of(
        ids: Sequence[int], terms: Sequence[int], times_ms: Sequence[int], clients: Sequence[str],
        serials: Sequence[int], lsns: Sequence[int], counts: Sequence[int], bodies: Sequence[bytes],
        digests: Sequence[bytes],
    ) -> PageColumns:
        """The columns of DATA entries with these ``digests``. A run of which some appends are batches becomes a row for
        each append. Raises `DamagedEntry` if such a run does not hold what its digest tells."""
        columns = ids, terms, times_ms, clients, serials, lsns, counts, bodies
        if set(map(len, digests)) <= {DIGEST_BYTES}:
            return PageColumns(*columns, (0,) * len(ids))
        rows: list[tuple[Any, ...]] = []
        for row, digest in zip(zip(*columns, strict=True), digests, strict=True):
            if counts_of(digest) is None:
                rows.append((*row, int(serials_of(digest) > 1)))
                continue
            id, term, time_ms, client, serial, lsn, count, body = row
            run = Entry(id, term, int(Kind.DATA), time_ms, client, serial, 0, lsn, count, digest, body, 0)
            rows += [(*row[:4], *part, 0) for part in parts(run)]
        return PageColumns(*zip(*rows, strict=True))

    def appends(self) -> list[tuple[int, int, int, str, int, int, int, bytes]]:
        """A row of `Page.entries` for each append. Raises `DamagedEntry` if a run does not hold what it tells."""
        if not any(self.steps):
            return list(zip(*self[:-1], strict=True))
        rows: list[tuple[int, int, int, str, int, int, int, bytes]] = []
        for *row, step in zip(*self, strict=True):
            id, term, time_ms, client, serial, lsn, count, body = row
            if not step:
                rows.append((id, term, time_ms, client, serial, lsn, count, body))
                continue
            for at, payload in enumerate(split_payloads(count, body)):
                rows.append((id, term, time_ms, client, serial + at, lsn + at, 1, payload))
        return rows


NO_ENTRIES = PageColumns(*[()] * len(PageColumns._fields))


def pack_page(request: int, columns: PageColumns, next_lsn: int, end_lsn: int, first_lsn: int) -> ColumnPage:
    """Make the answer that holds these entries."""
    ids, terms, times_ms, clients, serials, lsns, counts, bodies, steps = columns
    places = {name: place for place, name in enumerate(dict.fromkeys(clients))}
    return ColumnPage(
        request, _longs(ids), _longs(terms), _longs(times_ms), list(places),
        _longs(list(map(places.__getitem__, clients))), _longs(serials), _longs(lsns), _longs(counts),
        _longs(list(map(len, bodies))), b"".join(bodies), next_lsn, end_lsn, first_lsn, bytes(steps),
    )


def unpack_page(page: ColumnPage) -> PageColumns:
    """The entries of an answer. Raises `WireError` if its columns do not fit together."""
    ids = _numbers(page.ids)
    terms, times_ms, places, serials, lsns, counts, lengths = (
        _numbers(column)
        for column in (page.terms, page.times_ms, page.clients, page.serials, page.lsns, page.counts, page.lengths)
    )
    if {*map(len, (terms, times_ms, places, serials, lsns, counts, lengths, page.steps))} != {len(ids)}:
        refuse("columns of different lengths")
    if places and max(places) >= len(page.names):
        refuse("a client that is not named")
    if sum(lengths) != len(page.bodies):
        refuse("bodies that are not as long as they say")
    body = page.bodies
    bodies = [body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
    clients = list(map(page.names.__getitem__, places))
    return PageColumns(ids, terms, times_ms, clients, serials, lsns, counts, bodies, page.steps)


def _longs(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _numbers(column: bytes) -> tuple[int, ...]:
    numbers = struct.unpack(f"<{len(column) // LONG_BYTES}Q", column)
    if numbers and max(numbers) > INT_MAX:
        refuse("an integer over 2**63 - 1")
    return numbers
