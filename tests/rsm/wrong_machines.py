"""Machines for the tests of `alpo.rsm.check`: a ledger that is right, and one for each way to be wrong.

Commands of the ledger: ``+name amount`` puts money into an account, ``-name amount`` takes it out or is refused.
"""

from __future__ import annotations

import enum
import gc
import os
import random
import threading
import time
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from os import urandom
from pathlib import Path
from typing import Any, ClassVar, Self

from alpo.rsm.contract import At


class Ledger:
    """The right one."""

    def __init__(self) -> None:
        self.accounts: dict[str, Any] = {}

    def apply(self, command: bytes, at: At) -> object:
        name, amount = self.parsed(command)
        if self.accounts.get(name, 0) + amount < 0:
            raise ValueError(f"{name} has too little")
        self.accounts[name] = self.accounts.get(name, 0) + amount
        return self.answer(name, at)

    def answer(self, name: str, at: At) -> object:
        return {"has": self.accounts[name], "at": at.time, "all": sum(self.accounts.values())}

    def parsed(self, command: bytes) -> tuple[str, int]:
        name, amount = command[1:].decode("ascii").split(" ")
        return name, {"+": 1, "-": -1}[command[:1].decode()] * int(amount)

    def items(self) -> Iterable[bytes]:
        for name in sorted(self.accounts):
            yield f"{name} {self.accounts[name]}".encode()

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine = cls()
        for item in items:
            name, amount = item.decode().split(" ")
            machine.accounts[name] = int(amount)
        return machine

    def freeze(self) -> Self:
        copy = type(self)()
        copy.accounts = dict(self.accounts)
        return copy


class SumDigest(Ledger):
    """A right one that offers a digest."""

    def digest(self) -> bytes:
        return repr(sorted(self.accounts.items())).encode()


class Colour(enum.Enum):
    RED = 1


@dataclass(slots=True)
class Row:
    name: str
    rest: object = None


class Refused(Exception):
    """An error of one's own, with more than a text."""

    def __init__(self, name: str, row: Row) -> None:
        super().__init__(name, row)
        self.row = row


@lru_cache
def doubled(amount: int) -> int:
    return 2 * amount


class Odd(Ledger):
    """A right one, with answers of many kinds, a cache outside, and copies that share until they are changed."""

    shared = False

    def answer(self, name: str, at: At) -> object:
        has, row = self.accounts[name], Row(name)
        row.rest = row  # a circle
        if has == 1:
            raise AssertionError("refused before")
        soon = at.time + timedelta(hours=1)
        return [
            row, Colour.RED, Decimal(has) / 3, {name, "x", "y", "z"}, {1.5: float("nan"), (): at}, OrderedDict(a=soon),
            soon.date(), soon - at.time, doubled(has), str.upper, datetime(2026, 1, 1) < soon.replace(tzinfo=None),
            isinstance(soon, datetime), isinstance(soon, date), Path("/"), deque([bytearray(b"1")]), self.apply is None,
        ]

    def apply(self, command: bytes, at: At) -> object:
        name, amount = self.parsed(command)
        if self.accounts.get(name, 0) + amount == 1:
            raise Refused(name, Row(name))
        if self.shared:
            self.accounts, self.shared = dict(self.accounts), False
        return super().apply(command, at)

    def freeze(self) -> Self:
        copy = type(self)()
        copy.accounts, copy.shared, self.shared = self.accounts, True, True
        return copy


class SetIteration(Ledger):
    def answer(self, name: str, at: At) -> object:
        return "".join(set(self.accounts))


class SetInItems(Ledger):
    def items(self) -> Iterable[bytes]:
        return [f"{name} {self.accounts[name]}".encode() for name in frozenset(self.accounts)]


class SetInLoad(Ledger):
    """Wrong in what `load` makes alone."""

    def answer(self, name: str, at: At) -> object:
        return list(self.accounts)

    def items(self) -> Iterable[bytes]:
        return [f"{name} {amount}".encode() for name, amount in self.accounts.items()]

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine = super().load(items)
        machine.accounts = {name: machine.accounts[name] for name in set(machine.accounts)}
        return machine


