"""Encoding of hellos, clients' requests and servers' answers (`alpo.core.requests` and `alpo.wire.requests`).

Laws:

* A body is a msgpack array: type number, then the fields of the type in their order. Numbers are never reused.
* Sizes of payloads are not checked here: the listener compares `largest` with its limits and refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from alpo.core import requests as q
from alpo.core.directory import NONCE_BYTES, DeletedLog, Listing, LogOptions, NamedLog
from alpo.core.disk import SessionRow
from alpo.core.entries import CLIENT_BYTES_MAX, DamagedEntry, split_payloads
from alpo.core.requests import Code, Fate, MemberStep

from . import requests as r
from . import shapes as s
from .framing import APART_BYTES_MIN, WireError, frame, frame_parts, pack, pack_apart, unpack_list, unpack_message
from .shapes import Shape, WrongVersion

#: Most items of one `Append`, so also LSNs of one `Appended`; a client with more in flight sends several.
ITEMS_MAX = 65_536
#: Most rows of one `Page` or `SessionTable`; a page ends early rather than hold more.
ROWS_MAX = 1 << 20
#: Most columns of a row of `BackupRows`.
_COLUMNS_MAX = 15

#: Longest name of a setting, and of a log, in bytes.
_NAME_BYTES_MAX, LOG_NAME_BYTES_MAX = 64, 63
#: Longest directory of logs, in bytes of JSON.
DIRECTORY_BYTES_MAX = 1 << 20

_name = s.text(_NAME_BYTES_MAX)
_address = s.text(s.ADDRESS_BYTES_MAX)
_detail = s.text(s.TEXT_BYTES_MAX)
_code = s.one_of(Code)
_log_name = s.text(LOG_NAME_BYTES_MAX)
_directory = s.text(DIRECTORY_BYTES_MAX)
_nonce = s.octets(NONCE_BYTES)


def _items(value: Any) -> list[tuple[int, bytes]]:
    """Check for (count, body) pairs, at least one; each batch is split to see that it is one."""
    items = unpack_list(value, ITEMS_MAX, 2)
    if not items:
        s.refuse("no items")
    if set(map(type, items)) == {bytes}:
        return list(zip(repeat(1), items))
    return list(map(_item, items))


#: Types of the fields of an Append, and the bytes of the head of a packed list of one binary, by the binary's type.
_APPEND_TYPES = (str, int, int, bool, bool, bytes)
_ONE_HEADS = {0xC4: 3, 0xC5: 4, 0xC6: 6}


def _append(values: tuple[Any, ...]) -> r.Append | None:
    """The Append of these fields, if one look tells that they are sound; None: `build` says what is wrong, if anything
    is. Every append of every client comes here."""
    if tuple(map(type, values)) != _APPEND_TYPES:
        return None
    client, epoch, serial, sparse, by_hand, blob = values
    if not (0 <= epoch <= s.INT_MAX and 0 < serial <= s.INT_MAX and 0 < len(client.encode()) <= CLIENT_BYTES_MAX):
        return None
    head = _ONE_HEADS.get(blob[1]) if blob[:1] == b"\x91" and len(blob) > 2 else None
    if head is not None and len(blob) == head + int.from_bytes(blob[2:head], "big"):
        items = [(1, blob[head:])]
    else:
        try:
            items = _items(blob)
        except WireError:
            return None
    return tuple.__new__(r.Append, (client, epoch, serial, sparse, by_hand, items))


def _item(item: Any) -> tuple[int, bytes]:
    """Check for a payload or a batch; returns a (count, body) pair."""
    if type(item) is bytes:
        return 1, item
    if type(item) is not tuple or len(item) != 2 or type(item[1]) is not bytes:
        s.refuse("an item is neither bytes nor a count and bytes")
    count, body = s.positive(item[0]), item[1]
    try:
        split_payloads(count, body)
    except DamagedEntry as error:
        raise WireError(str(error)) from error
    return count, body


def _lsns(value: Any) -> Sequence[int]:
    """Check for (first, number) of consecutive LSNs, or all LSNs packed."""
    if type(value) is not tuple:
        return s.numbers(ITEMS_MAX)(value)  # type: ignore[no-any-return]
    if len(value) != 2 or s.positive(value[0]) + s.positive(value[1]) - 1 > s.INT_MAX or value[1] > ITEMS_MAX:
        s.refuse("no first LSN and number")
    return range(value[0], value[0] + value[1])


def _plain_lsns(lsns: Sequence[int]) -> Any:
    return (lsns[0], len(lsns)) if isinstance(lsns, range) else pack(lsns)


def _appended(values: tuple[Any, ...]) -> q.Appended | None:
    """The Appended of these fields, if one look tells that they are sound and its LSNs consecutive; None: see `build`.
    Every append of every client comes here."""
    if len(values) != 4 or type(values[2]) is not tuple or len(values[2]) != 2:
        return None
    client, serial, (first, number), duplicate = values
    if not (type(serial) is type(first) is type(number) is int and type(client) is str and type(duplicate) is bool):
        return None
    if not (0 < serial <= s.INT_MAX and 0 < number <= ITEMS_MAX and 0 < first <= s.INT_MAX - number + 1):
        return None
    if not 0 < len(client.encode()) <= CLIENT_BYTES_MAX:
        return None
    return tuple.__new__(q.Appended, (None, client, serial, range(first, first + number), duplicate))


_rows = s.rows(ROWS_MAX, str, int, int, int, int)
_pairs = s.each(s.fixed(_name, s.number))


def _sessions(value: Any) -> list[SessionRow]:
    return [
        SessionRow(client, epoch, b"", 0, last_serial, last_id, last_time_ms, [])
        for client, epoch, last_serial, last_id, last_time_ms in _rows(value)
    ]


def _packed_sessions(rows: list[SessionRow]) -> bytes:
    return pack([(row.client, row.epoch, row.last_serial, row.last_id, row.last_time_ms) for row in rows])


def _values(value: Any) -> dict[str, int]:
    """Check for pairs of name and value; returns a dict."""
    return dict(_pairs(value))


def _list_of_lists(members: Any) -> list[list[Any]]:
    if type(members) is not list or not all(type(member) is list for member in members):
        s.refuse("no list of lists")
    return members


def _steps(value: Any) -> bytes:
    """Check for a byte 0 or 1 for each entry."""
    if not set(s.blob(value)) <= {0, 1}:
        s.refuse("a step other than 0 and 1")
    return value  # type: ignore[no-any-return]


def _one_log(plain: Any) -> NamedLog:
    """The one log, not deleted, of a plain directory."""
    listing = Listing.from_plain(plain)
    if len(listing.logs) != 1 or listing.deleted:
        s.refuse("not one log")
    return listing.logs[0]


def _one_deleted(plain: Any) -> DeletedLog:
    """The one deleted log of a plain directory."""
    listing = Listing.from_plain(plain)
    if listing.logs or len(listing.deleted) != 1:
        s.refuse("not one deleted log")
    return listing.deleted[0]


def _log_text(log: NamedLog) -> str:
    return s.json_text(Listing((log,), (), log.number + 1).to_plain())


def _deleted_text(gone: DeletedLog) -> str:
    return s.json_text(Listing((), (gone,), gone.number + 1).to_plain())


_HELLOS = (
    Shape(1, r.PeerHello, (
        s.number, s.cluster, s.number, s.octets(s.ID_BYTES), _address, s.number, s.incarnation, s.number, s.number,
        s.fixed(s.number, s.number, s.number), s.octets(0, s.ID_BYTES),
    )),
    Shape(2, r.ClientHello, (s.number, s.cluster, s.text(CLIENT_BYTES_MAX), _log_name)),
    Shape(3, r.ServerHello, (
        s.number, s.cluster, s.number, s.number, s.number, s.number, s.number, s.number, s.number,
        s.each(s.fixed(s.number, _address)), s.positive, _log_name,
    )),
)
#: The hellos of version 4, which ends before the fields about a log.
_HELLOS_4 = (
    _HELLOS[0], _HELLOS[1]._replace(checks=_HELLOS[1].checks[:-1]), _HELLOS[2]._replace(checks=_HELLOS[2].checks[:-2]),
)
_PROBLEM = Shape(4, r.Problem, (_code, _detail))
REQUESTS = (
    Shape(16, r.Append, (s.client_id, s.number, s.positive, s.flag, s.flag, _items), forms=s.packed(5)),
    Shape(17, q.OpenSession, (s.number, s.client_id, s.number, s.octets(s.ID_BYTES))),
    Shape(18, q.DropSession, (s.number, s.client_id, s.number)),
    Shape(19, q.ListSessions, (s.number,)),
    Shape(20, q.Initialise, (s.number,)),
    Shape(21, r.Read, (
        s.number, s.number, s.number, s.number, s.number, s.number, s.flag, s.number, s.client_id_or_none,
    )),
    Shape(22, r.Status, (s.number,)),
    Shape(23, q.Trim, (s.number, s.number, s.flag)),
    Shape(128, q.Outcome, (s.number, s.client_id, s.positive, s.number)),
    Shape(129, r.AwaitReplicated, (s.number, s.positive, s.number)),
    Shape(130, r.ListEvents, (s.number, s.number, s.number)),
    Shape(131, q.ShowSettings, (s.number,)),
    Shape(132, q.ChangeSettings, (s.number, s.each(s.fixed(_name, s.number, s.number)))),
    Shape(133, q.SetCursor, (s.number, s.client_id, s.positive)),
    Shape(134, q.DropCursor, (s.number, s.client_id)),
    Shape(135, q.ListCursors, (s.number,)),
    Shape(140, r.Backup, (s.number,)),
    Shape(141, r.GiveBack, (s.number,)),
    Shape(142, r.RangeDigest, (s.number, s.positive, s.positive)),
    Shape(143, r.ReadColumns, (
        s.number, s.number, s.number, s.number, s.number, s.number, s.flag, s.number, s.client_id_or_none,
    )),
    Shape(136, r.AppendAfter, (s.client_id, s.number, s.positive, s.flag, s.number, _item)),
    Shape(137, r.AcceptClocks, (s.number,)),
    Shape(28, q.ChangeMember, (s.number, s.one_of(MemberStep), s.positive, _address, s.signed)),
    Shape(29, q.Transfer, (s.number, s.positive)),
)
#: Requests about logs, and their answers, from version 5 on.
LOG_REQUESTS = (
    Shape(138, q.CreateLog, (s.number, _log_name, _nonce, s.fixed(*[s.number] * 4, make=LogOptions._make), _values),
          forms=((4, lambda values: tuple(values.items())),)),
    Shape(160, q.SetLog, (s.number, _log_name, _pairs)),
    Shape(161, q.RenameLog, (s.number, _log_name, _log_name)),
    Shape(162, q.DeleteLog, (s.number, _log_name, _nonce)),
    Shape(139, q.ListLogs, (s.number,)),
)
LOG_REPLIES = (
    Shape(149, q.LogIs, (s.number, s.json_of(_directory, _one_log)), forms=((1, _log_text),)),
    Shape(150, q.LogDeleted, (s.number, s.json_of(_directory, _one_deleted)), forms=((1, _deleted_text),)),
    Shape(
        151, q.LogsAre, (s.number, s.json_of(_directory, Listing.from_plain)),
        forms=((1, lambda listing: s.json_text(listing.to_plain())),),
    ),
)
_DONE = Shape(36, r.Done, (s.number, s.number))
REPLIES = (
    Shape(32, q.Appended, (s.client_id, s.positive, _lsns, s.flag), forms=((2, _plain_lsns),), kept=1),
    Shape(33, r.AppendRefused, (s.client_id, s.number, s.number, _code, s.number, s.number, _address, _detail)),
    Shape(34, q.Opened, (s.number, s.number, s.number)),
    Shape(35, q.Sessions, (s.number, _sessions, s.number), forms=((1, _packed_sessions),)),
    _DONE,
    Shape(37, r.Page, (
        s.number, s.rows(ROWS_MAX, int, int, int, str, int, int, int, bytes), s.number, s.number, s.number,
    ), forms=s.packed(1)),
    Shape(38, r.StatusAnswer, (s.number, s.fields_by_name)),
    Shape(39, r.RequestRefused, (s.number, _code, s.number, s.number, _address, _detail)),
    Shape(40, q.Trimmed, (s.number, s.number)),
    Shape(144, q.Told, (s.number, s.one_of(Fate), s.number, s.number)),
    Shape(145, r.Replicated, (s.number, s.flag, s.each(s.number))),
    Shape(146, r.EventList, (
        s.number, s.number, s.number, s.rows(ROWS_MAX, int, int, str, str, text_bytes_max=s.TEXT_BYTES_MAX),
    ), forms=s.packed(3)),
    Shape(147, q.SettingsAre, (s.number, _values), forms=((1, lambda values: tuple(values.items())),)),
    Shape(148, r.CursorTable, (s.number, s.rows(ROWS_MAX, str, int, int, int)), forms=s.packed(1)),
    Shape(156, r.BackupHead, (s.number, s.positive, s.number, s.number, s.number)),
    Shape(157, r.BackupRows, (s.number, s.client_id, s.mixed_rows(ROWS_MAX, _COLUMNS_MAX)), forms=s.packed(2)),
    Shape(158, r.DigestIs, (s.number, s.positive, s.number, s.number, s.number, s.octets(s.ID_BYTES))),
    Shape(159, r.ColumnPage, (
        s.number, s.longs, s.longs, s.longs, s.texts(ROWS_MAX), s.longs, s.longs, s.longs, s.longs, s.longs, s.blob,
        s.number, s.number, s.number, _steps,
    ), forms=s.packed(4)),
    Shape(48, q.MembersChanged, (s.number, s.json_of(_detail, _list_of_lists)), forms=((1, s.json_text),)),
    Shape(49, q.HandedOver, (s.number, s.number, s.number)),
)

_APPEND, _APPENDED = REQUESTS[0], REPLIES[0]
_APPEND_NUMBER, _APPENDED_NUMBER = _APPEND.number, _APPENDED.number

#: Replies of the core that are sent as a `Done`, with its number.
_DONE_NUMBERS: dict[type, Callable[[Any], int]] = {
    q.Dropped: lambda reply: reply.epoch, q.CursorIs: lambda reply: reply.lsn, q.Initialised: lambda reply: 0,
}

#: Every type that travels outside an envelope, for documentation and tests.
SHAPES = (*_HELLOS, _PROBLEM, *REQUESTS, *LOG_REQUESTS, *REPLIES, *LOG_REPLIES)


def _numbered(*shapes: Shape) -> dict[int, Shape]:
    return {shape.number: shape for shape in shapes}


#: Shapes by class, and by number, for each version of the protocol from `OLDEST_VERSION` on.
_BY_CLASS = {
    4: {shape.cls: shape for shape in (*_HELLOS_4, _PROBLEM, *REQUESTS, *REPLIES)},
    5: {shape.cls: shape for shape in SHAPES},
}
_BY_NUMBER_HELLO = {4: _numbered(*_HELLOS_4), 5: _numbered(*_HELLOS)}
_BY_NUMBER_REQUEST = {4: _numbered(*REQUESTS), 5: _numbered(*REQUESTS, *LOG_REQUESTS)}
_BY_NUMBER_REPLY = {
    4: _numbered(*REPLIES, _PROBLEM), 5: _numbered(*REPLIES, *LOG_REPLIES, _PROBLEM),
}


def encode(
    message: r.Hello | r.Problem | r.ClientRequest | r.ServerReply | q.Reply, version: int = r.VERSION
) -> bytes:
    """The message as a frame, for a connection of this protocol ``version``; a hello is of the version that it names.

    Raises `WireError` for a value that cannot be packed; fields are checked only on arrival.
    """
    shape = _BY_CLASS[version].get(type(message))
    if shape is _APPEND:  # every append comes here
        return frame(pack((_APPEND_NUMBER, *message[:-1], pack(message[-1]))))
    if isinstance(message, r.Hello):
        shape = _BY_CLASS.get(message.version, _BY_CLASS[version])[type(message)]
    if shape is None:
        shape, message = _DONE, r.Done(message[0], _DONE_NUMBERS[type(message)](message))  # type: ignore[arg-type]
    return frame(pack(s.plain_fields(shape, message)))


def encode_appended(reply: q.Appended, version: int = r.VERSION) -> bytes:
    """The frame of an `Appended`, as `encode` makes it, in fewer steps: every append has one."""
    if _BY_CLASS[version][q.Appended] is not _APPENDED:
        return encode(reply, version)
    _, client, serial, lsns, duplicate = reply
    plain = (lsns[0], len(lsns)) if type(lsns) is range else _plain_lsns(lsns)
    return frame(pack((_APPENDED_NUMBER, client, serial, plain, duplicate)))


def encode_parts(message: r.Append | r.AppendAfter, version: int = r.VERSION) -> list[bytes]:
    """A request as `encode` makes it, in parts that belong together: payloads are not copied if the first is large."""
    if type(message) is not r.Append:
        return [encode(message, version)]
    first = message.items[0]
    if len(first if type(first) is bytes else first[1]) < APART_BYTES_MIN:
        return [encode(message, version)]
    return frame_parts([_BY_CLASS[version][r.Append].number, *message[:-1]], pack_apart(message.items))


def encode_problem(code: Code, text: str) -> bytes:
    """A `Problem` as a frame, ``text`` cut to the longest that the other side takes."""
    short = text.encode(errors="replace")[:s.TEXT_BYTES_MAX].decode(errors="ignore")
    return encode(r.Problem(code, short))


def decode_hello(body: bytes | memoryview) -> r.Hello | r.Problem:
    """Decode a connection's first message, from either side. Raises `WireError`, or its subclass `WrongVersion`."""
    fields = unpack_message(body)
    known = _BY_NUMBER_HELLO[r.OLDEST_VERSION]
    if fields[0] == _PROBLEM.number:
        return s.build(_PROBLEM, fields[1:])  # type: ignore[no-any-return]
    if fields[0] in known and len(fields) > 1:  # the version comes first: another one may have other fields
        version = s.number(fields[1])
        if not r.OLDEST_VERSION <= version <= r.VERSION:
            raise WrongVersion(version, r.VERSION)
        known = _BY_NUMBER_HELLO[version]
    return _decode(fields, known, "a hello")  # type: ignore[no-any-return]


