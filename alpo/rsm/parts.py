"""Parts of a snapshot: a frozen machine as pieces of bytes, each of which fits into a payload, and back.

The first part holds the registers, as a msgpack array whose last are those that every machine has, and each further one
an array of items: what they are is the business of each kind.

Laws:

* Reading is total: damaged parts raise ValueError, and never give another machine. Memory follows the bytes received.
* The digest is taken from what the parts hold, not from what the machine says of itself.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from alpo.wire.framing import pack, unpack_list

from .errors import Busy
from .machine import REGISTERS, Snapshotting
from .payloads import INLINE_BYTES_MAX, ROOM_BYTES, chained

M = TypeVar("M", bound=Snapshotting[Any])
I = TypeVar("I")  # noqa: E741  # an item
#: Largest part.
PART_BYTES_MAX = 2 * INLINE_BYTES_MAX
#: Bytes of a payload that holds a part, besides the part.
_PAYLOAD_ROOM = 64
#: Bytes of a list's header.
_LIST_ROOM = 5
_PART_BYTES_LEAST = 4 << 10
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
    ``chain`` and ``digest`` are those of the parts so far."""

    def __init__(self, registers: tuple[Any, ...], bytes_max: int) -> None:
        self._registers = registers
        self._bytes_max = bytes_max
        self.parts = 0
        self.bytes = 0
        self.chain = b""

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """The digest as an `End` carries it, of the items so far."""

    def __iter__(self) -> Iterator[bytes]:
        yield self._note(pack(self._registers))
        items: list[bytes] = []
        room = self._bytes_max - _LIST_ROOM
        left = room
        for item in self._items(room):
            if len(item) > left:
                yield self._note(_listed(items))
                items, left = [], room
            items.append(item)
            left -= len(item)
        if items:
            yield self._note(_listed(items))
        self._ended()

    @abstractmethod
    def _items(self, room: int) -> Iterator[bytes]:
        """All items, packed, each of ``room`` bytes at most; they are taken into the digest."""

    def _ended(self) -> None:
        """Raise `Diverged` if the items are not what the machine took in: its memory was damaged."""

    def empty(self) -> bytes:
        """One more part, behind all others, without an item: it keeps the grant of a snapshot whose writer is slow."""
        return self._note(_listed([]))

    def _note(self, part: bytes) -> bytes:
        self.parts += 1
        self.bytes += len(part)
        self.chain = chained(self.chain, part)
        return part


#: A frozen copy: called with the most bytes of a part, it gives an encoder of itself.
Frozen: TypeAlias = Callable[[int], Encoder]


def _listed(items: list[bytes]) -> bytes:
    """A msgpack array of packed items."""
    return _HEADER.pack(0xDD, len(items)) + b"".join(items)


class Decoder(Generic[I]):
    """The parts of a snapshot, read one after the other. ``registers``: () before the first; ``own``: the number of
    those before the ones that every machine has. ``fields``: the most elements of an item; ``wide``: those of a
    register, if some has more than there are registers."""

    def __init__(self, own: int, fields: int, wide: int = 0) -> None:
        self._number = own + REGISTERS
        self._wide = max(wide, self._number)
        self._fields = fields
        self.registers: tuple[Any, ...] = ()
        self.parts = 0
        self.chain = b""

    @property
    def lsn(self) -> int:
        """LSN of the machine that was frozen; 0 before the first part."""
        return self.registers[-REGISTERS] if self.registers else 0

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """The digest over all items so far. Raises ValueError in the middle of one."""

    def feed(self, part: bytes) -> list[I]:
        """Read the next part; returns what is whole with it. Raises ValueError."""
        self.chain = chained(self.chain, part)
        self.parts += 1
        if not self.registers:
            registers = tuple(unpack_list(part, self._number, self._wide))
            if len(registers) != self._number or not self._are_registers(registers):
                raise ValueError("the first part of a snapshot holds no registers")
            self.registers = registers
            return []
        return [whole for item in unpack_list(part, len(part), self._fields) if (whole := self._item(item)) is not None]

    @abstractmethod
    def _are_registers(self, registers: tuple[Any, ...]) -> bool:
        """True if a machine can be made of these."""

    @abstractmethod
    def _item(self, item: Any) -> I | None:
        """The content that is whole with this item, taken into the digest; None before its last piece. Raises
        ValueError."""


class Thawing(Generic[M]):
    """A machine that grows part by part. Raises ValueError for damaged parts."""

    def __init__(self, decoder: Decoder[Any]) -> None:
        self.decoder = decoder
        self._machine: M | None = None

    def feed(self, part: bytes) -> None:
        """Take the next part."""
        items = self.decoder.feed(part)
        if self._machine is None:
            self._machine = self._made(self.decoder.registers)
        self._add(self._machine, items)

    @abstractmethod
    def _made(self, registers: tuple[Any, ...]) -> M:
        """A machine of these registers, without content."""

    @abstractmethod
    def _add(self, machine: M, items: list[Any]) -> None:
        """Put items of a part into the machine. Raises ValueError."""

    def machine(self, parts: int, chain: bytes, digest: bytes) -> M:
        """The whole machine, if these are its number of parts, their chain, and its digest. Raises ValueError."""
        decoder = self.decoder
        if self._machine is None or (decoder.parts, decoder.chain, decoder.digest) != (parts, chain, digest):
            raise ValueError("the parts of a snapshot are not those that its end tells of")
        return self._machine
