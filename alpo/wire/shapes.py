"""The shapes of messages: tables of fields, and checks of received values.

Laws:

* A value that does not have exactly its type's shape raises `WireError`; nothing else is ever raised.
* bool is not int; integers are 0 … 2**63 - 1, as a column of the store can hold; a priority may be negative.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from alpo.core.entries import CLIENT_BYTES_MAX
from alpo.core.members import Identity
from alpo.core.ranks import Rank

from .framing import WireError, pack, unpack_list

INT_MAX = 2**63 - 1
#: Nesting of arrays and maps in a value of no fixed shape.
DEPTH_MAX = 16
ADDRESS_BYTES_MAX = 300
TEXT_BYTES_MAX = 48 * 1024
ID_BYTES = 16
LONG_BYTES = 8

Check = Callable[[Any], Any]


class WrongVersion(WireError):
    """A hello has a version of the protocol that this side does not speak.

    In every version the text ends with the newest version that its writer speaks: see `version_told`.
    """

    def __init__(self, version: int, mine: int) -> None:
        super().__init__(f"the other side speaks version {version} of the protocol, this one version {mine}")
        self.version = version


def version_told(problem: str) -> int:
    """The version that the writer of this `Problem` text speaks; 0 if the text is not about versions."""
    found = re.fullmatch(r"the other side speaks version \d+ of the protocol, this one version (\d{1,9})", problem)
    return int(found[1]) if found else 0


class Shape(NamedTuple):
    """Encoding of a message type: its number, its class, a check for each field that travels, and the fields that are
    made into another ``form``, which the check undoes. ``kept``: 1 if the first field stays home (None on arrival)."""

    number: int
    cls: type[Any]
    checks: tuple[Check, ...]
    forms: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    kept: int = 0

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that travel."""
        return self.cls._fields[self.kept : self.kept + len(self.checks)]  # type: ignore[no-any-return]


def refuse(text: str) -> NoReturn:
    """Raise `WireError` with this text."""
    raise WireError(text)


def packed(index: int) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
    """The forms of a shape whose field ``index`` is a packed list."""
    return ((index, pack),)


def build(shape: Shape, values: Sequence[Any]) -> Any:
    """The message of this shape from its unpacked fields. Raises `WireError` naming the field."""
    _, cls, checks, _, kept = shape
    if len(values) != len(checks):
        raise WireError(f"{cls.__name__} has {len(checks)} fields, not {len(values)}")
    fields: list[Any] = [None] if kept else []
    lead = _lead(checks)
    first = values[: len(lead)]
    if lead and tuple(map(type, first)) == lead and min(first) >= 0 and max(first) <= INT_MAX:
        fields += first
    try:
        for check, value in zip(checks[len(fields) - kept :], values[len(fields) - kept :], strict=True):
            fields.append(check(value))
    except WireError as error:
        raise WireError(f"{cls.__name__}.{cls._fields[len(fields)]}: {error}") from error
    if len(fields) < len(cls._fields):  # an older version's shape, or fields that do not travel
        fields += [cls._field_defaults[name] for name in cls._fields[len(fields) :]]
    return tuple.__new__(cls, fields)


@cache
def _lead(checks: tuple[Check, ...]) -> tuple[type, ...]:
    """The types of the numbers and flags at the front of a shape, which `build` checks at once."""
    plain: dict[Check, type] = {number: int, flag: bool}
    return tuple(map(plain.__getitem__, takewhile(plain.__contains__, checks)))


def plain_fields(shape: Shape, message: Any) -> list[Any]:
    """The inverse of `build`: type number and fields, each in the form that travels. Raises `WireError`.

    Fields beyond those of the shape are left out: they do not travel, or the shape is an older version's.
    """
    number, _, checks, forms, kept = shape
    fields = [number, *message[kept : kept + len(checks)]]
    for index, made in forms:
        fields[index + 1] = made(fields[index + 1])
    return fields


# --- checks: each returns the value as the message holds it, or raises `WireError`


def number(value: Any) -> int:
    """Check for an integer, 0 … 2**63 - 1."""
    if type(value) is not int or not 0 <= value <= INT_MAX:
        refuse("not an integer from 0 to 2**63 - 1")
    return value


def positive(value: Any) -> int:
    """Check for an integer, 1 … 2**63 - 1."""
    if type(value) is not int or not 1 <= value <= INT_MAX:
        refuse("not an integer from 1 to 2**63 - 1")
    return value


def signed(value: Any) -> int:
    """Check for an integer, -(2**63 - 1) … 2**63 - 1."""
    if type(value) is not int or not -INT_MAX <= value <= INT_MAX:
        refuse("not an integer of 63 bits and a sign")
    return value


def flag(value: Any) -> bool:
    """Check for true or false."""
    if type(value) is not bool:
        refuse("not true or false")
    return value


