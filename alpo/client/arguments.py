"""Checks of what callers give, and of what they do with a log; and payloads, made into what the wire carries.

Laws:

* A wrong type raises TypeError and names the argument.
* Payloads are measured against how much a cluster takes, as a server's hello says. Before the first hello, only one
  that no cluster takes is too large.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import datetime
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX, RANDOM_MARK, is_random, join_payloads
from alpo.core.settings import BOUNDS
from alpo.errors import TooLarge
from alpo.wire.requests import ServerHello


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


# -- payloads -----------------------------------------------------------------------------------------------

#: One payload, or (count, joined body) for a batch of more.
Item: TypeAlias = bytes | tuple[int, bytes]

#: A payload as a caller may give it; it is kept as bytes.
Payload: TypeAlias = bytes | bytearray | memoryview


class Parcel(NamedTuple):
    """One append: ``number`` payloads, ``size`` bytes of body, ``largest`` bytes of one payload."""

    item: Item
    number: int
    size: int
    largest: int


_new = tuple.__new__  # makes named tuples without the cost of calling their own constructor


def single(payload: Payload) -> Parcel:
    """The parcel of one payload. Raises TypeError for anything but bytes-like."""
    if type(payload) is not bytes:
        payload = _to_bytes(payload)
    size = len(payload)
    return _new(Parcel, (payload, 1, size, size))


def text_payload(text: str) -> Parcel:
    """The parcel of a string, as UTF-8. Raises TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"text is str, not {type(text).__name__}")
    return single(text.encode())


def json_payload(value: object) -> Parcel:
    """The parcel of a value, as JSON. Raises TypeError or ValueError for what JSON cannot hold."""
    return single(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def batch(payloads: Iterable[Payload]) -> Parcel:
    """The parcel of several payloads that go together; a batch of one is a payload. Raises ValueError for none,
    TypeError."""
    if isinstance(payloads, (bytes, str)):
        raise TypeError("a batch is several payloads, not one")
    if not isinstance(payloads, Iterable):
        raise TypeError(f"a batch is several payloads, not {type(payloads).__name__}")
    parts = [p if type(p) is bytes else _to_bytes(p) for p in payloads]
    if not parts:
        raise ValueError("a batch holds at least one payload")
    if len(parts) == 1:
        return single(parts[0])
    body = join_payloads(parts)
    return Parcel((len(parts), body), len(parts), len(body), max(map(len, parts)))


def _to_bytes(payload: object) -> bytes:
    if isinstance(payload, (bytearray, memoryview, bytes)):
        return bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}")


#: The limits until the first hello tells the cluster's.
WINDOW = 1024
PAYLOAD_BYTES_MAX = BOUNDS["payload_bytes_max"][1]
BATCH_BYTES_MAX = BOUNDS["batch_bytes_max"][1]


class Sizes:
    """Limits on the size of an append, and on how many of one client may be in flight."""

    __slots__ = ("batch_bytes_max", "payload_bytes_max", "sure_bytes", "window")

    def __init__(self, window: int, payload_bytes_max: int, batch_bytes_max: int) -> None:
        self.window = window
        self.payload_bytes_max = payload_bytes_max
        self.batch_bytes_max = batch_bytes_max
        #: Size in bytes up to which no parcel can be too large.
        self.sure_bytes = min(payload_bytes_max, batch_bytes_max)

    @staticmethod
    def of(hello: ServerHello) -> Sizes:
        """The limits that a server's hello tells."""
        return Sizes(max(1, hello.window), hello.payload_bytes_max, hello.batch_bytes_max)

    def check(self, parcel: Parcel) -> None:
        """Check a parcel's size. Raises `TooLarge`."""
        if parcel.largest > self.payload_bytes_max:
            raise TooLarge(f"a payload of {parcel.largest} bytes, where {self.payload_bytes_max} is the most")
        if parcel.number > 1 and parcel.size > self.batch_bytes_max:
            raise TooLarge(f"a batch of {parcel.size} bytes, where {self.batch_bytes_max} is the most")
