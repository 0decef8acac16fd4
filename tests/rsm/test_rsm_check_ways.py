"""Each way in which `alpo.rsm.check` folds finds what no other way does; what it puts between is of every kind; and
every clock and chance is stood in for. Only the last test begins a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, Self

import pytest
from wrong_machines import LastAnswered, Ledger, LendsToCopies, LoadForgets

from alpo.rsm.checking.call import EXTRA_MAX, Case, _times_us, disturbed
from alpo.rsm.checking.ways import OTHERS, Fault, fold_in_all_ways
from alpo.rsm.checking.world import World
from alpo.rsm.contract import At

COMMANDS = [b"+c 3", b"+b 2", b"-b 2", b"+b 4", b"+d 1", b"+a 1", b"+c 1", b"-a 1"]


class Still(World):
    """The world as it is, and no chance of this process touched. ``begun``: ways that have begun."""

    begun = 0

    def begin(self) -> None:
        self.begun += 1


def folded(
    machine: type[Any], commands: list[bytes], limit_s: float = 60, world: World | None = None
) -> dict[str, Any]:
    request = {
        "commands": commands, "times_us": _times_us(Case(commands, None)), "version": 1, "limit_s": limit_s,
        "ways": [*OTHERS],
    }
    return fold_in_all_ways(machine, request, world or Still(), lambda *place: None)


def fault_of(machine: type[Any], commands: list[bytes]) -> Fault | None:
    told = folded(machine, commands)
    assert told["complete"]
    return told["fault"] and Fault(*told["fault"])


class Stale(Ledger):
    """Pieces that are kept, and not made anew when an account has changed."""

    pieces: Iterable[bytes] = ()

    def items(self) -> Iterable[bytes]:
        if len([*self.pieces]) != len(self.accounts):
            self.pieces = [*super().items()]
        return self.pieces


class CountsReads(Ledger):
    """Wrong in what is answered once pieces were read."""

    reads = 0

    def answer(self, name: str, at: At) -> object:
        return self.reads

    def items(self) -> Iterable[bytes]:
        self.reads += 1
        return super().items()


class Numbered(Ledger):
    """A right one whose accounts have numbers, which pieces alone tell; one with nothing in it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}
        self.made = 0

    def answer(self, name: str, at: At) -> object:
        if name not in self.numbers:
            self.numbers[name] = self.next_number()
        if not self.accounts[name]:
            del self.accounts[name], self.numbers[name]
        return None

    def next_number(self) -> int:
        self.made += 1
        return self.made

    def items(self) -> Iterable[bytes]:
        yield from (f"{name} {amount} {self.numbers[name]}".encode() for name, amount in sorted(self.accounts.items()))
        yield b"%d" % self.made

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine, (*accounts, made) = cls(), items
        for name, amount, number in (account.decode().split() for account in accounts):
            machine.accounts[name], machine.numbers[name] = int(amount), int(number)
        machine.made = int(made)
        return machine

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.numbers, copy.made = dict(self.numbers), self.made
        return copy


class NumberedByAll(Numbered):
    """Wrong by what an earlier machine has counted."""

    all_made: ClassVar[list[None]] = []

    def next_number(self) -> int:
        self.all_made.append(None)
        return len(self.all_made)


class NumberedWhileBoth(Numbered):
    """Wrong by what another machine counts meanwhile."""

    last: ClassVar[list[int]] = [0]

    def __init__(self) -> None:
        super().__init__()
        self.last[0] = 0

    def next_number(self) -> int:
        self.last[0] += 1
        return self.last[0]


class NumberedAnew(Numbered):
    """Wrong in the number of what is made after `load`, if something was closed before."""

    def items(self) -> Iterable[bytes]:
        *accounts, _ = super().items()
        return accounts

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        accounts = [*items]
        return super().load([*accounts, b"%d" % len(accounts)])


class NamesOfAll(Ledger):
    """Wrong by the names that another machine has seen, if they are others."""

    seen: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.seen.clear()

    def answer(self, name: str, at: At) -> object:
        self.seen.add(name)
        return len(self.seen)


class Known(Ledger):
    """A right one that counts accounts as they come."""

    known = 0

    def apply(self, command: bytes, at: At) -> object:
        before = len(self.accounts)
        super().apply(command, at)
        self.known += len(self.accounts) - before
        return self.known

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        machine = super().load(items)
        machine.known = len(machine.accounts)
        return machine

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.known = self.known
        return copy


