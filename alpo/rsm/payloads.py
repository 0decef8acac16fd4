"""Payloads of a replicated machine, as far as they are the same for every kind: how they begin, and those of snapshots.

A payload is two bytes of magic, the number of a format, and a msgpack array of integers, UTF-8 text, bytes and arrays,
with nothing behind it. Its first element tells what it is: 2, 3 and 4 are those of snapshots (docs/wire-format.md).

Laws:

* Decoding is total: any bytes give a message, or None; it never raises, and keeps no more than it was given.
* The meaning of a format never changes: a change is a new format.
* No text, JSON or msgpack begins with a kind's magic: what others append is never taken for a payload of it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from alpo.wire.framing import WireError, pack, unpack_message

#: Bytes of ids, chains and digests.
ID_BYTES = 16
INT_MAX, INT_MIN = (1 << 63) - 1, -(1 << 63)
#: Largest payload that is written where the cluster takes larger ones: others' appends go on beside it.
INLINE_BYTES_MAX = 256 << 10
#: Part of a payload that may be taken by what is not its bytes.
ROOM_BYTES = 1 << 10


#: Begins of the payloads that found something in a log, and what that is: a log holds one of them.
FOUNDINGS = {b"\xc1\x41\x01\x93\x00": "a state (alpo.state)", b"\xc1\x52\x01\x94\x00": "a machine (alpo.rsm)"}


class SnapshotKind(IntEnum):
    """The first element of the payloads of a snapshot."""

    BEGIN = 2
    PART = 3
    END = 4


class Begin(NamedTuple):
    """The beginning of a snapshot, ``sid``: 16 bytes. It is of the machine as of this very payload."""

    sid: bytes


class Part(NamedTuple):
    """Part ``index`` (from 0) of a snapshot."""

    sid: bytes
    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    data: bytes


class End(NamedTuple):
    """The end of a snapshot: number of parts, the chain over them, and the digest of what they hold."""

    sid: bytes
    parts: int
    chain: bytes
    digest: bytes


SnapshotMessage: TypeAlias = Begin | Part | End


class Payloads(NamedTuple):
    """The payloads of one kind of machine: their magic, and the number of the format that is written and read.
    ``noun``: what the machine is called in messages ("state")."""

    noun: str
    magic: bytes
    format: int

    @property
    def head(self) -> bytes:
        """The bytes before the array."""
        return self.magic + bytes([self.format])

    def format_of(self, payload: bytes) -> int | None:
        """The number of the format that a payload is in; None if it is not of this kind."""
        if payload[:2] != self.magic:
            return None
        return payload[2] if len(payload) > 2 else 0

    def snapshot_message(self, payload: bytes) -> SnapshotMessage | None:
        """The message of a snapshot in a payload of this format; None if it holds none. Commands in their shortest form
        are not decoded."""
        if payload[:2] != self.magic or len(payload) < 5 or payload[2] != self.format or _is_other(payload):
            return None
        try:
            fields = unpack_message(payload[3:])
            check = CHECKS.get(fields[0])
            return None if check is None else check(fields)
        except WireError:
            return None

    def pack(self, number: int, *fields: Any) -> bytes:
        """A payload of these fields. Raises ValueError for what msgpack does not hold."""
        return self.head + pack((int(number), *fields))

    def begin(self, sid: bytes) -> bytes:
        """The payload that begins a snapshot."""
        return self.pack(SnapshotKind.BEGIN, sid)

    def part(self, sid: bytes, index: int, data: bytes) -> bytes:
        """The payload of one part of a snapshot."""
        return self.pack(SnapshotKind.PART, sid, index, data)

    def end(self, sid: bytes, parts: int, chain: bytes, digest: bytes) -> bytes:
        """The payload that ends a snapshot."""
        return self.pack(SnapshotKind.END, sid, parts, chain, digest)


def _is_other(payload: bytes) -> bool:
    """True if the array shows by its first bytes, in their shortest form, that it is none of a snapshot."""
    return payload[3] & 0xF0 == 0x90 and payload[4] < 0x80 and payload[4] not in CHECKS


def is_number(value: object) -> bool:
    """True for an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value <= INT_MAX


def is_id(value: object) -> bool:
    """True for 16 bytes."""
    return type(value) is bytes and len(value) == ID_BYTES


def chained(chain: bytes, part: bytes) -> bytes:
    """The chain over a snapshot's parts, one part longer."""
    return blake2b(chain + part, digest_size=ID_BYTES).digest()


def _begin(fields: tuple[Any, ...]) -> Begin | None:
    return Begin(fields[1]) if len(fields) == 2 and is_id(fields[1]) else None


def _part(fields: tuple[Any, ...]) -> Part | None:
    if len(fields) != 4 or not is_id(fields[1]) or not is_number(fields[2]) or type(fields[3]) is not bytes:
        return None
    return Part(*fields[1:])


def _end(fields: tuple[Any, ...]) -> End | None:
    if len(fields) != 5 or not is_id(fields[1]) or not is_number(fields[2]):
        return None
    return End(*fields[1:]) if is_id(fields[3]) and is_id(fields[4]) else None


#: First element of an array -> what makes its message of the fields, or None.
CHECKS: dict[Any, Callable[[tuple[Any, ...]], SnapshotMessage | None]] = {
    int(SnapshotKind.BEGIN): _begin, int(SnapshotKind.PART): _part, int(SnapshotKind.END): _end,
}
