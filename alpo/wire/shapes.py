"""The shapes of messages: tables of fields, checks on what came off the wire, and packed lists.

Laws:

* What does not have exactly the shape that its type says raises `WireError`, and nothing else is ever raised.
* Memory follows the bytes received, never the lengths they claim: a msgpack array header makes the unpacker set
  room aside for all that it announces, a thousand levels deep, so plain arrays are capped low (`ARRAY_MAX`), and a
  list that may be long travels *packed*: as bytes that hold the msgpack array, unpacked item by item.
* bool is not int; integers are 0 … 2**63 - 1, which is what a column of the store holds; a priority may be negative.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

import msgpack  # type: ignore[import-untyped]

from alpo.core.members import Identity
from alpo.core.ranks import Rank

INT_MAX = 2**63 - 1
#: Items of an array, pairs of a map, that is not packed: members, fields.
ARRAY_MAX = 1024
#: Levels of arrays and maps in a value of no fixed shape.
DEPTH_MAX = 16
CLIENT_ID_BYTES_MAX = 128
ADDRESS_BYTES_MAX = 300
TEXT_BYTES_MAX = 48 * 1024
ID_BYTES = 16
LONG_BYTES = 8

#: Items of a packed list that is short, and of an item of it.
_FEW = 15

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

Check = Callable[[Any], Any]


class WireError(ValueError):
    """A whole, undamaged frame that holds no message: the connection must be closed."""


class WrongVersion(WireError):
    """A hello of a version of this protocol that this side does not speak.

    The text ends, in every version, with the newest version that its writer speaks: see `version_told`.
    """

    def __init__(self, version: int, mine: int) -> None:
        super().__init__(f"the other side speaks version {version} of the protocol, this one version {mine}")
        self.version = version


def version_told(problem: str) -> int:
    """The version that the writer of a `Problem` with this text speaks; 0: it is not about versions."""
    found = re.fullmatch(r"the other side speaks version \d+ of the protocol, this one version (\d{1,9})", problem)
    return int(found[1]) if found else 0


class Shape(NamedTuple):
    """How a message type travels: its number, its class, a check for each field, and which fields are packed lists."""

    number: int
    cls: type[Any]
    checks: tuple[Check, ...]
    packed: tuple[int, ...] = ()


def refuse(text: str) -> NoReturn:
    raise WireError(text)


# --- bytes to values and back


def pack(value: Any) -> bytes:
    """msgpack of ``value``. Raises `WireError` for what cannot travel (a lone surrogate, an integer over 64 bits)."""
    try:
        return msgpack.packb(value)  # type: ignore[no-any-return]
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(f"cannot be sent: {error}") from error


def unpack_message(body: bytes | memoryview) -> tuple[Any, ...]:
    """The array that every body is: (type number, field, field, …), not empty, its first an int. Raises `WireError`."""
    try:
        fields = msgpack.unpackb(
            body, use_list=False, raw=False, strict_map_key=True,
            max_array_len=ARRAY_MAX, max_map_len=ARRAY_MAX, max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not a message: {error}") from error
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise WireError("not a message: no array that begins with a type")
    return fields


def unpack_list(blob: Any, items_max: int, width: int) -> list[Any]:
    """The items of a packed list; an item may be an array of at most ``width``. Raises `WireError`."""
    if type(blob) is not bytes:
        raise WireError("not a packed list: no bytes")
    count, at = _array_header(blob)
    if count > min(items_max, len(blob) - at):
        raise WireError(f"a list of {count} items, where {min(items_max, len(blob) - at)} is the most")
    if not count and at == len(blob):
        return []
    if count <= _FEW and width <= _FEW:
        return _unpack_few(blob, count, width)
    unpacker = msgpack.Unpacker(
        use_list=False, raw=False, strict_map_key=True, read_size=len(blob), max_buffer_size=len(blob),
        max_array_len=width, max_map_len=0, max_ext_len=0,
    )
    unpacker.feed(memoryview(blob)[at:])
    try:
        items = list(unpacker)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not a packed list: {error}") from error
    if len(items) != count or unpacker.tell() != len(blob) - at:
        raise WireError(f"a list that says {count} items holds another number, or ends early")
    return items


def _unpack_few(blob: bytes, count: int, width: int) -> list[Any]:
    """`unpack_list` of a short list of short items: in one go, without an unpacker's buffers."""
    try:
        return list(msgpack.unpackb(
            blob, use_list=False, raw=False, strict_map_key=True,
            max_array_len=max(count, width), max_map_len=0, max_ext_len=0,
        ))
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"a list that says {count} items holds another number, or no items: {error}") from error


