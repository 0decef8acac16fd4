"""Answers as bytes that are the same in every process: how `alpo.rsm.check` compares what machines of different
processes gave.

Values that are equal have one form: dicts and sets in whatever order, and objects by their class and what they hold.
Neither an address, nor ``repr``, nor a pickle's memory of what is shared has part in it.
"""

from __future__ import annotations

import enum
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import PurePath
from reprlib import Repr
from types import BuiltinFunctionType, FunctionType
from typing import Any
from uuid import UUID

ANSWER_BYTES = 16
#: Values whose ``repr`` says all of them, and nothing else.
_SPOKEN = (date, time, timedelta, tzinfo, Decimal, Fraction, PurePath, UUID, range, slice)
_NAMED = (type, FunctionType, BuiltinFunctionType)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 160
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 12


class Incomparable(TypeError):
    """A value that is no data: a coroutine, a generator, a lock, something nested without end."""


def canonical(value: object) -> bytes:
    """The value as bytes, the same in every process for equal values of equal types. Raises `Incomparable`."""
    parts: list[bytes] = []
    try:
        _put(value, parts, [])
    except RecursionError:
        raise Incomparable(f"{type(value).__name__} is nested too deeply") from None
    return b"".join(parts)


def answer_digest(answer: object) -> bytes:
    """The digest of what ``apply`` returned. Raises `Incomparable`."""
    return blake2b(b"=" + canonical(answer), digest_size=ANSWER_BYTES).digest()


def error_digest(error: BaseException) -> bytes:
    """The digest of what ``apply`` raised: its type and its arguments. Raises `Incomparable`."""
    return blake2b(b"!" + canonical((name_of(type(error)), error.args)), digest_size=ANSWER_BYTES).digest()


def name_of(kind: Any) -> str:
    """The full name of a class or function."""
    return f"{kind.__module__}.{kind.__qualname__}"


def text_of(value: object) -> str:
    """The value for people to read, cut short."""
    try:
        text = _SHORT.repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= 400 else f"{text[:397]}..."


def _float(value: float) -> bytes:
    return b"nan" if value != value else struct.pack(">d", value)


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: b"%x" % value,
    float: _float,
    complex: lambda value: _float(value.real) + b"," + _float(value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
}


def _put(value: Any, parts: list[bytes], inside: list[int]) -> None:
    """Append the value's form. ``inside``: the addresses of what it is a part of, which end a circle."""
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return _data(kind.__name__, scalar(value), parts)
    if id(value) in inside:
        return _data("circle", b"%d" % (len(inside) - inside.index(id(value))), parts)
    inside.append(id(value))
    if isinstance(value, _NAMED):
        _data("named", name_of(value).encode(), parts)
    elif isinstance(value, enum.Enum):
        _data(name_of(kind), value.name.encode(), parts)
    elif isinstance(value, _SPOKEN):
        _data(name_of(kind), repr(value).encode(), parts)
    elif kind in (list, tuple, deque):
        _many(kind.__name__, value, parts, inside)
    elif kind in (set, frozenset):
        _data(kind.__name__, b"".join(sorted(_form(each, inside) for each in value)), parts)
    elif kind is dict:
        _data("dict", _pairs(value.items(), inside), parts)
    elif kind is OrderedDict:
        _many("OrderedDict", value.items(), parts, inside)
    elif isinstance(value, BaseException):
        _many(name_of(kind), [value.args, value.__dict__], parts, inside)
    else:
        _object(value, parts, inside)
    inside.pop()


def _object(value: Any, parts: list[bytes], inside: list[int]) -> None:
    """Append an object by what it would be copied from."""
    try:
        copied = value.__reduce_ex__(4)
    except Exception as error:
        raise Incomparable(f"a value of type {name_of(type(value))} is no data ({error})") from None
    if isinstance(copied, str):
        return _data(name_of(type(value)), copied.encode(), parts)
    make, arguments, state, rows, pairs = (*copied, None, None, None)[:5]
    _many(name_of(type(value)), [make, arguments, state, list(rows or ())], parts, inside)
    _data("pairs", _pairs(pairs or (), inside), parts)


def _form(value: object, inside: list[int]) -> bytes:
    parts: list[bytes] = []
    _put(value, parts, inside)
    return b"".join(parts)


def _pairs(pairs: Iterable[tuple[object, object]], inside: list[int]) -> bytes:
    return b"".join(sorted(_form(key, inside) + _form(value, inside) for key, value in pairs))


def _many(name: str, values: Iterable[object], parts: list[bytes], inside: list[int]) -> None:
    _data(name, b"".join(_form(value, inside) for value in values), parts)


def _data(name: str, data: bytes, parts: list[bytes]) -> None:
    parts.append(b"%s:%d:" % (name.encode(), len(data)))
    parts.append(data)
