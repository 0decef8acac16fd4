"""The check of a user's machine: `check` folds commands in many ways and processes, and tells the first difference.

What differs is looked for first, then made small (fewest commands, shortest bytes), then explained: the same commands
are folded by pairs of processes between which a single thing differs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from ..contract import Machine
from . import reasons
from .children import CALL_S, START_S, Children, Died, Target, children_for, close_children
from .reasons import Difference, Setting
from .ways import CALLS, OTHERS, WAYS, Fault
from .world import world

_METHODS = ("apply", "items", "load", "freeze")
_FIRST_US = 1_767_225_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - as in the processes
#: Commands put between those given, at most.
EXTRA_MAX = 200
_lock = threading.Lock()


class Checked(NamedTuple):
    """The work of `check`. ``folds``: machines that folded, in all ways and processes; ``applied``: calls of ``apply``;
    ``points``: points at which a machine was saved, loaded and frozen; ``complete``: False if ``limit_s`` ended it."""

    commands: int
    put_between: int
    processes: int
    folds: int
    applied: int
    points: int
    complete: bool


class Nondeterministic(AssertionError):
    """Two ways of folding the same commands differ, or ``apply`` did not survive one.

    ``commands``: the fewest and shortest found with which this happens, and ``times`` theirs if times were given.
    ``index``, ``command``: where it was found first. ``cause``: the likely reason, in words.
    """

    def __init__(
        self, text: str, commands: Sequence[bytes] = (), times: list[datetime] | None = None, index: int = -1,
        command: bytes | None = None, cause: str = "",
    ) -> None:
        super().__init__(text)
        self.commands, self.times = list(commands), times
        self.index, self.command, self.cause = index, command, cause


class Case(NamedTuple):
    """Commands, and their times if they have any of their own, in microseconds since 1970."""

    commands: list[bytes]
    times_us: list[int] | None

    def only(self, numbers: Iterable[int]) -> Case:
        """The case of these commands alone."""
        numbers = list(numbers)
        times = None if self.times_us is None else [self.times_us[number] for number in numbers]
        return Case([self.commands[number] for number in numbers], times)

    def with_command(self, number: int, command: bytes) -> Case:
        """The case with another command in the place of one."""
        commands = list(self.commands)
        commands[number] = command
        return Case(commands, self.times_us)


def check(
    machine: type[Machine], commands: Iterable[bytes], *, times: Iterable[datetime] | None = None, version: int = 1,
    seed: int = 0, processes: int = 4, limit_s: float = 10.0, shrink_s: float = 5.0,
) -> Checked:
    """Fold the commands, and cut, changed, repeated and random ones between them, in several processes and ways, and
    compare every answer, the digests and the pieces.

    ``machine``: a class that other processes can import. ``times``: the log's clock at each command, aware datetimes.
    ``seed``: another one puts other commands between. ``processes``: each has its own hash seed, clock, chance, working
    directory and time zone. ``limit_s`` bounds the folds (not the start of the processes), ``shrink_s`` the search for
    fewer commands. The processes are kept for the next call.

    Raises `Nondeterministic` for the first difference; TypeError for a class that cannot be imported or is no machine,
    for commands that are not bytes; ValueError for naive or too few times; ImportError if its module fails elsewhere.
    """
    if world.inside:
        raise RuntimeError("check is called by a module that it imports: call it below `if __name__ == '__main__':`")
    case = _case(commands, times)
    lacking = [name for name in _METHODS if not callable(getattr(machine, name, None))]
    if lacking:
        raise TypeError(f"{machine.__qualname__} is no machine: it has no {', '.join(lacking)}")
    if processes < 2:
        raise ValueError(f"processes is {processes}; two at least are needed to compare")
    target = Target.of(machine)
    with _lock:
        children = children_for(target, [*range(processes - 1), 1_000_003])
        try:
            return _Check(target, children, version, limit_s, shrink_s).run(case, seed)
        except Nondeterministic:
            raise
        except BaseException:
            close_children()
            raise


def _case(commands: Iterable[bytes], times: Iterable[datetime] | None) -> Case:
    taken = list(commands)
    wrong = next((command for command in taken if not isinstance(command, bytes)), None)
    if wrong is not None:
        raise TypeError(f"commands are bytes, not {type(wrong).__name__}")
    if times is None:
        return Case(taken, None)
    moments = list(times)
    if len(moments) < len(taken):
        raise ValueError(f"{len(taken)} commands and {len(moments)} times")
    if any(moment.tzinfo is None for moment in moments):
        raise ValueError("a time without a time zone")
    return Case(taken, [(moment - _EPOCH) // timedelta(microseconds=1) for moment in moments[: len(taken)]])


def disturbed(case: Case, seed: int) -> Case:
    """The commands with cut, changed, repeated and random ones put between."""
    chance, count = random.Random(seed), len(case.commands)
    gaps: dict[int, list[bytes]] = {}
    for _ in range(min(count + 4, EXTRA_MAX)):
        gap = chance.randrange(count + 1)
        gaps.setdefault(gap, []).append(_extra(case.commands[max(0, gap - 3) : gap + 2], chance))
    commands: list[bytes] = []
    numbers: list[int] = []
    for number in range(count + 1):
        more = [*gaps.get(number, ()), *case.commands[number : number + 1]]
        commands += more
        numbers += [min(number, count - 1)] * len(more)
    times = None if case.times_us is None or not count else [case.times_us[number] for number in numbers]
    return Case(commands, times)


def _extra(near: Sequence[bytes], chance: random.Random) -> bytes:
    """A command made of one nearby, or of nothing."""
    kind = chance.randrange(6)
    if not near or kind == 0:
        return chance.randbytes(chance.choice((0, 1, 2, 5, 20)))
    command = bytearray(chance.choice(near))
    if kind == 1:
        return bytes(command)
    if kind == 2 or not command:
        return bytes(command[: chance.randrange(len(command) + 1)])
    place = chance.randrange(len(command))
    if kind == 3:
        command[place] = chance.randrange(256)
    elif kind == 4:
        del command[place]
    else:
        command[place] = (command[place] + chance.choice((-1, 1))) % 256
    return bytes(command)


Differs = Callable[[Case], bool]
Shrink = Callable[[Case, int, Differs], Case]


class _Check:
    """One call of `check`."""

    def __init__(self, target: Target, children: Children, version: int, limit_s: float, shrink_s: float) -> None:
        self.target, self.children, self.version = target, children, version
        self.limit_s, self.shrink_s = limit_s, shrink_s
        self.until_s = 0.0
        self.settings = [
            Setting(seed, *((number,) * 4)) for number, seed in enumerate(children.hash_seeds)
        ]
        self.folds = self.applied = self.points = 0
        self.complete = True

    def run(self, case: Case, seed: int) -> Checked:
        """Fold the commands, then two lists with others between. Raises `Nondeterministic`."""
        self.imported()
        self.until_s = time.monotonic() + self.limit_s
        put_between = 0
        for number in range(3):
            now = disturbed(case, 3 * seed + number) if number else case
            found = self.difference(now, self.settings, tuple(OTHERS))
            if found is not None:
                raise self.explained(now, found, number > 0)
            put_between += len(now.commands) - len(case.commands)
            if not self.complete:
                break
        return Checked(
            len(case.commands), put_between, len(self.settings), self.folds, self.applied, self.points, self.complete
        )

    def imported(self) -> None:
        """Have all processes import the class. Raises ImportError."""
        request = {"target": self.target._asdict(), "commands": None}
        for answer in self.children.ask([(setting.hash_seed, request) for setting in self.settings], START_S):
            if isinstance(answer, Died):
                raise ImportError(f"{self.target.module} cannot be imported again: {answer.how}\n{answer.said}")
            self.raise_unimportable(answer)

    def raise_unimportable(self, answer: dict[str, Any]) -> None:
        """Raise ImportError if that is the answer."""
        if "unimportable" in answer:
            raise ImportError(f"{self.target.module} cannot be imported again:\n{answer['unimportable']}")

    def difference(self, case: Case, settings: Sequence[Setting], ways: Sequence[str]) -> Difference | None:
        """The first difference between or within the processes of the settings; None: there is none."""
        told = list(zip(settings, self.ask([(setting, case, ways) for setting in settings]), strict=True))
        folded = [(setting, answer) for setting, answer in told if not isinstance(answer, Died)]
        found = [
            Difference(folded[0][0], setting, fault) for setting, answer in folded[1:]
            if (fault := reasons.between(folded[0][1], answer)) is not None
        ]
        for setting, answer in told:
            if isinstance(answer, Died):
                found.append(Difference(setting, setting, died_at(answer), answer))
            elif answer["fault"] is not None:
                found.append(Difference(setting, setting, Fault(*answer["fault"])))
        return min(found, key=lambda each: each.fault.number, default=None)

    def ask(
        self, asked: Sequence[tuple[Setting, Case, Sequence[str]]], limit_s: float | None = None,
        children: Children | None = None,
    ) -> list[dict[str, Any] | Died]:
        """The answers of the processes with the settings' hash seeds. Raises ImportError."""
        left_s = max(0.05, self.until_s - time.monotonic()) if limit_s is None else limit_s
        requests = [
            (setting.hash_seed, {
                "target": self.target._asdict(), "commands": case.commands, "ways": list(ways), "limit_s": left_s,
                "times_us": _times_us(case), "version": self.version, "world": list(setting[1:]),
            }) for setting, case, ways in asked
        ]
        answers = (children or self.children).ask(requests, left_s + CALL_S)
        for answer in answers:
            if isinstance(answer, Died):
                continue
            self.raise_unimportable(answer)
            self.folds += answer["folds"]
            self.applied += answer["applied"]
            self.points += answer["points"]
            self.complete &= answer["complete"]
        return answers

    def explained(self, case: Case, found: Difference, between: bool) -> Nondeterministic:
        """The error for a difference, with its commands made few and short."""
        index = found.fault.number
        command = case.commands[index] if index >= 0 else None
        few, known = self.shrunk(case, found, fewest_until)
        cause = self.cause(few, known)
        small, known = self.shrunk(few, known, shortest)
        whole = f"{index + 1} of {len(case.commands)}{', with others put between' if between else ''}"
        text = reasons.text(self.target.qualname, whole, command, known, small.commands, cause)
        times = None if small.times_us is None else [_EPOCH + timedelta(microseconds=us) for us in small.times_us]
        return Nondeterministic(text, small.commands, times, index, command, cause)

    def shrunk(self, case: Case, found: Difference, shrink: Shrink) -> tuple[Case, Difference]:
        """Fewer or shorter commands that differ in the same way, and how they do."""
        ways, settings, last = ways_of(found), [found.one] if found.within else self.settings, found
        self.until_s = until_s = time.monotonic() + self.shrink_s / 2

        def differs(smaller: Case) -> bool:
            now = self.difference(smaller, settings, ways) if time.monotonic() < until_s else None
            return now is not None and now.kind == found.kind

        if found.died is not None and found.died.late:
            return case.only(range(found.fault.number + 1)), found
        small = shrink(case, found.fault.number, differs)
        self.until_s = time.monotonic() + self.shrink_s
        now = self.difference(small, settings, ways)
        if now is not None and now.kind == found.kind:
            last = now
        return small, last

    def cause(self, case: Case, found: Difference) -> str:
        """The likely cause of a difference: that in which alone two processes need to differ."""
        if found.died is not None or found.fault.what in reasons.PLAIN:
            return reasons.of_fault(found)
        base, ways = Setting(self.children.hash_seeds[0], 0, 0, 0, 0), ways_of(found)

        def one_way(*settings: Setting) -> Difference | None:
            now = self.difference(case, settings, ways)
            return now if now is not None and now.kind == found.kind else None

        if found.within:
            return self.cause_within(case, found, base, one_way)
        if one_way(base, base):
            return reasons.LEFT if self.fresh_agree(case, base) else reasons.UNTAMED
        if any(one_way(base, base._replace(hash_seed=seed)) for seed in self.children.hash_seeds[1:]):
            return reasons.of_knobs(["hash_seed"], found)
        names = [name for name in reasons.KNOBS
                 if any(one_way(base, base._replace(**{name: value})) for value in range(1, len(self.settings)))]
        return reasons.of_knobs(names, found)

    def cause_within(
        self, case: Case, found: Difference, base: Setting, seen: Callable[[Setting], Difference | None]
    ) -> str:
        """The likely cause of a difference that one process shows. What it gives may depend on a thing all the same."""
        plain = seen(base)
        if found.fault.way == "again" and plain:
            return reasons.LEFT if self.fresh_agree(case, base) else reasons.UNTAMED
        other_seeds = [base._replace(hash_seed=seed) for seed in self.children.hash_seeds[1:]]
        tried = [("hash_seed", setting) for setting in other_seeds]
        tried += [(name, base._replace(**{name: value})) for name in reasons.KNOBS for value in (1, 2)]
        if reasons.gave(seen(base)) == reasons.gave(plain):
            names = [name for name, setting in tried if reasons.gave(seen(setting)) != reasons.gave(plain)]
            if names:
                return reasons.of_knobs(list(dict.fromkeys(names)), found)
        both = self.difference(case, [base], ("beside",)) if ways_of(found) else None
        return reasons.of_fault(both or found)

    def fresh_agree(self, case: Case, setting: Setting) -> bool:
        """True if two new processes with the same setting agree."""
        answers: list[dict[str, Any]] = []
        for _ in range(2):
            with Children([setting.hash_seed]) as fresh:
                (answer,) = self.ask([(setting, case, ())], START_S, fresh)
            if not isinstance(answer, Died):
                answers.append(answer)
        return len(answers) == 2 and reasons.between(*answers) is None


