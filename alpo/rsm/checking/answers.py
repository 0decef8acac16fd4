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
    try:
        return _form(value, [])
    except RecursionError:
        raise Incomparable(f"{type(value).__name__} is nested too deeply") from None


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


def _form(value: Any, inside: list[int]) -> bytes:
    """The value's form. ``inside``: the addresses of what it is a part of, which end a circle."""
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return _data(kind.__name__, scalar(value))
    if id(value) in inside:
        return _data("circle", b"%d" % (len(inside) - inside.index(id(value))))
    inside.append(id(value))
    form = _form_of_many(value, kind, inside)
    inside.pop()
    return form


def _form_of_many(value: Any, kind: type, inside: list[int]) -> bytes:
    """The form of what may have parts."""
    if kind is dict:
        return _data("dict", _pairs(value.items(), inside))
    if kind in (list, tuple, deque):
        return _many(kind.__name__, value, inside)
    if isinstance(value, _NAMED):
        return _data("named", name_of(value).encode())
    if isinstance(value, enum.Enum):
        return _data(name_of(kind), value.name.encode())
    if isinstance(value, _SPOKEN):
        return _data(name_of(kind), repr(value).encode())
    if kind in (set, frozenset):
        return _data(kind.__name__, b"".join(sorted(_form(each, inside) for each in value)))
    if kind is OrderedDict:
        return _many("OrderedDict", value.items(), inside)
    if isinstance(value, BaseException):
        return _many(name_of(kind), [value.args, value.__dict__], inside)
    return _object(value, inside)


def _object(value: Any, inside: list[int]) -> bytes:
    """The form of an object: what it would be copied from."""
    try:
        copied = value.__reduce_ex__(4)
    except Exception as error:
        raise Incomparable(f"a value of type {name_of(type(value))} is no data ({error})") from None
    if isinstance(copied, str):
        return _data(name_of(type(value)), copied.encode())
    make, arguments, state, rows, pairs = (*copied, None, None, None)[:5]
    form = _many(name_of(type(value)), [make, arguments, state, list(rows or ())], inside)
    return form + _data("pairs", _pairs(pairs or (), inside))


def _pairs(pairs: Iterable[tuple[object, object]], inside: list[int]) -> bytes:
    return b"".join(sorted([_form(key, inside) + _form(value, inside) for key, value in pairs]))


def _many(name: str, values: Iterable[object], inside: list[int]) -> bytes:
    return _data(name, b"".join([_form(value, inside) for value in values]))


def _data(name: str, data: bytes) -> bytes:
    return b"%b:%d:%b" % (name.encode(), len(data), data)
