"""Payloads of a replicated state: what a log holds of it, and their encoding (format 1).

A payload is `MAGIC`, the format's number, and a msgpack array of integers, UTF-8 text, bytes and arrays, with nothing
behind it. Its first element tells its kind (docs/wire-format.md has the table). Lists of guards and of operations
travel packed, as bytes that hold a msgpack array: an unpacker allocates whatever a plain array announces.

Laws:

* `decode` is total: any bytes give a command, or None; it never raises, and keeps no more than it was given.
* The meaning of a format never changes: a change is a new format. Format 1 must be read for ever.
* No text, JSON or msgpack begins with `MAGIC`: what others append is never taken for a command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from alpo.rsm import payloads
from alpo.rsm.payloads import CHECKS, INLINE_BYTES_MAX, Payloads, is_id
from alpo.rsm.payloads import is_number as _number
from alpo.wire.framing import WireError, pack, unpack_list, unpack_message

PAYLOADS = Payloads("state", magic=b"\xc1\x41", format=1)
MAGIC, FORMAT, HEAD = PAYLOADS.magic, PAYLOADS.format, PAYLOADS.head

#: Names that are the same in every kind of machine.
Begin = payloads.Begin
Part = payloads.Part
End = payloads.End
begin, part, end = PAYLOADS.begin, PAYLOADS.part, PAYLOADS.end
INT_MAX, INT_MIN, ROOM_BYTES = payloads.INT_MAX, payloads.INT_MIN, payloads.ROOM_BYTES

NAME_BYTES_MAX = 512
#: Most guards, and most operations, of one command.
OPS_MAX = 65_536
#: Most bytes of all `More` payloads of one command together, and their greatest number.
BLOB_BYTES_MAX = 64 << 20
MORE_MAX = 65_536
#: Shortest value that moves to a `More` payload when its command is too large.
_MOVED_BYTES = 64
_GUARD_FIELDS, _OP_FIELDS = 3, 4

#: One or more characters, without control characters and without surrogates (UTF-8 cannot hold those). A row has two
#: such names, with NUL between them.
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+(?:\x00[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+)?")
ROW_MARK = "\0"


class Kind(IntEnum):
    """The first element of a payload."""

    FOUND = 0
    DO = 1
    BEGIN = 2
    PART = 3
    END = 4
    MORE = 5


class By(IntEnum):
    """The LSN that a guard looks at: that of the variable's last write, or that of the write that made it."""

    VERSION = 0
    CREATED = 1


class Do(IntEnum):
    """The first element of an operation."""

    PUT = 0
    EXPUNGE = 1
    KEEP = 2
    ADD = 3


#: (`By`, name, LSN wanted; 0: absent).
Guard: TypeAlias = tuple[int, str, int]
#: (PUT, name, value, lease_ms) · (EXPUNGE, name) · (KEEP, name, lease_ms) · (ADD, name, number). A value is bytes, or
#: (offset, length) in the bytes of the command's `More` payloads; a lease of 0 ms is none.
Op: TypeAlias = tuple[Any, ...]


class Limits(NamedTuple):
    """The most that a state may hold: bytes of names and values together, variables, operations of a command."""

    bytes_max: int = 1 << 30
    variables_max: int = 1_000_000
    ops_max: int = OPS_MAX


class Found(NamedTuple):
    """The beginning of a state: its id, 16 bytes, and its limits. The first in a log counts."""

    state_id: bytes
    limits: Limits


class Command(NamedTuple):
    """Operations that happen all, if every guard holds, or not at all. ``more``: number of `More` payloads that follow
    at once, with values."""

    more: int
    guards: list[Guard]
    ops: list[Op]


class More(NamedTuple):
    """Piece ``index`` (from 0) of the values of the command before it."""

    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    data: bytes


Message: TypeAlias = Found | Command | Begin | Part | End | More