def text(bytes_max: int, bytes_min: int = 0) -> Check:
    """Make a check for a text of so many bytes in UTF-8."""
    def check(value: Any) -> str:
        if type(value) is not str or not bytes_min <= len(value.encode()) <= bytes_max:
            refuse(f"not a text of {bytes_min} to {bytes_max} bytes")
        return value

    return check


def json_of(inner: Check, make: Callable[[Any], Any]) -> Check:
    """Make a check for JSON in a text that ``inner`` allows. ``make`` makes the value of it; raises ValueError for what
    has another form."""
    def check(value: Any) -> Any:
        try:
            plain = json.loads(inner(value))
        except (ValueError, RecursionError) as error:
            raise WireError(f"not JSON: {error}") from error
        try:
            return make(plain)
        except ValueError as error:
            raise WireError(str(error)) from error

    return check


def json_text(plain: Any) -> str:
    """The JSON that travels."""
    return json.dumps(plain, separators=(",", ":"))


def octets(*sizes: int) -> Check:
    """Make a check for a binary of one of these sizes."""
    def check(value: Any) -> bytes:
        if type(value) is not bytes or len(value) not in sizes:
            refuse(f"not {' or '.join(map(str, sizes))} bytes")
        return value

    return check


def one_of(enum: type[IntEnum]) -> Check:
    """Make a check for a value of ``enum``."""
    known = {int(member): member for member in enum}

    def check(value: Any) -> IntEnum:
        if type(value) is not int or value not in known:
            refuse(f"no {enum.__name__}")
        return known[value]

    return check


def optional(inner: Check) -> Check:
    """Make a check for null or what ``inner`` allows."""
    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    return check


def fixed(*inner: Check, make: Callable[[Iterable[Any]], Any] = tuple) -> Check:
    """Make a check for an array with exactly these items."""

    def check(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(inner):
            refuse(f"not an array of {len(inner)}")
        return make(one(item) for one, item in zip(inner, value, strict=True))

    return check


def each(inner: Check) -> Check:
    """Make a check for a short array of such items."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            refuse("not an array")
        return tuple(map(inner, value))

    return check


def fields_by_name(value: Any) -> dict[str, Any]:
    """Check a map of no fixed shape: text to null, booleans, integers, floats, text, arrays (as lists) and such
    maps."""
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


client_id = text(CLIENT_BYTES_MAX, 1)
client_id_or_none = text(CLIENT_BYTES_MAX)
incarnation = octets(0, ID_BYTES)
cluster = octets(0, ID_BYTES)
rank = fixed(number, number, signed, number, make=Rank._make)
identity = fixed(number, incarnation, make=Identity._make)


# --- packed lists, column by column: one pass in C for each column, no Python step for each item


def numbers(items_max: int) -> Check:
    """Make a check for a packed list of integers."""

    def check(value: Any) -> list[int]:
        items = unpack_list(value, items_max, 0)
        if items:
            check_column(items, int)
        return items

    return check


def texts(items_max: int) -> Check:
    """Make a check for a packed list of client ids or ""."""

    def check(value: Any) -> list[str]:
        items = unpack_list(value, items_max, 0)
        if items:
            check_column(items, str)
        return items

    return check


def longs(value: Any) -> bytes:
    """Check for integers of 8 bytes each, little endian; their values are not checked here."""
    if type(value) is not bytes or len(value) % LONG_BYTES:
        refuse("not a binary of 8 bytes an integer")
    return value


def blob(value: Any) -> bytes:
    """Check for a binary."""
    if type(value) is not bytes:
        refuse("not a binary")
    return value


def rows(items_max: int, *types: type[Any], text_bytes_max: int = CLIENT_BYTES_MAX) -> Check:
    """Make a check for a packed list of arrays of these types, with texts of at most ``text_bytes_max``."""

    def check(value: Any) -> list[tuple[Any, ...]]:
        items = unpack_list(value, items_max, len(types))
        for column, of in zip(columns(items, len(types)), types, strict=True):
            check_column(column, of, text_bytes_max)
        return items

    return check


def mixed_rows(items_max: int, width_max: int) -> Check:
    """Make a check for a packed list of arrays of integers, texts and bytes, each at most ``width_max`` long."""

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


def check_column(column: Sequence[Any], of: type[Any], text_bytes_max: int = CLIENT_BYTES_MAX) -> None:
    """Check that all values have exactly this type and are within its bounds. Raises `WireError`."""
    if not set(map(type, column)) <= {of}:
        refuse(f"a list with something else than {of.__name__}")
    if of is int and column and not 0 <= min(column) <= max(column) <= INT_MAX:
        refuse("a list with an integer that is not from 0 to 2**63 - 1")
    if of is str and any(len(text.encode()) > text_bytes_max for text in set(column)):
        what = "client id" if text_bytes_max == CLIENT_BYTES_MAX else "text"
        refuse(f"a list with a {what} over {text_bytes_max} bytes")
