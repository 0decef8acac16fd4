"""What clients and servers say to each other, and the hello that opens every connection.

`alpo.wire.codec` turns these into bytes. A client may have many requests under way; ``request`` numbers are
the client's own and come back with the answer. Appends have none: client and serial name them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

VERSION = 1


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


class Done(NamedTuple):
    """Init or Drop was done; ``number``: the dropped epoch."""

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


class Status(NamedTuple):
    request: int


class StatusAnswer(NamedTuple):
    """``fields``: see `node.status`."""

    request: int
    fields: dict[str, Any]


class RequestRefused(NamedTuple):
    """Any numbered request."""

    request: int
    code: int
    number: int
    leader: int
    leader_address: str
    detail: str


ClientRequest: TypeAlias = Append | Open | Drop | ListSessions | Init | Read | Status
ServerReply: TypeAlias = (
    Appended | AppendRefused | Opened | SessionTable | Done | Page | StatusAnswer | RequestRefused
)
Hello: TypeAlias = PeerHello | ClientHello | ServerHello
