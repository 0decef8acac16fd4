"""Parts of a snapshot: a frozen machine as pieces of bytes, each of which fits into a payload, and back.

The first part holds the registers, and each further one variables: [name, version, created, time in ms, lease in ms,
size of the value, offset, bytes], where a great value comes in pieces, one after the other (docs/wire-format.md).

Laws:

* Reading is total: damaged parts raise ValueError, and never give another state. Memory follows the bytes received.
* The digest is taken from what the parts hold. Where the machine kept another one, write by write, its memory was
  damaged: nothing that looks whole is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from alpo.wire.framing import pack, unpack_list

from .codec import ID_BYTES, INLINE_BYTES_MAX, INT_MAX, ROOM_BYTES, valid_name
from .errors import Busy, Diverged
from .machine import Cell, Frozen, Machine, chained, digest_bytes, sealed

#: Largest part.
PART_BYTES_MAX = 2 * INLINE_BYTES_MAX
#: Bytes of a payload that holds a part, besides the part.
_PAYLOAD_ROOM = 64
#: Bytes of a list's header, and the most of a variable without its name and piece of value.
_LIST_ROOM, _ITEM_ROOM = 5, 64
_PART_BYTES_LEAST = 4 << 10
#: Latest time of a variable: the end of the year 9999.
_TIME_MS_MAX = 253_402_300_799_999
_REGISTERS, _ITEM_FIELDS = 10, 8
_MOD = 1 << 8 * ID_BYTES
_HEADER = struct.Struct(">BI")


def part_bytes_max(payload_bytes_max: int) -> int:
    """The most bytes of a part, where the cluster takes payloads of ``payload_bytes_max``. Raises `Busy` if no part
    fits."""
    size = min(PART_BYTES_MAX, payload_bytes_max - ROOM_BYTES) - _PAYLOAD_ROOM
    if size < _PART_BYTES_LEAST:
        raise Busy(f"payloads of {payload_bytes_max} bytes at most are too small for a snapshot")
    return size


class Encoder:
    """An iterator over the parts of a frozen machine, each of ``bytes_max`` bytes at most. ``parts``, ``bytes``,
    ``chain`` and ``digest`` are those of the parts so far. Behind the last it raises `Diverged` if they are not what
    the machine took in."""

    def __init__(self, frozen: Frozen, bytes_max: int) -> None:
        self._frozen = frozen
        self._bytes_max = bytes_max
        self._digest = 0
        self.parts = 0
        self.bytes = 0
        self.chain = b""

    @property
    def digest(self) -> bytes:
        """The digest as an `End` carries it."""
        return digest_bytes(self._digest)

    def __iter__(self) -> Iterator[bytes]:
        yield self._note(pack(self._frozen.registers))
        items: list[bytes] = []
        room = self._bytes_max - _LIST_ROOM
        left = room
        for name, cell in self._frozen.cells.items():
            for item in self._items(name, cell, room):
                if len(item) > left:
                    yield self._note(_listed(items))
                    items, left = [], room
                items.append(item)
                left -= len(item)
        if items:
            yield self._note(_listed(items))
        if self._digest != self._frozen.digest:
            raise Diverged(f"the state in this process was damaged: it is not what was folded up to LSN {self._lsn}")

    @property
    def _lsn(self) -> int:
        return int(self._frozen.registers[2])

    def _items(self, name: str, cell: Cell, room: int) -> Iterator[bytes]:
        """The packed items of one variable: a single one, or pieces that fill a part each."""
        version, created, value, time_ms, lease_ms, _ = cell
        self._digest = (self._digest + sealed(name, version, created, value, time_ms, lease_ms).digest) % _MOD
        size = len(value)
        whole = pack((name, version, created, time_ms, lease_ms, size, 0, value))
        if len(whole) <= room:
            yield whole
            return
        step = room - _ITEM_ROOM - len(name.encode())
        for at in range(0, size, step):
            yield pack((name, version, created, time_ms, lease_ms, size, at, value[at : at + step]))

    def _note(self, part: bytes) -> bytes:
        self.parts += 1
        self.bytes += len(part)
        self.chain = chained(self.chain, part)
        return part


def _listed(items: list[bytes]) -> bytes:
    """A msgpack array of packed items."""
    return _HEADER.pack(0xDD, len(items)) + b"".join(items)


class Decoder:
    """The parts of a snapshot, read one after the other. ``registers``: () before the first."""

    def __init__(self) -> None:
        self.registers: tuple[Any, ...] = ()
        self.parts = 0
        self.chain = b""
        self._digest = 0
        #: Variable whose value has not come wholly, and its pieces.
        self._open: tuple[Any, ...] = ()
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def lsn(self) -> int:
        """LSN of the machine that was frozen; 0 before the first part."""
        return self.registers[2] if self.registers else 0

    @property
    def digest(self) -> bytes:
        """The digest over all variables so far. Raises ValueError in the middle of one."""
        if self._open:
            raise ValueError("the last value of the parts is cut off")
        return digest_bytes(self._digest)

    def feed(self, part: bytes) -> list[tuple[str, Cell]]:
        """Read the next part; returns the variables that are whole with it. Raises ValueError."""
        self.chain = chained(self.chain, part)
        self.parts += 1
        if not self.registers:
            registers = tuple(unpack_list(part, _REGISTERS, _REGISTERS))
            if not _are_registers(registers):
                raise ValueError("the first part of a snapshot holds no registers")
            self.registers = registers
            return []
        cells = []
        for item in unpack_list(part, len(part), _ITEM_FIELDS):
            cell = self._item(item)
            if cell is not None:
                self._digest = (self._digest + cell.digest) % _MOD
                cells.append((item[0], cell))
        return cells

    def _item(self, item: Any) -> Cell | None:
        """The variable of an item; None before its last piece."""
        if type(item) is not tuple or len(item) != _ITEM_FIELDS or not _numbers(item[1:7]):
            raise ValueError("an item of a snapshot is none")
        name, version, created, time_ms, lease_ms, size, offset, piece = item
        if type(piece) is not bytes or not valid_name(name) or not 0 < created <= version <= self.lsn:
            raise ValueError("an item of a snapshot is no variable")
        if time_ms > _TIME_MS_MAX:
            raise ValueError("a time of a snapshot is none")
        if (self._open or item[:6]) != item[:6] or offset != self._size:
            raise ValueError("pieces of a snapshot do not fit together")
        self._size += len(piece)
        if self._size < size and piece:
            self._open = item[:6]
            self._pieces.append(piece)
            return None
        value = b"".join((*self._pieces, piece)) if self._open else piece
        if len(value) != size:
            raise ValueError("a value of a snapshot has another size than it says")
        self._open, self._pieces, self._size = (), [], 0
        return sealed(name, version, created, value, time_ms, lease_ms)


def _numbers(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= INT_MAX for value in values)


def _bytes(value: Any, *sizes: int) -> bool:
    return type(value) is bytes and len(value) in sizes


def _are_registers(registers: tuple[Any, ...]) -> bool:
    """True if a machine can be thawed from these."""
    if len(registers) != _REGISTERS or not _bytes(registers[0], ID_BYTES) or not _numbers(registers[2:7]):
        return False
    limits, upload, snapshot, previous = registers[1], *registers[7:]
    if not all(type(each) is tuple for each in (limits, upload, snapshot, previous)):
        return False
    if len(limits) != 3 or len(snapshot) not in (0, 4) or len(previous) not in (0, 4):
        return False
    if not _numbers((*limits, *snapshot, *previous)):
        return False
    if not upload:
        return True
    if len(upload) != 8 or not _bytes(upload[0], ID_BYTES) or not _bytes(upload[3], 0, ID_BYTES):
        return False
    return _bytes(upload[5], ID_BYTES) and _numbers((*upload[1:3], upload[4], *upload[6:]))


class Thawing:
    """A machine that grows part by part. Raises ValueError for damaged parts."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self._machine: Machine | None = None

    def feed(self, part: bytes) -> None:
        """Take the next part."""
        cells = self.decoder.feed(part)
        if self._machine is None:
            self._machine = Machine.thaw(self.decoder.registers, {})
        self._machine.restore(cells)

    def machine(self, parts: int, chain: bytes, digest: bytes) -> Machine:
        """The whole machine, if these are its number of parts, their chain, and its digest. Raises ValueError."""
        decoder = self.decoder
        if self._machine is None or (decoder.parts, decoder.chain, decoder.digest) != (parts, chain, digest):
            raise ValueError("the parts of a snapshot are not those that its end tells of")
        return self._machine