def decode_client(body: bytes | memoryview, version: int = r.VERSION) -> r.ClientRequest:
    """Decode a client's request; items of appends are always (count, body) pairs. Raises `WireError`."""
    fields = unpack_message(body)
    request = _append(fields[1:]) if fields[0] == _APPEND_NUMBER else None
    if request is None:
        request = _decode(fields, _BY_NUMBER_REQUEST[version], "a request")
    if type(request) is r.Append and request.serial + len(request.items) - 1 > s.INT_MAX:
        raise WireError("Append.serial: the serials run past 2**63 - 1")
    return request


def decode_server(body: bytes | memoryview, version: int = r.VERSION) -> r.ServerReply | r.Problem:
    """Decode a server's answer to a client, or its `Problem`. Raises `WireError`."""
    fields = unpack_message(body)
    answer = _appended(fields[1:]) if fields[0] == _APPENDED.number else None
    if answer is not None:
        return answer
    return _decode(fields, _BY_NUMBER_REPLY[version], "an answer")  # type: ignore[no-any-return]


def _decode(fields: tuple[Any, ...], known: dict[int, Shape], what: str) -> Any:
    shape = known.get(fields[0])
    if shape is None:
        raise WireError(f"message type {fields[0]} is not {what}")
    return s.build(shape, fields[1:])


class Largest(NamedTuple):
    """Bytes of the largest payload, and of the largest batch's body with its lengths (0: no batch)."""

    payload_bytes: int
    batch_bytes: int


def largest(items: list[tuple[int, bytes]]) -> Largest:
    """Sizes of a decoded Append's items, to compare with the limits.

    A frame whose body is no longer than both limits need not be examined.
    """
    payload_bytes = max((len(body) for count, body in items if count == 1), default=0)
    batch_bytes = 0
    for count, body in items:
        if count > 1:
            batch_bytes = max(batch_bytes, len(body))
            payload_bytes = max(payload_bytes, *map(len, split_payloads(count, body)))
    return Largest(payload_bytes, batch_bytes)
