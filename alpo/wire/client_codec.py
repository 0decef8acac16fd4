"""Hellos, what clients ask and what servers answer: `alpo.wire.requests` as bytes and back.

Laws:

* A body is a msgpack array: type number, then the fields of the type in their order. Numbers are never used again.
* Sizes of payloads are no matter of shape: whoever listens compares `largest` with its limits and refuses.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

from alpo.core.entries import DamagedEntry, split_payloads
from alpo.core.inputs import MemberStep
from alpo.core.ready import Code, Fate

from . import requests as r
from . import shapes as s
from .framing import frame
from .shapes import Shape, WireError, WrongVersion

#: Items of one `Append`, so also LSNs of one `Appended`; a client with more under way sends several.
ITEMS_MAX = 65_536
#: Rows of one `Page` or `SessionTable`; a page ends early rather than hold more.
ROWS_MAX = 1 << 20
#: Columns of a row of `BackupRows`.
_COLUMNS_MAX = 15

#: Of a setting's name.
_NAME_BYTES_MAX = 64

_name = s.text(_NAME_BYTES_MAX)
_address = s.text(s.ADDRESS_BYTES_MAX)
_detail = s.text(s.TEXT_BYTES_MAX)
_code = s.one_of(Code)


def _items(value: Any) -> list[tuple[int, bytes]]:
    """(count, body) pairs, one at least, each batch split to see that it is one."""
    items = s.unpack_list(value, ITEMS_MAX, 2)
    if not items:
        s.refuse("no items")
    if set(map(type, items)) == {bytes}:
        return list(zip(repeat(1), items))
    return [(1, item) if type(item) is bytes else _batch(item) for item in items]


def _batch(item: Any) -> tuple[int, bytes]:
    if type(item) is not tuple or len(item) != 2 or type(item[1]) is not bytes:
        s.refuse("an item is neither bytes nor a count and bytes")
    count, body = s.positive(item[0]), item[1]
    try:
        split_payloads(count, body)
    except DamagedEntry as error:
        raise WireError(str(error)) from error
    return count, body


_HELLOS = (
    Shape(1, r.PeerHello, (
        s.number, s.cluster, s.number, s.octets(s.ID_BYTES), _address, s.number, s.incarnation, s.number, s.number,
        s.fixed(s.number, s.number, s.number),
    )),
    Shape(2, r.ClientHello, (s.number, s.cluster, s.text(s.CLIENT_ID_BYTES_MAX))),
    Shape(3, r.ServerHello, (
        s.number, s.cluster, s.number, s.number, s.number, s.number, s.number, s.number, s.number,
        s.each(s.fixed(s.number, _address)),
    )),
)
_PROBLEM = Shape(4, r.Problem, (_code, _detail))
REQUESTS = (
    Shape(16, r.Append, (s.client_id, s.number, s.positive, s.flag, s.flag, _items), packed=(5,)),
    Shape(17, r.Open, (s.number, s.client_id, s.number, s.octets(s.ID_BYTES))),
    Shape(18, r.Drop, (s.number, s.client_id, s.number)),
    Shape(19, r.ListSessions, (s.number,)),
    Shape(20, r.Init, (s.number,)),
    Shape(21, r.Read, (
        s.number, s.number, s.number, s.number, s.number, s.number, s.flag, s.number, s.client_id_or_none,
    )),
    Shape(22, r.Status, (s.number,)),
    Shape(23, r.Trim, (s.number, s.number, s.flag)),
    Shape(128, r.Outcome, (s.number, s.client_id, s.positive, s.number)),
    Shape(129, r.AwaitReplicated, (s.number, s.positive, s.number)),
    Shape(130, r.ListEvents, (s.number, s.number, s.number)),
    Shape(131, r.ShowSettings, (s.number,)),
    Shape(132, r.ChangeSettings, (s.number, s.each(s.fixed(_name, s.number, s.number)))),
    Shape(133, r.SetCursor, (s.number, s.client_id, s.positive)),
    Shape(134, r.DropCursor, (s.number, s.client_id)),
    Shape(135, r.ListCursors, (s.number,)),
    Shape(140, r.Backup, (s.number,)),
    Shape(141, r.GiveBack, (s.number,)),
    Shape(142, r.RangeDigest, (s.number, s.positive, s.positive)),
    Shape(143, r.ReadColumns, (
        s.number, s.number, s.number, s.number, s.number, s.number, s.flag, s.number, s.client_id_or_none,
    )),
    Shape(28, r.ChangeMember, (s.number, s.one_of(MemberStep), s.positive, _address, s.signed)),
    Shape(29, r.Transfer, (s.number, s.positive)),
)
REPLIES = (
    Shape(32, r.Appended, (s.client_id, s.positive, s.numbers(ITEMS_MAX), s.flag), packed=(2,)),
    Shape(33, r.AppendRefused, (s.client_id, s.number, s.number, _code, s.number, s.number, _address, _detail)),
    Shape(34, r.Opened, (s.number, s.number, s.number)),
    Shape(35, r.SessionTable, (s.number, s.rows(ROWS_MAX, str, int, int, int, int), s.number), packed=(1,)),
    Shape(36, r.Done, (s.number, s.number)),
    Shape(37, r.Page, (
        s.number, s.rows(ROWS_MAX, int, int, int, str, int, int, int, bytes), s.number, s.number, s.number,
    ), packed=(1,)),
    Shape(38, r.StatusAnswer, (s.number, s.fields_by_name)),
    Shape(39, r.RequestRefused, (s.number, _code, s.number, s.number, _address, _detail)),
    Shape(40, r.Trimmed, (s.number, s.number)),
    Shape(144, r.Told, (s.number, s.one_of(Fate), s.number, s.number)),
    Shape(145, r.Replicated, (s.number, s.flag, s.each(s.number))),
    Shape(146, r.EventList, (
        s.number, s.number, s.number, s.rows(ROWS_MAX, int, int, str, str, text_bytes_max=s.TEXT_BYTES_MAX),
    ), packed=(3,)),
    Shape(147, r.SettingsAre, (s.number, s.each(s.fixed(_name, s.number)))),
    Shape(148, r.CursorTable, (s.number, s.rows(ROWS_MAX, str, int, int, int)), packed=(1,)),
    Shape(156, r.BackupHead, (s.number, s.positive, s.number, s.number, s.number)),
    Shape(157, r.BackupRows, (s.number, s.client_id, s.mixed_rows(ROWS_MAX, _COLUMNS_MAX)), packed=(2,)),
    Shape(158, r.DigestIs, (s.number, s.positive, s.number, s.number, s.number, s.octets(s.ID_BYTES))),
    Shape(159, r.ColumnPage, (
        s.number, s.longs, s.longs, s.longs, s.texts(ROWS_MAX), s.longs, s.longs, s.longs, s.longs, s.longs, s.blob,
        s.number, s.number, s.number,
    ), packed=(4,)),
    Shape(48, r.MemberTable, (s.number, _detail)),
    Shape(49, r.HandedOver, (s.number, s.number, s.number)),
)

#: As version 1 has them, where that differs: what it lacks has its default.
_REQUESTS_1 = (Shape(128, r.Outcome, (s.number, s.client_id, s.positive)),)
_REPLIES_1 = (Shape(144, r.Told, (s.number, s.one_of(Fate), s.number)),)
#: What version 1 says instead of codes that it does not know.
_CODES_1 = {Code.DROPPED: Code.FENCED}

#: Every type that travels outside an envelope, for documentation and tests.
SHAPES = (*_HELLOS, _PROBLEM, *REQUESTS, *REPLIES)

_BY_CLASS = {shape.cls: shape for shape in SHAPES}
_BY_CLASS_1 = _BY_CLASS | {shape.cls: shape for shape in (*_REQUESTS_1, *_REPLIES_1)}
_BY_NUMBER_HELLO = {shape.number: shape for shape in (*_HELLOS, _PROBLEM)}
_VERSIONED = frozenset(shape.number for shape in _HELLOS)
_BY_NUMBER_REQUEST = {shape.number: shape for shape in REQUESTS}
_BY_NUMBER_REQUEST_1 = _BY_NUMBER_REQUEST | {shape.number: shape for shape in _REQUESTS_1}
_BY_NUMBER_REPLY = {shape.number: shape for shape in (*REPLIES, _PROBLEM)}
_BY_NUMBER_REPLY_1 = _BY_NUMBER_REPLY | {shape.number: shape for shape in _REPLIES_1}


def encode(message: r.Hello | r.Problem | r.ClientRequest | r.ServerReply, version: int = r.VERSION) -> bytes:
    """The message as a frame, for a connection of this ``version``.

    Raises `WireError` for a value that cannot travel; shapes are checked on arrival.
    """
    if version == r.VERSION:
        return frame(s.pack(s.plain_fields(_BY_CLASS[type(message)], message)))
    if isinstance(message, r.AppendRefused | r.RequestRefused):
        message = message._replace(code=_CODES_1.get(Code(message.code), message.code))
    return frame(s.pack(s.plain_fields(_BY_CLASS_1[type(message)], message)))


def encode_problem(code: Code, text: str) -> bytes:
    """A `Problem` as a frame, ``text`` cut to what the other side takes."""
    short = text.encode(errors="replace")[:s.TEXT_BYTES_MAX].decode(errors="ignore")
    return encode(r.Problem(code, short))


def decode_hello(body: bytes | memoryview) -> r.Hello | r.Problem:
    """A connection's first message, from either side. Raises `WrongVersion`, which is a `WireError`, or `WireError`."""
    fields = s.unpack_message(body)
    # Before anything else: another version may well have other fields.
    if fields[0] in _VERSIONED and len(fields) > 1 and not r.OLDEST_VERSION <= s.number(fields[1]) <= r.VERSION:
        raise WrongVersion(fields[1], r.VERSION)
    return _decode(fields, _BY_NUMBER_HELLO, "a hello")  # type: ignore[no-any-return]


