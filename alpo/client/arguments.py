"""Checks of what callers give, and of what they do with a log: a wrong type raises TypeError and names the argument."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX, RANDOM_MARK, is_random


def _wrong(name: str, wanted: str, value: object) -> NoReturn:
    raise TypeError(f"{name} {wanted}, not {type(value).__name__}")


def need_int(**given: object) -> None:
    """Check that each value given is an int, and no bool. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            _wrong(name, "is an int", value)


def need_str(**given: object) -> None:
    """Check that each value given is a string. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, str):
            _wrong(name, "is str", value)


def need_datetime(**given: object) -> None:
    """Check that each value given is a `datetime`. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(value, datetime):
            _wrong(name, "is a datetime", value)


def need_seconds(timeout_s: Any, zero: bool = False) -> None:
    """Check that a timeout is a number above 0 (``zero``: 0 will do too). Raises TypeError, ValueError."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real):
        _wrong("timeout_s", "is a number of seconds", timeout_s)
    if not (timeout_s >= 0 if zero else timeout_s > 0):  # type: ignore[operator]  # NaN is neither
        raise ValueError("timeout_s must be positive")


def seconds_text(seconds: float) -> str:
    """Seconds in words for an error: of what earlier steps left of a deadline, its thousandths are enough."""
    return f"{round(seconds, 3):g} s"


def need_servers(servers: object) -> None:
    """Check that ``servers`` is a string or a collection of strings. Raises TypeError."""
    if isinstance(servers, bytes | bytearray) or not isinstance(servers, Collection):
        _wrong("servers", "are HOST:PORT,… or a list of HOST:PORT", servers)
    for server in servers:
        if not isinstance(server, str):
            _wrong("a server", "is HOST:PORT", server)


class After(NamedTuple):
    """A conditional append's place in the log: right behind LSN ``expect_last``. ``serial``: the one asked for (0: the
    next)."""

    expect_last: int
    serial: int


#: An append's place as its caller asks for it: the next serial, that serial, or a condition.
Place: TypeAlias = int | After | None


def place_of(serial: int | None, expect_last: int | None) -> Place:
    """The place that an append asks for by these two arguments. Raises TypeError, ValueError."""
    if expect_last is None:
        return serial
    need_int(expect_last=expect_last)
    if not 0 <= expect_last <= INT_MAX:
        raise ValueError(f"expect_last is an LSN, or 0 for a log that never held a payload, not {expect_last}")
    need_append(serial, None)
    return After(expect_last, serial or 0)


def need_append(serial: object, timeout_s: object) -> None:
    """Check an append's place and timeout, None where not given. Raises TypeError, ValueError."""
    if serial is not None and not isinstance(serial, After):
        need_int(serial=serial)
        if serial < 1:  # type: ignore[operator]
            raise ValueError(f"serials begin at 1, not {serial}")
    if timeout_s is not None:
        need_seconds(timeout_s)


def check_name(name: str) -> str:
    """``name``, once checked: it may name a client. Raises TypeError, ValueError."""
    need_str(client=name)
    size = len(name.encode())
    if not 1 <= size <= CLIENT_BYTES_MAX:
        raise ValueError(f"a client name is 1 to {CLIENT_BYTES_MAX} bytes of UTF-8, not {size}")
    if is_random(name):
        raise ValueError(f"a client name does not begin with {RANDOM_MARK!r}: that marks random ids")
    return name


class Unpickled:
    """A class whose objects have connections, which no other process could use: pickling raises TypeError."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Log cannot be pickled: connect in the other process")


class AsyncIterated:
    """A class whose objects are iterated over by ``async for`` alone: a plain ``for`` raises TypeError."""

    if not TYPE_CHECKING:  # type checkers refuse the plain loop by themselves

        def __iter__(self) -> NoReturn:
            raise TypeError(
                f"{type(self).__name__} is iterated over by async for; for a plain for there is connect_sync()"
            )


class AsyncOnly(Unpickled):
    """A class whose objects are entered by ``async with`` alone: a plain ``with`` raises TypeError."""

    def __enter__(self) -> NoReturn:
        raise TypeError("a Log of connect() is entered by async with; for a plain with there is connect_sync()")

    def __exit__(self, *error: object) -> NoReturn:  # a with statement looks for it before it enters
        raise NotImplementedError
