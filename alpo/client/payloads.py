"""Payloads into what the wire carries, measured; and how much a cluster takes, as a server's hello says.

Before the first hello, only a payload that no cluster takes is too large.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from alpo.core.entries import join_payloads
from alpo.core.settings import BOUNDS
from alpo.errors import TooLarge
from alpo.wire.requests import ServerHello

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