def decode_client(body: bytes | memoryview, version: int = r.VERSION) -> r.ClientRequest:
    """What a client asks; `Append.items` come as (count, body) pairs throughout. Raises `WireError`."""
    known = _BY_NUMBER_REQUEST if version == r.VERSION else _BY_NUMBER_REQUEST_1
    request = _decode(s.unpack_message(body), known, "a request")
    if type(request) is r.Append and request.serial + len(request.items) - 1 > s.INT_MAX:
        raise WireError("Append.serial: the serials run past 2**63 - 1")
    return request  # type: ignore[no-any-return]


def decode_server(body: bytes | memoryview, version: int = r.VERSION) -> r.ServerReply | r.Problem:
    """What a server answers a client, or its last word. Raises `WireError`."""
    known = _BY_NUMBER_REPLY if version == r.VERSION else _BY_NUMBER_REPLY_1
    answer = _decode(s.unpack_message(body), known, "an answer")
    if version != r.VERSION and type(answer) is r.AppendRefused and answer.code == Code.FENCED and not answer.number:
        return answer._replace(code=int(Code.DROPPED))  # no epoch is 0: the name is not open
    return answer  # type: ignore[no-any-return]


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
    """How large a decoded Append's items are, to be held against the limits.

    A frame whose body is no longer than both limits needs no look.
    """
    payload_bytes = max((len(body) for count, body in items if count == 1), default=0)
    batch_bytes = 0
    for count, body in items:
        if count > 1:
            batch_bytes = max(batch_bytes, len(body))
            payload_bytes = max(payload_bytes, *map(len, split_payloads(count, body)))
    return Largest(payload_bytes, batch_bytes)