def _array_header(blob: bytes) -> tuple[int, int]:
    """(items announced, where they begin)."""
    first = blob[0] if blob else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first == 0xDC and len(blob) >= 3:
        return _U16.unpack_from(blob, 1)[0], 3
    if first == 0xDD and len(blob) >= 5:
        return _U32.unpack_from(blob, 1)[0], 5
    raise WireError("not a packed list: no array")


def build(shape: Shape, values: Sequence[Any]) -> Any:
    """The message of this shape from its unpacked fields. Raises `WireError` naming the field."""
    _, cls, checks, _ = shape
    if len(values) != len(checks):
        raise WireError(f"{cls.__name__} has {len(checks)} fields, not {len(values)}")
    fields: list[Any] = []
    try:
        for check, value in zip(checks, values, strict=True):
            fields.append(check(value))
    except WireError as error:
        raise WireError(f"{cls.__name__}.{cls._fields[len(fields)]}: {error}") from error
    if len(fields) < len(cls._fields):  # an older version's shape
        fields += [cls._field_defaults[name] for name in cls._fields[len(fields) :]]
    return tuple.__new__(cls, fields)


def plain_fields(shape: Shape, message: Any) -> list[Any]:
    """The inverse of `build`: type number and fields, packed lists packed. Raises `WireError`.

    Fields beyond those of the shape, which is then an older version's, are left out.
    """
    fields = [shape.number, *message[: len(shape.checks)]]
    for index in shape.packed:
        fields[index + 1] = pack(fields[index + 1])
    return fields


# --- checks: the value as the message holds it, or `WireError`


def number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INT_MAX:
        refuse("not an integer from 0 to 2**63 - 1")
    return value


