"""The wire's public interface: messages to frames, frame bodies to messages; and the messages between servers
(`alpo.core.messages`) as bytes and back. See docs/wire-format.md.

`encode`, `encode_envelope` and `encode_problem` make whole frames; the `decode_*` functions take a body from
`FrameReader`. Whatever a body holds, decoding returns a message of the right shape or raises `WireError`, nothing else.
A client imports `client_codec` alone: that is quicker.

Laws of messages between servers:

* A body is a flat msgpack array: type number, cluster, sender's id and incarnation, target's id and incarnation, then
  the message's fields in their order. Numbers are never reused.
* The entries of an `AppendRequest` are packed once for all receivers; the bytes are the frame's tail.
* Decoded entries have consecutive ids, and each matches its own checksum (R31).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from alpo.core import messages as m
from alpo.core.disk import SessionRow
from alpo.core.entries import CLIENT_BYTES_MAX, DamagedEntry, Entry, is_digest, verify_headers
from alpo.core.hosting.words import Deleted, Follow, HostMessage, LogHello, Standing, StoreState, ToldLog
from alpo.core.members import Identity, MemberList, StartStatus

from . import requests as r
from . import shapes as s
from .client_codec import (
    ITEMS_MAX,
    ROWS_MAX,
    Largest,
    decode_client,
    decode_hello,
    decode_server,
    encode,
    encode_appended,
    encode_problem,
    largest,
)
from .client_codec import SHAPES as CLIENT_SHAPES
from .framing import (
    APART_BYTES_MIN,
    BIN32,
    WireError,
    frame,
    frame_parts,
    pack,
    pack_apart,
    unpack_list,
    unpack_message,
)
from .shapes import ADDRESS_BYTES_MAX, Shape, WrongVersion, version_told

#: Most entries of one `AppendRequest`.
ENTRIES_MAX = 1 << 20
#: Bounds of one `SnapshotPart`: sessions, remembered serials of one session, bytes of its head.
SESSIONS_MAX = 1 << 20
SLOTS_MAX = 1 << 20
HEAD_BYTES_MAX = 1 << 20

_json = s.text(s.TEXT_BYTES_MAX)
_digest = s.octets(0, s.ID_BYTES)
_PREFIX = 6
#: Most fields of a message: a msgpack array of so many has a header of one byte. Longer ones begin with this.
_FIELDS_MAX = 15
_ARRAY16 = struct.Struct(">BH")
_client_of = attrgetter("client")
_SESSION_TYPES = (str, int, bytes, int, int, int, int, int)
_SLOTS = SessionRow._fields.index("slots")
_SLOT_TYPES = (int, int, int, int, bytes)
_PROBLEM = next(shape for shape in CLIENT_SHAPES if shape.cls is r.Problem)


class ToldProblem(WireError):
    """The other server has sent a `Problem`, which is its last message before it closes the connection."""

    def __init__(self, problem: r.Problem) -> None:
        super().__init__(f"the other server says: {problem.text}")
        self.problem = problem


def _entries(value: Any) -> list[Entry]:
    items = unpack_list(value, ENTRIES_MAX, len(Entry._fields))
    if not items:
        return []
    if set(map(type, items)) != {tuple}:
        s.refuse("a list with something else than entries")
    entries = list(map(tuple.__new__, repeat(Entry), items))
    try:
        verify_headers(entries)
    except DamagedEntry as error:
        raise WireError(str(error)) from error
    if max(map(len, map(str.encode, set(map(_client_of, entries))))) > CLIENT_BYTES_MAX:
        s.refuse(f"an entry's client id is over {CLIENT_BYTES_MAX} bytes")
    return entries


def _sessions(value: Any) -> tuple[SessionRow, ...]:
    items = unpack_list(value, SESSIONS_MAX, SLOTS_MAX)
    if not items:
        return ()
    columns = s.columns(items, len(SessionRow._fields))
    heads, slots = (*columns[:_SLOTS], *columns[_SLOTS + 1 :]), columns[_SLOTS]
    for column, of in zip(heads, _SESSION_TYPES, strict=True):
        s.check_column(column, of)
    if set(map(type, slots)) != {tuple} or max(map(len, slots)) > SLOTS_MAX:
        s.refuse("a session's serials are no list, or too many")
    of_all = s.columns(list(chain.from_iterable(slots)), len(_SLOT_TYPES))
    for column, of in zip(of_all, _SLOT_TYPES, strict=True):
        s.check_column(column, of)
    if not all(map(is_digest, of_all[-1])):
        s.refuse("a remembered entry has a digest of another form")
    return tuple(SessionRow._make((*item[:_SLOTS], list(item[_SLOTS]), *item[_SLOTS + 1 :])) for item in items)


#: Every type that travels in an envelope.
SHAPES = (
    Shape(64, m.CanvassRequest, (s.number, s.number, s.rank, s.flag)),
    Shape(65, m.CanvassAnswer, (s.number, s.number, s.one_of(m.Canvass))),
    Shape(66, m.VoteRequest, (s.number, s.rank, s.flag)),
    Shape(67, m.VoteAnswer, (s.number, s.number, s.one_of(m.Vote), s.number, s.optional(s.rank), s.number)),
    Shape(68, m.DeferRequest, (s.number, s.rank)),
    Shape(69, m.DeferAnswer, (s.number, s.number, s.one_of(m.Defer))),
    Shape(70, m.AppendRequest, (
        s.number, s.number, s.number, s.number, s.number, s.number, _entries,
    ), forms=s.packed(6)),
    Shape(71, m.AppendAnswer, (
        s.number, s.flag, s.number, s.number, s.number, s.number, s.number, s.number, s.number, s.flag,
        s.one_of(m.Room),
    )),
    Shape(72, m.HandOver, (s.number,)),
    Shape(73, m.WrongIncarnation, (s.incarnation,)),
    Shape(74, m.StartQuestion, (s.number, _digest)),
    Shape(75, m.StartAnswer, (s.number, s.one_of(StartStatus), _digest, s.each(s.identity), s.cluster, _json, _json)),
    Shape(76, m.SnapshotPart, (
        s.number, s.number, s.number, s.positive, s.text(HEAD_BYTES_MAX), _sessions,
    ), forms=s.packed(5)),
    Shape(77, m.SnapshotAnswer, (s.number, s.number, s.number, s.number)),
    Shape(78, m.Retired, ()),
    Shape(79, m.WentBack, (s.number, s.number)),
    Shape(80, m.CopyRequest, (s.number, s.number)),
    Shape(81, m.CopyAnswer, (s.number, s.number, _entries), forms=s.packed(2)),
)


#: The standing of a log's store.
_standing = s.fixed(s.signed, s.each(s.identity), s.each(s.number), make=Standing._make)
_told = s.fixed(
    s.positive, s.octets(s.ID_BYTES), s.one_of(StoreState), s.number, _standing, make=ToldLog._make,
)
#: Every type that travels between servers without an envelope, from version 5 on: their hostings speak.
HOST_SHAPES = (
    Shape(82, LogHello, (s.each(_told),)),
    Shape(
        83, Follow, (s.positive, s.number, s.json_of(_json, MemberList.from_plain)),
        forms=((2, lambda members: s.json_text(members.to_plain())),),
    ),
    Shape(84, Deleted, (s.octets(s.ID_BYTES), s.each(s.positive))),
)
#: Shapes by class, and by number, for each version of the protocol from `OLDEST_VERSION` on.
_BY_CLASS = {version: {shape.cls: shape for shape in SHAPES} for version in (4, 5)}
_BY_NUMBER = {version: {shape.number: shape for shape in SHAPES} for version in (4, 5)}
_HOST_BY_CLASS = {shape.cls: shape for shape in HOST_SHAPES}
_HOST_BY_NUMBER = {shape.number: shape for shape in HOST_SHAPES}


def encode_entries(entries: list[Entry]) -> list[bytes]:
    """Pack entries; the result may be given to `encode_envelope`, or `encode_long`, for each peer. It has several parts
    if bodies are large: those are not copied. Raises `WireError`."""
    if entries and len(entries[0].body) >= APART_BYTES_MIN:
        return pack_apart(entries)
    return [pack(entries)]


def encode_long(envelope: m.Envelope, entries: list[bytes], version: int = r.VERSION) -> list[bytes]:
    """An AppendRequest as `encode_envelope` makes it, in parts: the bytes of ``entries`` are not copied."""
    sender, target, message = envelope.sender, envelope.target, envelope.message
    number = _BY_CLASS[version][type(message)].number
    prefix = [number, envelope.cluster, sender.id, sender.incarnation, target.id, target.incarnation]
    return frame_parts([*prefix, *message[:-1]], entries)


def encode_envelope(envelope: m.Envelope, entries: list[bytes] | None = None, version: int = r.VERSION) -> bytes:
    """The envelope as a frame, for a connection of this protocol ``version``.

    ``entries``: `encode_entries` of an AppendRequest's entries, if already made.

    Raises `WireError` for a value that cannot be packed; fields are checked only on arrival.
    """
    cluster, sender, target, message = envelope
    shape = _BY_CLASS[version][type(message)]
    head = _head(shape.number, len(shape.checks), cluster, sender, target)
    if type(message) is m.AppendRequest:
        blob = encode_entries(message.entries) if entries is None else entries
        return frame(head, pack(message[:-1])[1:], BIN32.pack(0xC6, sum(map(len, blob))), *blob)
    fields: Sequence[Any] = message if len(message) == len(shape.checks) and not shape.forms else (
        s.plain_fields(shape, message)[1:]
    )
    return frame(head, pack(fields)[1:])


@lru_cache(maxsize=256)
def _head(number: int, fields: int, cluster: bytes, sender: Identity, target: Identity) -> bytes:
    """The beginning of the bodies of all messages of a kind with so many ``fields`` (at most 15: they are packed with a
    header of one byte, which is left out) from ``sender`` to ``target``."""
    assert fields <= _FIELDS_MAX
    count = _PREFIX + fields
    header = bytes((0x90 | count,)) if count <= _FIELDS_MAX else _ARRAY16.pack(0xDC, count)
    return header + pack((number, cluster, sender.id, sender.incarnation, target.id, target.incarnation))[1:]


@lru_cache(maxsize=64, typed=True)  # every message of a connection has the same
def _addresses(of: Any, sender: Any, sender_is: Any, target: Any, target_is: Any) -> tuple[bytes, Identity, Identity]:
    """Check an envelope's addresses. Raises `WireError`, or TypeError for a value that cannot be hashed (a map)."""
    return (
        s.cluster(of),
        Identity(s.number(sender), s.incarnation(sender_is)),
        Identity(s.number(target), s.incarnation(target_is)),
    )