class FreezeForgetsAnswers(Known):
    """Wrong in what a copy answers; `load` counts anew."""

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.known = 0
        return copy


class FreezesPieces(Ledger):
    """Wrong in the pieces of a copy that has folded on."""

    pieces: list[bytes] | None = None

    def items(self) -> Iterable[bytes]:
        return super().items() if self.pieces is None else self.pieces

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.pieces = [*self.items()]
        return copy


class FreezeTakes(LastAnswered):
    """Wrong in what the original answers once it was frozen."""

    def freeze(self) -> Self:
        copy = super().freeze()
        self.last = ""
        return copy


class LendsWhileRead(LendsToCopies):
    """Wrong in the pieces of a copy that are read after the original went on."""

    def items(self) -> Iterable[bytes]:
        accounts = self.accounts
        for name in [*accounts]:
            yield f"{name} {accounts[name]}".encode()


class Since(Ledger):
    """Wrong in the time since the last command, which no piece tells."""

    last: datetime | None = None

    def answer(self, name: str, at: At) -> object:
        before, self.last = self.last or at.time, at.time
        return at.time - before

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.last = self.last
        return copy


class ByLsn(Ledger):
    """Wrong where LSNs have gaps: others' payloads, and those of snapshots, take some."""

    count: int | None = None

    def answer(self, name: str, at: At) -> object:
        self.count = at.lsn if self.count is None else self.count + 1
        return self.count

    def freeze(self) -> Self:
        copy = super().freeze()
        copy.count = self.count
        return copy


class ByTerm(ByLsn):
    """Wrong where another leader has come."""

    def answer(self, name: str, at: At) -> object:
        self.count = at.term if self.count is None else self.count
        return self.count


#: Machine, commands, and the fault that alone is found first: at which command, in which way, in what.
FOUND: list[tuple[type[Ledger], list[bytes], tuple[int, str, str]]] = [
    (Stale, COMMANDS, (7, "looked", "items")),
    (CountsReads, COMMANDS, (0, "looked", "answer")),
    (NumberedByAll, COMMANDS, (7, "again", "items")),
    (NumberedWhileBoth, [b"+a 1", b"+b 1"], (0, "beside", "items")),
    (NamesOfAll, [b"+a 1", b"+b 1"], (0, "beside", "answer")),
    (NumberedAnew, [b"+a 1", b"+b 1", b"-a 1", b"+c 1"], (3, "loaded", "items")),
    (FreezeForgetsAnswers, COMMANDS, (1, "written", "answer")),
    (FreezesPieces, COMMANDS, (1, "written", "items")),
    (FreezeTakes, [b"+a 1", b"+a 1"], (1, "written", "answer")),
    (LendsWhileRead, [b"+a 1", b"+b 1", b"+b 1"], (2, "frozen", "items")),
    (LoadForgets, [b"+a 0"] * 150 + [b"+a 1"] * 150, (5, "loaded", "items")),
    (Since, COMMANDS, (1, "loaded", "answer")),
    (ByLsn, COMMANDS, (5, "loaded", "answer")),
    (ByTerm, [b"+a 1"] * 10, (9, "loaded", "answer")),
]


@pytest.mark.parametrize(("machine", "commands", "fault"), FOUND, ids=[machine.__name__ for machine, _, _ in FOUND])
def test_a_way_finds_what_it_is_for(
    machine: type[Ledger], commands: list[bytes], fault: tuple[int, str, str]
) -> None:
    found = fault_of(machine, commands)
    assert found is not None and found[:3] == fault, found


@pytest.mark.parametrize("machine", [Ledger, Numbered, Known])
def test_a_right_one_passes_all_ways(machine: type[Ledger]) -> None:
    assert fault_of(machine, COMMANDS) is None


def test_clocks_and_chance_are_the_same_in_each_way() -> None:
    world = Still()
    assert folded(Ledger, COMMANDS, world=world)["complete"] and world.begun == 3 + len(OTHERS)


def test_the_limit_ends_what_has_no_commands() -> None:
    assert not folded(Ledger, [], limit_s=-1)["complete"]


# -- commands that are put between ----------------------------------------------------------------------------


def kind_of(extra: bytes) -> str:
    """The way in which a command was made of one of `COMMANDS`."""
    for command in COMMANDS:
        if extra == command:
            return "again"
        if command.startswith(extra) and 0 < len(extra) < len(command) - 1:
            return "cut"
        if len(extra) == len(command) and sum(a != b for a, b in zip(extra, command, strict=True)) == 1:
            return "changed"
        if any(extra == command[:at] + command[at + 1 :] for at in range(len(command))):
            return "without a byte"
    return "random"


