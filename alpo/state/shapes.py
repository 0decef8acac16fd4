"""Cells of a replicated state's fold, the results of its payloads, and its snapshots."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from .codec import ID_BYTES

_NUMBERS = Struct("<QQQQI")


class Cell(NamedTuple):
    """A variable in the fold. ``version`` and ``created``: LSNs of its last and first write; ``time_ms``: of the write,
    or of the last `KEEP`; ``lease_ms`` 0: none. ``digest``: over its name and all of this."""

    version: int
    created: int
    value: bytes
    time_ms: int
    lease_ms: int
    digest: int


class Outcome(IntEnum):
    """The effect of a payload."""

    DONE = 0
    CHANGED = 1  # a guard is false
    UNFENCED = 2  # a row without a guard on its owner
    NO_INTEGER = 3  # `ADD` to something else, or out of 64 bits
    FULL = 4
    NOT_FOUNDED = 5
    FOUNDED = 6
    FOUNDED_BEFORE = 7
    GRANTED = 8  # the snapshot may be written
    BUSY = 9  # another one is being written
    TAKEN = 10  # a part
    ACCEPTED = 11
    DIVERGED = 12  # the snapshot is not of this state
    STALE = 13  # a part or end of a snapshot that was taken over, or never granted
    INVALID = 14
    FOREIGN = 15
    WAITS = 16  # for the rest of the command
    NEWER = 17  # a format that this machine does not know: it must not go on


class Result(NamedTuple):
    """The effect of the payload at ``lsn``. ``name``: the variable it failed at, which has LSN ``have`` (0: absent)
    and not ``wanted``. ``sums``: results of the command's `ADD`s, in order. ``cell``: the variable that a command
    of one operation left."""

    outcome: Outcome
    lsn: int
    name: str = ""
    have: int = 0
    wanted: int = 0
    sums: tuple[int, ...] = ()
    cell: Cell | None = None


class Upload(NamedTuple):
    """A snapshot that is being written: as of LSN ``begin``, with ``parts`` parts so far, the last at ``time_ms``."""

    sid: bytes
    begin: int
    parts: int
    chain: bytes
    time_ms: int
    digest: int
    command_bytes: int
    begun_ms: int


class Snapshot(NamedTuple):
    """An accepted snapshot: the state as of LSN ``begin``, accepted at LSN ``end``; ``command_bytes`` and ``begun_ms``:
    those of the machine at ``begin``."""

    begin: int
    end: int
    command_bytes: int
    begun_ms: int


class Frozen(NamedTuple):
    """A machine as of one LSN: ``registers`` (integers, bytes and tuples), its cells by name, and the digest that it
    kept of them, write by write."""

    registers: tuple[Any, ...]
    cells: dict[str, Cell]
    digest: int


class StateStatus(NamedTuple):
    """A state as this process has folded it, at ``lsn``.

    ``state``: its id, hex, "" before it is founded. ``bytes``: of names and values. ``invalid``: payloads that look
    like the state's and are none. ``foreign_lsn``: the last payload of others. ``snapshot`` and ``previous``: (first,
    last) LSN of the last two accepted, None without. ``bytes_since``: bytes of commands since the last one began.
    """

    state: str
    lsn: int
    time: datetime
    variables: int
    bytes: int
    invalid: int
    foreign_lsn: int
    snapshot: tuple[int, int] | None
    previous: tuple[int, int] | None
    bytes_since: int


def size_of(name: str, cell: Cell | None) -> int:
    """Bytes that a cell counts for: name and value; 0 without a cell."""
    return 0 if cell is None else (len(name) if name.isascii() else len(name.encode())) + len(cell.value)


def sealed(name: str, version: int, created: int, value: bytes, time_ms: int, lease_ms: int) -> Cell:
    """A cell with its digest."""
    key = name.encode()
    hashed = blake2b(_NUMBERS.pack(version, created, time_ms, lease_ms, len(key)), digest_size=ID_BYTES)
    hashed.update(key)
    hashed.update(value)
    digest = int.from_bytes(hashed.digest(), "big")
    return Cell(version, created, value, time_ms, lease_ms, digest)


def chained(chain: bytes, part: bytes) -> bytes:
    """The chain over a snapshot's parts, one part longer."""
    return blake2b(chain + part, digest_size=ID_BYTES).digest()


def digest_bytes(digest: int) -> bytes:
    """A digest as an `End` carries it."""
    return digest.to_bytes(ID_BYTES, "big")