def encode_host(message: HostMessage) -> bytes:
    """A message between the hostings of two servers as a frame, for a connection of `LOGS_VERSION` or newer. Raises
    `WireError`."""
    return frame(pack(s.plain_fields(_HOST_BY_CLASS[type(message)], message)))


def decode_peer(body: bytes | memoryview, version: int = r.VERSION) -> m.Envelope | HostMessage:
    """Decode a frame's body from another server. Raises `WireError`, or its subclass `ToldProblem` if that server
    reports a problem."""
    fields = unpack_message(body)
    shape = _BY_NUMBER[version].get(fields[0])
    if shape is None:
        if fields[0] == _PROBLEM.number:
            raise ToldProblem(s.build(_PROBLEM, fields[1:]))
        host = _HOST_BY_NUMBER.get(fields[0]) if version >= r.LOGS_VERSION else None
        if host is None:
            raise WireError(f"message type {fields[0]} is nothing that servers say to each other")
        return s.build(host, fields[1:])  # type: ignore[no-any-return]
    if len(fields) < _PREFIX:
        raise WireError("an envelope without addresses")
    try:
        of, sender, target = _addresses(*fields[1:_PREFIX])
    except (WireError, TypeError) as error:
        raise WireError(f"an envelope's addresses: {error}") from error
    message = s.build(shape, fields[_PREFIX:])
    if type(message) is m.AppendRequest and message.entries and message.entries[0].id != message.prev_id + 1:
        raise WireError(f"entry {message.entries[0].id} does not follow entry {message.prev_id}")
    return m.Envelope(of, sender, target, message)


__all__ = [
    "ADDRESS_BYTES_MAX", "ENTRIES_MAX", "ITEMS_MAX", "ROWS_MAX", "Largest", "ToldProblem", "WireError", "WrongVersion",
    "decode_client", "decode_hello", "decode_peer", "decode_server", "encode", "encode_appended", "encode_entries",
    "encode_envelope", "encode_host", "encode_long", "encode_problem", "largest", "version_told",
]
