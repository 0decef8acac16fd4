"""`Machine`: a replicated state as the fold of a log's payloads, one after the other; its cells, and the results of
payloads.

Laws:

* `Machine.apply` is pure and total: the same payloads give the same state everywhere, whatever bytes they are. It reads
  no clock, draws nothing at random, and goes through no set.
* Everything that a later `apply` looks at is in `freeze`, so a machine made by `thaw` goes on exactly as the other.
* A version is the LSN of a write. LSNs never come again, so a version that was seen once never means anything else.
* A command does all of its operations or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, NamedTuple, cast

from alpo.rsm.machine import Outcome, Result, Snapshotting
from alpo.rsm.payloads import ID_BYTES, INT_MAX, INT_MIN

from .codec import BLOB_BYTES_MAX, PAYLOADS, ROW_MARK, Command, Do, Found, Limits, Message, More, decode

_DIGEST_MASK = (1 << 8 * ID_BYTES) - 1
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
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


class Frozen(NamedTuple):
    """A machine as of one LSN: ``registers`` (integers, bytes and tuples), its cells by name, and the digest that it
    kept of them, write by write."""

    registers: tuple[Any, ...]
    cells: dict[str, Cell]
    digest: int


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


def digest_bytes(digest: int) -> bytes:
    """A digest as an `End` carries it."""
    return digest.to_bytes(ID_BYTES, "big")


class _Pending(NamedTuple):
    """A command that waits for its `More` payloads: ``pieces``, of ``size`` bytes, came so far."""

    command: Command
    pieces: list[bytes]
    size: int


class Machine(Snapshotting[int]):
    """The fold of a log up to ``lsn``, with the variables in `cells`. Of `touched`: their names."""

    _decode = staticmethod(decode)

    def __init__(self) -> None:
        super().__init__(PAYLOADS)
        self.cells: dict[str, Cell] = {}
        self.limits = Limits()
        #: Sum of the digests of all cells, modulo 2**128.
        self.digest = 0
        self._pending: _Pending | None = None
        #: Heap of (end, name) of leases: each that is running, and some that were renewed or given up since.
        self._due: list[tuple[int, str]] = []
        self._leased: dict[str, Cell] = {}

    @property
    def waits(self) -> bool:
        """True while a command waits for its `More` payloads: `freeze` would leave it out."""
        return self._pending is not None

    def keep_digest(self) -> int:
        return self.digest

    def digest_bytes(self, kept: int) -> bytes:
        return digest_bytes(kept)

    def digest_of(self, digest: bytes) -> int:
        return int.from_bytes(digest, "big")

    def _before(self, message: Message | None) -> None:
        if self._due and self._due[0][0] <= self.time_ms:
            self._lapse()
        if self._pending is not None and message.__class__ is not More:
            self._pending = None
            self.invalid += 1

    def _take(self, message: Message, term: int) -> Result:
        if isinstance(message, Command):
            if message.more:
                self._pending = _Pending(message, [], 0)
                return Result(Outcome.WAITS, self.lsn)
            return self._do(message, b"")
        if isinstance(message, More):
            return self._take_more(message)
        return self._found(message) if isinstance(message, Found) else self._take_snapshot(message)

    def _take_more(self, more: More) -> Result:
        """Gather the values of a command; do it with the last of them."""
        pending = self._pending
        if pending is None:
            return self._invalid()
        pieces = pending.pieces
        size = pending.size + len(more.data)
        if more.index != len(pieces) or size > BLOB_BYTES_MAX:
            self._pending = None
            return self._invalid()
        pieces.append(more.data)
        if len(pieces) < pending.command.more:
            self._pending = pending._replace(size=size)
            return Result(Outcome.WAITS, self.lsn)
        self._pending = None
        references = [op[2] for op in pending.command.ops if op[0] == Do.PUT and type(op[2]) is tuple]
        if any(sum(each) > size for each in references) or sum(length for _, length in references) > size:
            return self._invalid()  # outside of what came; or bytes used twice, which could fill any memory
        return self._do(pending.command, b"".join(pieces))

    # -- commands -------------------------------------------------------------------------------------------

    def _do(self, command: Command, blob: bytes) -> Result:
        """Do all operations of a command, if all its guards hold."""
        lsn, cells = self.lsn, self.cells
        if not self.state_id:
            return Result(Outcome.NOT_FOUNDED, lsn)
        _, guards, ops = command
        for by, name, wanted in guards:
            cell = cells.get(name)
            have = 0 if cell is None else cast(int, cell[by])
            if have != wanted:
                return Result(Outcome.CHANGED, lsn, name, have, wanted)
        if len(ops) > self.limits.ops_max:
            return self._invalid()
        staged: dict[str, Cell | None] = {}
        sums: list[int] = []
        fences = {name for _, name, wanted in guards if wanted}  # only asked, never gone through
        for op in ops:
            if ROW_MARK in op[1] and op[1].partition(ROW_MARK)[0] not in fences:
                return Result(Outcome.UNFENCED, lsn, op[1])
            failed = self._stage(op, blob, staged, sums)
            if failed is not None:
                return Result(failed, lsn, op[1])
        if not self._has_room(staged):
            return Result(Outcome.FULL, lsn)
        for name, cell in staged.items():
            self._set(name, cell)
        return Result(Outcome.DONE, lsn, "", 0, 0, tuple(sums), staged.get(ops[0][1]) if len(ops) == 1 else None)

    def _stage(
        self, op: tuple[Any, ...], blob: bytes, staged: dict[str, Cell | None], sums: list[int]
    ) -> Outcome | None:
        """Note the effect of an operation after those that are ``staged``; returns why it fails, or None."""
        kind, name = op[0], op[1]
        cell = staged[name] if name in staged else self.cells.get(name)
        if kind == Do.PUT:
            value = op[2]
            if type(value) is tuple:
                value = blob[value[0] : sum(value)]
            staged[name] = self._cell(name, cell, value, op[3])
        elif kind == Do.EXPUNGE:
            staged[name] = None
        elif kind == Do.KEEP:
            if cell is not None:
                staged[name] = sealed(name, cell.version, cell.created, cell.value, self.time_ms, op[2])
        else:
            value = b"0" if cell is None else cell.value
            number = int(value) + op[2] if _INTEGER.fullmatch(value) else INT_MAX + 1
            if not INT_MIN <= number <= INT_MAX:
                return Outcome.NO_INTEGER
            sums.append(number)
            staged[name] = self._cell(name, cell, b"%d" % number, 0)
        return None

    def _cell(self, name: str, before: Cell | None, value: bytes, lease_ms: int) -> Cell:
        """The variable as a write of this payload leaves it."""
        return sealed(name, self.lsn, self.lsn if before is None else before.created, value, self.time_ms, lease_ms)

    def _has_room(self, staged: dict[str, Cell | None]) -> bool:
        """True if the state stays within its limits with these cells, or does not grow."""
        grown, more = 0, 0
        for name, cell in staged.items():
            before = self.cells.get(name)
            grown += size_of(name, cell) - size_of(name, before)
            more += (cell is not None) - (before is not None)
        return not (
            (grown > 0 and self.bytes + grown > self.limits.bytes_max)
            or (more > 0 and len(self.cells) + more > self.limits.variables_max)
        )

    def _set(self, name: str, cell: Cell | None) -> None:
        """Put a cell in place of what is there; None: take that away."""
        before = self.cells.get(name)
        if before is not None:
            self.digest -= before.digest
            self.bytes -= size_of(name, before)
            self._leased.pop(name, None)
        if cell is not None:
            self.cells[name] = cell
            self.digest += cell.digest
            self.bytes += size_of(name, cell)
            if cell.lease_ms:
                self._watch_lease(name, cell)
        elif before is not None:
            del self.cells[name]
        self.digest &= _DIGEST_MASK
        if self.touched is not None:
            self.touched.append(name)

    # -- leases ---------------------------------------------------------------------------------------------

    def _watch_lease(self, name: str, cell: Cell) -> None:
        self._leased[name] = cell
        heappush(self._due, (cell.time_ms + cell.lease_ms, name))
        if len(self._due) > 2 * len(self._leased) + 64:  # most belong to leases that were kept or written since
            self._due = [(each.time_ms + each.lease_ms, leased) for leased, each in self._leased.items()]
            heapify(self._due)

    def _lapse(self) -> None:
        """Take away every variable whose lease is over by this payload's time, in the order of (end, name): what else
        is left in the heap must not change it."""
        while self._due and self._due[0][0] <= self.time_ms:
            end_ms, name = heappop(self._due)
            cell = self._leased.get(name)
            if cell is not None and cell.time_ms + cell.lease_ms == end_ms:
                self._set(name, None)

    # -- founding and freezing ------------------------------------------------------------------------------

    def _found(self, message: Found) -> Result:
        if self.state_id:
            return Result(Outcome.FOUNDED_BEFORE, self.lsn)
        self.state_id, self.limits = message
        return Result(Outcome.FOUNDED, self.lsn)

    def freeze(self) -> Frozen:
        """The machine as it stands, for a snapshot: of its cells only the references are copied.

        A command that waits for its values is not in it: the payload that grants a snapshot has ended that.
        """
        return Frozen((self.state_id, tuple(self.limits), *self.registers()), dict(self.cells), self.digest)

    @classmethod
    def thaw(cls, registers: tuple[Any, ...], cells: Mapping[str, Cell]) -> Machine:
        """The machine of these registers and cells. Raises ValueError or TypeError for registers that are none."""
        machine = cls()
        machine.state_id, machine.limits = registers[0], Limits(*registers[1])
        machine.set_registers(registers[2:])
        machine.restore(cells.items())
        return machine

    def restore(self, cells: Iterable[tuple[str, Cell]]) -> None:
        """Put cells of a snapshot, or of a cache, into a machine that was thawed. Raises ValueError for a name that is
        there already."""
        for name, cell in cells:
            if name in self.cells:
                raise ValueError("two variables of one name")
            self._set(name, cell)