def valid_name(name: object) -> bool:
    """True for the name of a variable, or of a row: "owner NUL row". Each is 1 to 512 bytes of UTF-8 without control
    characters."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        return False
    if len(name) * 4 <= NAME_BYTES_MAX:
        return True
    return all(len(each.encode()) <= NAME_BYTES_MAX for each in name.split(ROW_MARK))


def decode(payload: bytes) -> Message | None:
    """The message in a payload of format 1; None if it holds none."""
    try:
        fields = unpack_message(payload[len(HEAD) :])
        check = _CHECKS.get(fields[0])
        return None if check is None else check(fields)
    except WireError:
        return None


def _found(fields: tuple[Any, ...]) -> Found | None:
    if len(fields) != 3 or not is_id(fields[1]) or type(fields[2]) is not tuple or len(fields[2]) != 3:
        return None
    return Found(fields[1], Limits(*fields[2])) if all(map(_number, fields[2])) else None


def _command(fields: tuple[Any, ...]) -> Command | None:
    if len(fields) != 4 or type(fields[1]) is not int or not 0 <= fields[1] <= MORE_MAX:
        return None
    more = fields[1]
    guards, ops = unpack_list(fields[2], OPS_MAX, _GUARD_FIELDS), unpack_list(fields[3], OPS_MAX, _OP_FIELDS)
    for guard in guards:
        if type(guard) is not tuple or len(guard) != 3 or type(guard[0]) is not int or not 0 <= guard[0] <= 1:
            return None
        if not valid_name(guard[1]) or not _number(guard[2]):
            return None
    for op in ops:
        if type(op) is not tuple or len(op) < 2 or type(op[0]) is not int or not _valid_op(op, more):
            return None
    return Command(more, guards, ops)


def _valid_op(op: Op, more: int) -> bool:
    kind, size = op[0], len(op)
    if not valid_name(op[1]):
        return False
    if kind == Do.PUT:
        if size != 4 or not _number(op[3]):
            return False
        value = op[2]
        if type(value) is tuple:
            return more > 0 and len(value) == 2 and _number(value[0]) and _number(value[1])
        return type(value) is bytes
    if kind == Do.EXPUNGE:
        return size == 2
    if kind == Do.KEEP:
        return size == 3 and _number(op[2])
    return kind == Do.ADD and size == 3 and type(op[2]) is int and INT_MIN <= op[2] <= INT_MAX


def _more(fields: tuple[Any, ...]) -> More | None:
    if len(fields) != 3 or not _number(fields[1]) or type(fields[2]) is not bytes:
        return None
    return More(*fields[1:])


_CHECKS = {**CHECKS, int(Kind.FOUND): _found, int(Kind.DO): _command, int(Kind.MORE): _more}


def _pack(kind: Kind, *fields: Any) -> bytes:
    """A payload of these fields. Raises ValueError for what msgpack does not hold."""
    return HEAD + pack((int(kind), *fields))


def found(state_id: bytes, limits: Limits) -> bytes:
    """The payload that founds a state."""
    return _pack(Kind.FOUND, state_id, tuple(limits))


def command(guards: Sequence[Guard], ops: Sequence[Op], payload_bytes_max: int) -> list[bytes]:
    """The payloads of a command, each of ``payload_bytes_max`` bytes at most unless the first cannot be: they must be
    appended as one batch. Every value is bytes."""
    held = pack(guards)
    whole = _pack(Kind.DO, 0, held, pack(ops))
    if len(whole) <= min(INLINE_BYTES_MAX, payload_bytes_max):
        return [whole]
    moved: list[bytes] = []
    short: list[Op] = []
    at = 0
    for op in ops:
        if op[0] != Do.PUT or len(op[2]) < _MOVED_BYTES:
            short.append(op)
            continue
        moved.append(op[2])
        short.append((op[0], op[1], (at, len(op[2])), op[3]))
        at += len(op[2])
    if not moved:
        return [whole]
    blob = b"".join(moved)
    size = min(2 * INLINE_BYTES_MAX, payload_bytes_max - ROOM_BYTES)
    pieces = [blob[start : start + size] for start in range(0, len(blob), size)]
    first = _pack(Kind.DO, len(pieces), held, pack(short))
    return [first, *(_pack(Kind.MORE, index, piece) for index, piece in enumerate(pieces))]