def positive(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= INT_MAX:
        refuse("not an integer from 1 to 2**63 - 1")
    return value


def signed(value: Any) -> int:
    if type(value) is not int or not -INT_MAX <= value <= INT_MAX:
        refuse("not an integer of 63 bits and a sign")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        refuse("not true or false")
    return value


def text(bytes_max: int, bytes_min: int = 0) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or not bytes_min <= len(value.encode()) <= bytes_max:
            refuse(f"not a text of {bytes_min} to {bytes_max} bytes")
        return value

    return check


def octets(*sizes: int) -> Check:
    def check(value: Any) -> bytes:
        if type(value) is not bytes or len(value) not in sizes:
            refuse(f"not {' or '.join(map(str, sizes))} bytes")
        return value

    return check


def one_of(enum: type[IntEnum]) -> Check:
    known = {int(member): member for member in enum}

    def check(value: Any) -> IntEnum:
        if type(value) is not int or value not in known:
            refuse(f"no {enum.__name__}")
        return known[value]

    return check


def optional(inner: Check) -> Check:
    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    return check


def fixed(*inner: Check, make: Callable[[Iterable[Any]], Any] = tuple) -> Check:
    """An array of exactly these."""

    def check(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(inner):
            refuse(f"not an array of {len(inner)}")
        return make(one(item) for one, item in zip(inner, value, strict=True))

    return check


def each(inner: Check) -> Check:
    """A short array of such."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            refuse("not an array")
        return tuple(map(inner, value))

    return check


def fields_by_name(value: Any) -> dict[str, Any]:
    """A map of no fixed shape: text to null, booleans, integers, floats, text, arrays (as lists) and such maps."""
    if type(value) is not dict:
        refuse("not a map")
    return _free(value, 0)  # type: ignore[no-any-return]


def _free(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        refuse(f"more than {DEPTH_MAX} levels deep")
    if type(value) is tuple:
        return [_free(item, depth + 1) for item in value]
    if type(value) is dict:
        if any(type(key) is not str for key in value):
            refuse("a map's key is no text")
        return {key: _free(item, depth + 1) for key, item in value.items()}
    if value is not None and type(value) not in (bool, int, float, str):
        refuse(f"holds a {type(value).__name__}")
    return value


client_id = text(CLIENT_ID_BYTES_MAX, 1)
client_id_or_none = text(CLIENT_ID_BYTES_MAX)
incarnation = octets(0, ID_BYTES)
cluster = octets(0, ID_BYTES)
rank = fixed(number, number, signed, number, make=Rank._make)
identity = fixed(number, incarnation, make=Identity._make)


# --- packed lists, column by column: a pass in C for each, not a step in Python for each item


def numbers(items_max: int) -> Check:
    """A packed list of integers."""

    def check(value: Any) -> list[int]:
        items = unpack_list(value, items_max, 0)
        if items:
            check_column(items, int)
        return items

    return check


def texts(items_max: int) -> Check:
    """A packed list of client ids, or ""."""

    def check(value: Any) -> list[str]:
        items = unpack_list(value, items_max, 0)
        if items:
            check_column(items, str)
        return items

    return check


def longs(value: Any) -> bytes:
    """Integers of 8 bytes each, little endian; they are not looked at here."""
    if type(value) is not bytes or len(value) % LONG_BYTES:
        refuse("not a binary of 8 bytes an integer")
    return value


def blob(value: Any) -> bytes:
    if type(value) is not bytes:
        refuse("not a binary")
    return value


def rows(items_max: int, *types: type[Any], text_bytes_max: int = CLIENT_ID_BYTES_MAX) -> Check:
    """A packed list of arrays with columns of these types; texts are client ids or "" unless they may be longer."""

    def check(value: Any) -> list[tuple[Any, ...]]:
        items = unpack_list(value, items_max, len(types))
        for column, of in zip(columns(items, len(types)), types, strict=True):
            check_column(column, of, text_bytes_max)
        return items

    return check


def mixed_rows(items_max: int, width_max: int) -> Check:
    """A packed list of arrays of integers, texts and bytes, each at most ``width_max`` long."""

    def check(value: Any) -> list[tuple[Any, ...]]:
        items = unpack_list(value, items_max, width_max)
        for item in items:
            if type(item) is not tuple or not all(type(value) in (int, str, bytes) for value in item):
                refuse("a list with something else than arrays of integers, texts and bytes")
        return items

    return check


def columns(items: list[Any], width: int) -> tuple[tuple[Any, ...], ...]:
    """The columns of a list of arrays of ``width`` each. Raises `WireError`."""
    if not items:
        return ((),) * width
    if set(map(type, items)) != {tuple} or set(map(len, items)) != {width}:
        refuse(f"a list with something else than arrays of {width}")
    return tuple(zip(*items, strict=True))


def check_column(column: Sequence[Any], of: type[Any], text_bytes_max: int = CLIENT_ID_BYTES_MAX) -> None:
    """All of exactly this type and within its bounds. Raises `WireError`."""
    if not set(map(type, column)) <= {of}:
        refuse(f"a list with something else than {of.__name__}")
    if of is int and column and not 0 <= min(column) <= max(column) <= INT_MAX:
        refuse("a list with an integer that is not from 0 to 2**63 - 1")
    if of is str and any(len(text.encode()) > text_bytes_max for text in set(column)):
        what = "client id" if text_bytes_max == CLIENT_ID_BYTES_MAX else "text"
        refuse(f"a list with a {what} over {text_bytes_max} bytes")