def _times_us(case: Case) -> list[int]:
    """The times of the commands; if none are given, some that stand, step and leap."""
    if case.times_us is not None:
        return case.times_us
    steps = (0, 1_000, 1_500_000, 61_000_000)
    times, now = [], _FIRST_US
    for number in range(len(case.commands)):
        now += steps[number % len(steps)] + (86_400_000_000 if number % 17 == 16 else 0)
        times.append(now)
    return times


def ways_of(found: Difference) -> list[str]:
    """The ways to fold, besides the plain ones, that show the difference."""
    way = {"original": "written"}.get(found.fault.way, found.fault.way)
    return [way] if way in OTHERS else []


def died_at(died: Died) -> Fault:
    """The fault of a process that ended amid a fold."""
    call = CALLS[died.method] if died.method < len(CALLS) else "comparing"
    how = f"did not come back within {CALL_S:g} s" if died.late else f"ended the process, which {died.how}"
    return Fault(died.number, WAYS[died.way], "lost", -1, f"{call} {how}" + (f": {died.said}" if died.said else ""))


def fewest_until(case: Case, index: int, differs: Differs) -> Case:
    """The fewest commands found that still differ, of those up to the command; that alone if it does."""
    alone, until = case.only([index] if index >= 0 else []), case.only(range(index + 1))
    if differs(alone):
        return alone
    return fewest(until if differs(until) else case, differs)


def fewest(case: Case, differs: Differs) -> Case:
    """The fewest commands found that still differ: ever smaller pieces are left out (delta debugging)."""
    size = max(1, len(case.commands) // 2)
    while case.commands:
        start, was = 0, len(case.commands)
        while start < len(case.commands):
            fewer = case.only([number for number in range(len(case.commands)) if not start <= number < start + size])
            if differs(fewer):
                case = fewer
            else:
                start += size
        if size == 1 and len(case.commands) == was:
            break
        size = max(1, min(size // 2, len(case.commands)))
    return case


def shortest(case: Case, _index: int, differs: Differs) -> Case:
    """Make each command as short as it still differs."""
    for number in range(len(case.commands)):
        size = len(case.commands[number])
        while size:
            start = 0
            while start < len(case.commands[number]):
                command = case.commands[number]
                shorter = case.with_command(number, command[:start] + command[start + size :])
                if differs(shorter):
                    case = shorter
                else:
                    start += size
            size //= 2
    return case