class Clock(Ledger):
    def answer(self, name: str, at: At) -> object:
        return datetime.now() > at.time.replace(tzinfo=None)


class ClockOfDays(Ledger):
    def answer(self, name: str, at: At) -> object:
        return date.today().isoformat(), time.strftime("%j")


class ClockInLoad(Ledger):
    """Wrong in what a loaded machine answers."""

    loaded_s = 0.0

    def answer(self, name: str, at: At) -> object:
        return self.loaded_s

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine = super().load(items)
        machine.loaded_s = time.monotonic()
        return machine


class FloatSum(Ledger):
    """Sorted pieces, and a sum in the order of the dict."""

    def answer(self, name: str, at: At) -> object:
        return sum(amount / 10 for amount in self.accounts.values())


class SharedInFreeze(Ledger):
    def freeze(self) -> Self:
        copy = type(self)()
        copy.accounts = self.accounts
        return copy


class CopyWritesLate(Ledger):
    """A copy that copies before it writes; the original does not."""

    shared = False

    def apply(self, command: bytes, at: At) -> object:
        if self.shared:
            self.accounts, self.shared = dict(self.accounts), False
        return super().apply(command, at)

    def freeze(self) -> Self:
        copy = type(self)()
        copy.accounts, copy.shared = self.accounts, True
        return copy


class OriginalWritesLate(CopyWritesLate):
    """Wrong the other way round."""

    def freeze(self) -> Self:
        copy = type(self)()
        copy.accounts, self.shared = self.accounts, True
        return copy


class SharedWithin(Ledger):
    """A list that is shared with copies, and seldom written."""

    def __init__(self) -> None:
        super().__init__()
        self.thirteens: list[str] = []

    def answer(self, name: str, at: At) -> object:
        if self.accounts[name] == 13:
            self.thirteens.append(name)
        return None

    def items(self) -> Iterable[bytes]:
        return [" ".join(self.thirteens).encode(), *super().items()]

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        first, *accounts = items
        machine = super().load(accounts)
        machine.thirteens = first.decode().split()
        return machine

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.thirteens = self.thirteens
        return copy