def test_every_kind_is_put_everywhere() -> None:
    kinds, gaps = set(), set()
    for seed in range(40):
        case = disturbed(Case(COMMANDS, [*range(8)]), seed)
        assert case.times_us == sorted(case.times_us or ()) and len(case.commands) == 8 + 12
        left = [*COMMANDS]
        for command, time_us in zip(case.commands, case.times_us, strict=True):
            if left and command == left[0] and time_us == 8 - len(left):
                left.pop(0)
                continue
            kinds.add(kind_of(command))
            gaps.add(len(left))
            assert 8 - len(left) - time_us in (0, 1), "neither the next command's time nor, after one like it, the last"
        assert not left
    assert kinds == {"again", "cut", "changed", "without a byte", "random"}
    assert gaps == {*range(9)}
    case = Case(COMMANDS * 100, None)
    assert disturbed(case, 1) == disturbed(case, 1) != disturbed(case, 2)
    assert len(disturbed(case, 1).commands) == 800 + EXTRA_MAX


# -- the world ------------------------------------------------------------------------------------------------

WORLD = """
import time as real_time
real_s = real_time.time()
from alpo.rsm.checking.world import install, world
install()
import os, random, secrets, time, uuid
from datetime import date, datetime, timezone
from time import monotonic, perf_counter_ns
import msgpack
days = lambda s: round((s - real_s) / 86400)
plain = "time", "monotonic", "perf_counter", "process_time", "thread_time"
clocks = {name: lambda name=name: days(getattr(time, name)()) for name in plain}
clocks |= {f"{name}_ns": lambda name=name: days(getattr(time, f"{name}_ns")() / 1e9) for name in plain}
clocks |= {
    "clock_gettime": lambda: days(time.clock_gettime(time.CLOCK_REALTIME)),
    "clock_gettime_ns": lambda: days(time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9),
    "by name": lambda: days(monotonic()), "by name, ns": lambda: days(perf_counter_ns() / 1e9),
    "gmtime": lambda: days(time.mktime(time.gmtime())), "localtime": lambda: days(time.mktime(time.localtime())),
    "ctime": lambda: days(time.mktime(time.strptime(time.ctime()))),
    "asctime": lambda: days(time.mktime(time.strptime(time.asctime()))),
    "strftime": lambda: days(time.mktime(time.strptime(time.strftime("%Y %j"), "%Y %j"))),
    "now": lambda: days(datetime.now().timestamp()), "today": lambda: days(datetime.today().timestamp()),
    "now in a zone": lambda: days(datetime.now(timezone.utc).timestamp()),
    "utcnow": lambda: days(datetime.utcnow().timestamp()),
    "date": lambda: days(time.mktime(date.today().timetuple())),
}
chances = {
    "random": random.random, "urandom": lambda: os.urandom(8), "secrets": lambda: secrets.token_bytes(8),
    "uuid4": uuid.uuid4, "SystemRandom": random.SystemRandom().random,
}
seen = []
for setting in ((2, 1, 0, 0), (2, 1, 1, 0), (1, 2, 0, 0)):
    world.enter(*setting)
    told = {name: clock() for name, clock in clocks.items()}
    first = time.time()
    assert time.time() > first, "a clock that stands"
    zone = datetime.now().astimezone().utcoffset()
    seen.append((told, {name: chance() for name, chance in chances.items()}, os.getcwd(), zone))
    assert isinstance(datetime.now().date(), date) and isinstance(datetime.now(), date) and issubclass(datetime, date)
    assert not isinstance(date.today(), datetime)
    made_in_c = msgpack.unpackb(msgpack.packb(msgpack.Timestamp(1)), timestamp=3)
    assert isinstance(made_in_c, datetime) and isinstance(made_in_c, date)
    world.leave()
one, elsewhere, other = seen
wrong = {name: (one[0][name], other[0][name]) for name in clocks if not one[0][name] < -5000 < 100 < other[0][name]}
assert not wrong, wrong
assert one[1] == elsewhere[1] and not {*one[1].values()} & {*other[1].values()}
assert one[2] == other[2] != elsewhere[2] == "/" and one[3] != elsewhere[3]
assert all(clocks[name]() in (-1, 0, 1) for name in ("time", "now", "date", "ctime"))
"""


def test_every_clock_and_chance_is_stood_in_for() -> None:
    done = subprocess.run([sys.executable, "-c", WORLD], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
