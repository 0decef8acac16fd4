"""Parts of a snapshot of a state: a frozen machine as pieces of bytes, each of which fits into a payload, and back.

The first part holds the registers, and each further one variables: [name, version, created, time in ms, lease in ms,
size of the value, offset, bytes], where a great value comes in pieces, one after the other (docs/wire-format.md).

Laws:

* Reading is total: damaged parts raise ValueError, and never give another state. Memory follows the bytes received.
* The digest is taken from what the parts hold. Where the machine kept another one, write by write, its memory was
  damaged: nothing that looks whole is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from alpo.rsm import parts
from alpo.rsm.errors import Diverged
from alpo.rsm.machine import are_numbers, are_registers, is_bytes
from alpo.rsm.payloads import ID_BYTES
from alpo.wire.framing import pack

from .codec import valid_name
from .machine import Cell, Frozen, Machine, digest_bytes, sealed

#: Most bytes of a variable without its name and piece of value.
_ITEM_ROOM = 64
#: Latest time of a variable: the end of the year 9999.
_TIME_MS_MAX = 253_402_300_799_999
_OWN_REGISTERS, _ITEM_FIELDS = 2, 8
_MOD = 1 << 8 * ID_BYTES


class Encoder(parts.Encoder):
    """An iterator over the parts of a frozen machine, each of ``bytes_max`` bytes at most. Behind the last it raises
    `Diverged` if they are not what the machine took in."""

    def __init__(self, frozen: Frozen, bytes_max: int) -> None:
        super().__init__(frozen.registers, bytes_max)
        self._frozen = frozen
        self._digest = 0

    @property
    def digest(self) -> bytes:
        return digest_bytes(self._digest)

    def _items(self, room: int) -> Iterator[bytes]:
        """The packed items of all variables: each a single one, or pieces that fill a part each."""
        for name, (version, created, value, time_ms, lease_ms, _) in self._frozen.cells.items():
            self._digest = (self._digest + sealed(name, version, created, value, time_ms, lease_ms).digest) % _MOD
            size = len(value)
            whole = pack((name, version, created, time_ms, lease_ms, size, 0, value))
            if len(whole) <= room:
                yield whole
                continue
            step = room - _ITEM_ROOM - len(name.encode())
            for at in range(0, size, step):
                yield pack((name, version, created, time_ms, lease_ms, size, at, value[at : at + step]))

    def _ended(self) -> None:
        if self._digest != self._frozen.digest:
            lsn = int(self._frozen.registers[2])
            raise Diverged(f"the state in this process was damaged: it is not what was folded up to LSN {lsn}")


def freeze(machine: Machine) -> parts.Frozen:
    """The machine as it stands: makes the encoder of that copy."""
    return partial(Encoder, machine.freeze())


class Decoder(parts.Decoder[tuple[str, Cell]]):
    """The parts of a snapshot, read one after the other: each gives the variables that are whole with it."""

    def __init__(self) -> None:
        super().__init__(_OWN_REGISTERS, _ITEM_FIELDS)
        self._digest = 0
        #: Variable whose value has not come wholly, and its pieces.
        self._open: tuple[Any, ...] = ()
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def digest(self) -> bytes:
        if self._open:
            raise ValueError("the last value of the parts is cut off")
        return digest_bytes(self._digest)

    def _are_registers(self, registers: tuple[Any, ...]) -> bool:
        state_id, limits = registers[:_OWN_REGISTERS]
        if not is_bytes(state_id, ID_BYTES) or type(limits) is not tuple or len(limits) != 3:
            return False
        return are_numbers(limits) and are_registers(registers[_OWN_REGISTERS:])

    def _item(self, item: Any) -> tuple[str, Cell] | None:
        if type(item) is not tuple or len(item) != _ITEM_FIELDS or not are_numbers(item[1:7]):
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
        cell = sealed(name, version, created, value, time_ms, lease_ms)
        self._digest = (self._digest + cell.digest) % _MOD
        return name, cell


class Thawing(parts.Thawing[Machine]):
    """A machine that grows part by part. Raises ValueError for damaged parts."""

    def __init__(self) -> None:
        super().__init__(Decoder())

    def _made(self, registers: tuple[Any, ...]) -> Machine:
        return Machine.thaw(registers, {})

    def _add(self, machine: Machine, items: list[Any]) -> None:
        machine.restore(items)