class LendsToCopies(Ledger):
    """A copy gets a dict of its own when the original writes, which who is reading the pieces then does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Self] = []
        self.borrows = False

    def apply(self, command: bytes, at: At) -> object:
        machines: list[LendsToCopies] = [self, *self.copies]
        for machine in machines:
            if machine.borrows:
                machine.accounts, machine.borrows = dict(machine.accounts), False
        self.copies.clear()
        return super().apply(command, at)

    def items(self) -> Iterable[bytes]:
        for name, amount in self.accounts.items():
            yield f"{name} {amount}".encode()

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.accounts, copy.borrows = self.accounts, True
        self.copies.append(copy)
        return copy


class LoadTires(Ledger):
    """Wrong long after it was loaded."""

    left = -1

    def answer(self, name: str, at: At) -> object:
        self.left -= 1
        return self.left == 0

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine = super().load(items)
        machine.left = 30
        return machine

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.left = self.left
        return copy


class Garbage(Ledger):
    """Wrong by when garbage is collected."""

    last: Any = None

    def answer(self, name: str, at: At) -> object:
        gc.set_threshold(20)  # soon, if it is left to Python
        before, row = self.last, Held()
        row.held = row
        self.last = weakref.ref(row)
        return before is not None and before() is None


class Held:
    held: Any = None


class Of2030(Ledger):
    def answer(self, name: str, at: At) -> object:
        if at.time.year == 2030 and at.version == 3:
            raise SystemExit
        return None


class Chance(Ledger):
    def answer(self, name: str, at: At) -> object:
        return random.randrange(1000)


class Uuid(Ledger):
    def answer(self, name: str, at: At) -> object:
        return uuid.uuid4()


class ChanceByName(Ledger):
    def answer(self, name: str, at: At) -> object:
        return urandom(8)


class Untamed(Ledger):
    """Wrong by something that nothing stands in for."""

    def answer(self, name: str, at: At) -> object:
        return os.getpid(), id(object())


class Place(Ledger):
    def answer(self, name: str, at: At) -> object:
        return str(Path.cwd())


class Zone(Ledger):
    def answer(self, name: str, at: At) -> object:
        return at.time.astimezone().hour


class ChangesThenRaises(Ledger):
    def apply(self, command: bytes, at: At) -> object:
        name, amount = self.parsed(command)
        self.accounts[name] = self.accounts.get(name, 0) + amount
        if self.accounts[name] < 0:
            raise ValueError(f"{name} has too little")
        return self.answer(name, at)


class LoadForgets(Ledger):
    """Accounts with nothing in them are not loaded."""

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return super().load(item for item in items if not item.endswith(b" 0"))


class ChangesAndForgets(ChangesThenRaises, LoadForgets):
    """Wrong in two ways: with fewer commands, only the other one is left."""


class LoadWantsAList(Ledger):
    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        assert len(items) < 100  # type: ignore[arg-type]
        return super().load(items)


class LastAnswered(Ledger):
    """Wrong in what is in no piece."""

    last = ""

    def answer(self, name: str, at: At) -> object:
        before, self.last = self.last, name
        return before == name

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.last = self.last
        return copy


class FreezeForgets(LastAnswered):
    """Wrong in `freeze` alone: the last name is in a piece."""

    def items(self) -> Iterable[bytes]:
        return [*super().items(), f"{self.last} last".encode()]

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        *accounts, last = items
        machine = super().load(accounts)
        machine.last = last.decode().split(" ")[0]
        return machine

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.last = "?" if self.last == "b" else self.last
        return copy


class SharedByAll(Ledger):
    seen: ClassVar[list[str]] = []

    def answer(self, name: str, at: At) -> object:
        self.seen.append(name)
        return len(self.seen)


class SharedWhileBoth(Ledger):
    """Machines that do each other no harm unless they live at once."""

    current: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        type(self).current = ""

    def answer(self, name: str, at: At) -> object:
        before, type(self).current = self.current, name
        return before


class DictOrder(Ledger):
    def answer(self, name: str, at: At) -> object:
        return next(iter(self.accounts))


class OrderInItems(Ledger):
    """Pieces in the order of the dict, which `load` turns round."""

    def items(self) -> Iterable[bytes]:
        return [f"{name} {amount}".encode() for name, amount in self.accounts.items()]

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return super().load(reversed(list(items)))


class UsesUp(Ledger):
    def items(self) -> Iterable[bytes]:
        pieces = sorted(self.accounts.items())
        if len(pieces) > 1:
            self.accounts.popitem()
        return [f"{name} {amount}".encode() for name, amount in pieces]


class OwnDict(Ledger):
    def answer(self, name: str, at: At) -> object:
        return self.accounts


class DigestOfMore(Ledger):
    """A digest of commands, not of content."""

    count = 0

    def answer(self, name: str, at: At) -> object:
        self.count += 1
        return None

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.count = self.count
        return copy

    def digest(self) -> bytes:
        return self.count.to_bytes(8, "big")


class DigestOfSet(Ledger):
    def digest(self) -> bytes:
        return "".join({*self.accounts}).encode()


class BlindDigest(Ledger):
    def digest(self) -> bytes:
        return len(self.accounts).to_bytes(8, "big")


class Exits(Ledger):
    def answer(self, name: str, at: At) -> object:
        if self.accounts[name] == 7:
            os.write(2, b"I have had enough")
            os._exit(3)
        return None


class Recursion(Ledger):
    def answer(self, name: str, at: At) -> object:
        return self.answer(name, at) if self.accounts[name] == 7 else None


class SystemExits(Ledger):
    def answer(self, name: str, at: At) -> object:
        raise SystemExit(name)


class Coroutine(Ledger):
    async def apply(self, command: bytes, at: At) -> object:
        return None


class ItemsRaise(Ledger):
    def items(self) -> Iterable[bytes]:
        if "b" in self.accounts:
            raise KeyError("b")
        return super().items()


class TextItems(Ledger):
    def items(self) -> Iterable[bytes]:
        return [str(self.accounts)]  # type: ignore[list-item]


class Forever(Ledger):
    def answer(self, name: str, at: At) -> object:
        if self.accounts[name] == 7:
            threading.Event().wait()
        return None
