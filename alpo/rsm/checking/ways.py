"""Ways of folding the same commands in one process, for `alpo.rsm.check`: each must give what the first one gave.

The first fold takes one command after the other and nothing else; another looks at the machine after each. Others load
and freeze copies at every point and go on with either, or have a second machine beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ..contract import At, Machine, checked_items, own_digest
from .answers import Incomparable, answer_digest, error_digest, text_of
from .world import World, monotonic_s

#: Points at which a machine is looked at: every one of so many, else as many, spread.
POINTS_MAX = 200
#: Commands that loaded copies fold on, all together, and each at least; and copies that fold on to the end.
ON_STEPS, ON_STEPS_MIN, TO_THE_END = 400, 3, 4
#: Commands that a frozen copy is made to fold, to see that the original stays.
WRITTEN = 2
#: Commands, at most, of which answers and pieces are told as text.
TOLD_MAX = 200
_KEPT_MAX = 2000
_PIECE_BYTES = 8
_HEAD_BYTES, _HEADS_MAX = 120, 1000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - not the class of the child's clock

CALLS = ("apply()", "items()", "load()", "freeze()", "digest()", "the class")
WAYS = ("alone", "again", "looked", "beside", "loaded", "frozen", "written", "original")
Mark = Callable[[int, int, int], None]
T = TypeVar("T")


class Fault(NamedTuple):
    """A difference within one process. ``number``: the command after which it shows, -1: before the first. ``start``:
    where the copy was made. ``what``: answer, later, items, digest, blind, changed, lost, raised, no data."""

    number: int
    way: str
    what: str
    start: int = -1
    one: str = ""
    other: str = ""


class Look(NamedTuple):
    """A look at a machine: the digest that it offers, one of each piece, and the pieces' beginnings if told."""

    own: bytes
    pieces: bytes
    heads: list[bytes]


class Found(Exception):
    """A way of folding ends with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class Late(Exception):
    """The time is over."""


class Fold:
    """The commands of a request, and what the first two folds of them gave."""

    def __init__(self, kind: type[Machine], request: dict[str, Any], world: World, mark: Mark) -> None:
        self.kind, self.world, self.mark = kind, world, mark
        self.commands: list[bytes] = request["commands"]
        self.ats = [
            At(7 + index + index // 5, 1 + index // 9, EPOCH + timedelta(microseconds=us), request["version"])
            for index, us in enumerate(request["times_us"])
        ]
        self.told = len(self.commands) <= TOLD_MAX
        self.deadline_s = monotonic_s() + request["limit_s"]
        self.answers: list[tuple[bytes, str, bool]] = []
        self.looks: dict[int, Look] = {}
        self.points: list[int] = []
        self.trace: list[list[Any]] = []
        self.way = "alone"
        self.start = -1
        self.folds = self.applied = 0

    def begin(self, way: str) -> Machine:
        """Begin a way with an empty machine."""
        self.way, self.start = way, -1
        self.world.begin()
        return self.empty()

    def empty(self) -> Machine:
        self.folds += 1
        return self.called(5, -1, self.kind)

    def apply(self, machine: Machine, index: int) -> tuple[bytes, bool, object]:
        """Have the machine take a command: the digest of its answer, whether it was raised, and the answer."""
        if monotonic_s() > self.deadline_s:
            raise Late
        self.applied += 1
        self.world.stir()
        self.mark(WAYS.index(self.way), 0, index)
        answer: object
        try:
            answer = machine.apply(self.commands[index], self.ats[index])
            raised = False
        except (RecursionError, MemoryError) as error:
            raise self.found(index, "lost", f"apply() raised {text_of(error)}") from None
        except Exception as error:
            answer, raised = error.with_traceback(None), True
        except BaseException as error:
            raise self.found(index, "lost", f"apply() raised {text_of(error)}") from None
        try:
            digest = error_digest(answer) if isinstance(answer, BaseException) and raised else answer_digest(answer)
        except Incomparable as error:
            raise self.found(index, "no data", str(error)) from None
        finally:
            self.mark(WAYS.index(self.way), 6, index)
        return digest, raised, answer

    def told_of(self, answer: object, raised: bool) -> str:
        """The text of an answer, "" if there are too many."""
        return f"{'raised ' if raised else ''}{text_of(answer)}" if self.told else ""

    def items(self, machine: Machine, index: int) -> list[bytes]:
        return self.called(1, index, lambda: list(checked_items(machine)))

    def load(self, pieces: list[bytes], index: int) -> Machine:
        self.folds += 1
        return self.called(2, index, lambda: self.kind.load(iter(pieces)))

    def freeze(self, machine: Machine, index: int) -> Machine:
        self.folds += 1
        return self.called(3, index, machine.freeze)

    def look(self, machine: Machine, index: int) -> Look:
        return self.look_at(self.items(machine, index), machine, index)

    def look_at(self, pieces: Iterable[bytes], machine: Machine, index: int) -> Look:
        """Look at a machine whose pieces these are."""
        pieces = list(pieces)
        hashes = b"".join(blake2b(piece, digest_size=_PIECE_BYTES).digest() for piece in pieces)
        heads = [piece[:_HEAD_BYTES] for piece in pieces[:_HEADS_MAX]] if self.told else []
        return Look(self.called(4, index, lambda: own_digest(machine)) or b"", hashes, heads)

    def called(self, method: int, index: int, call: Callable[[], T]) -> T:
        """Call a method of the machine's; only `apply` may raise."""
        if monotonic_s() > self.deadline_s:
            raise Late
        self.mark(WAYS.index(self.way), method, index)
        try:
            return call()
        except BaseException as error:
            raise self.found(index, "raised", CALLS[method], text_of(error)) from error
        finally:
            self.mark(WAYS.index(self.way), 6, index)

    def found(self, index: int, what: str, one: str = "", other: str = "") -> Found:
        return Found(Fault(index, self.way, what, self.start, one, other))

    def step(self, machine: Machine, index: int) -> None:
        """Have the machine take a command, and compare the answer with the first fold's."""
        digest, raised, answer = self.apply(machine, index)
        if digest != self.answers[index][0]:
            raise self.found(index, "answer", self.answers[index][1], self.told_of(answer, raised))

    def same(self, look: Look, index: int, before: int | None = None) -> None:
        """Compare what is seen of a machine with what was seen after command ``before`` (``index`` if not given)."""
        known = self.looks.get(index if before is None else before)
        if known is not None and (look.own, look.pieces) != (known.own, known.pieces):
            if look.pieces != known.pieces:
                raise self.found(index, "items", *unlike(known, look))
            raise self.found(index, "digest", known.own.hex(), look.own.hex())


def unlike(one: Look, other: Look) -> tuple[str, str]:
    """The first piece that differs, of either, as text."""
    size = _PIECE_BYTES
    hashes = [[look.pieces[at : at + size] for at in range(0, len(look.pieces), size)] for look in (one, other)]
    both = zip(*hashes, strict=False)
    number = next((at for at, (a, b) in enumerate(both) if a != b), min(map(len, hashes)))
    texts = []
    for look, there in zip((one, other), hashes, strict=True):
        head = text_of(look.heads[number]) if number < len(look.heads) else ""
        texts.append(f"piece no. {number}: {head or '…'}" if number < len(there) else f"{len(there)} pieces in all")
    if sorted(hashes[0]) == sorted(hashes[1]):
        texts[1] += " (the same pieces in another order)"
    return texts[0], texts[1]


def alone(fold: Fold) -> None:
    """Fold one command after the other, and note the answers. They must be the same when all are folded."""
    machine, kept = fold.begin("alone"), []
    for index in range(len(fold.commands)):
        digest, raised, answer = fold.apply(machine, index)
        fold.answers.append((digest, fold.told_of(answer, raised), raised))
        if not raised and not isinstance(answer, str | bytes | int | float | None):
            kept.append((index, answer))
            del kept[:-_KEPT_MAX]
    for index, answer in kept:
        if answer_digest(answer) != fold.answers[index][0]:
            raise fold.found(index, "later", fold.answers[index][1], text_of(answer))
    fold.points = points_of([raised for _, _, raised in fold.answers])
    last = len(fold.commands) - 1
    try:
        fold.looks[last] = fold.look(machine, last)
    except Found:
        fold.looks.pop(last, None)  # `looked` will find at which command it begins


def again(fold: Fold) -> None:
    """Fold everything with a second machine: nothing of the first may be left."""
    machine = fold.begin("again")
    for index in range(len(fold.commands)):
        fold.step(machine, index)
    last = len(fold.commands) - 1
    if last in fold.looks:
        fold.same(fold.look(machine, last), last)


def looked(fold: Fold) -> None:
    """Look at the machine at each point. This makes what the other ways, and other processes, are compared with."""
    machine, points = fold.begin("looked"), set(fold.points)
    last, before = len(fold.commands) - 1, None
    for index in range(-1, len(fold.commands)):
        seen = None
        if index >= 0:
            fold.step(machine, index)
        if index in points:
            look = seen = fold.look(machine, index)
            if index >= 0 and fold.answers[index][2] and before is not None and look.pieces != before.pieces:
                raise fold.found(index, "changed", *unlike(before, look))
            if before is not None and look.own and look.own == before.own and look.pieces != before.pieces:
                raise fold.found(index, "blind", *unlike(before, look))
            if index == last:
                fold.same(look, index)
            fold.looks[index] = look
            fold.same(fold.look(machine, index), index)
        pieces = blake2b(seen.pieces, digest_size=16).digest() if seen else b""
        fold.trace.append([pieces, seen.own if seen else b"", seen.heads if seen else []])
        before = seen


def beside(fold: Fold) -> None:
    """Fold two machines in turns, the other one its commands backwards."""
    machine, other, lost = fold.begin("beside"), fold.empty(), False
    for index in range(len(fold.commands)):
        if not lost:
            try:
                fold.apply(other, len(fold.commands) - 1 - index)
            except Found:
                lost = True
        fold.step(machine, index)
        if index in fold.looks:
            fold.same(fold.look(machine, index), index)


def points_passed(fold: Fold, machine: Machine) -> Iterator[int]:
    """Fold everything and compare the answers; each point when the machine is there."""
    for index in range(-1, len(fold.commands)):
        if index >= 0:
            fold.step(machine, index)
        if index in fold.looks:
            fold.start = index
            yield index
            fold.start = -1


def loaded(fold: Fold) -> None:
    """Load a copy at each point and fold on with it for some commands; from a few points to the end."""
    machine, last = fold.begin("loaded"), len(fold.commands) - 1
    steps = max(ON_STEPS_MIN, ON_STEPS // (len(fold.points) + 1))
    far = fold.points[:: 1 + len(fold.points) // TO_THE_END]
    for index in points_passed(fold, machine):
        copy = fold.load(fold.items(fold.freeze(machine, index), index), index)
        fold.same(fold.look(copy, index), index)
        end = last if index in far else min(index + steps, last)
        for on in range(index + 1, end + 1):
            fold.step(copy, on)
        fold.same(fold.look(copy, end), end)


def frozen(fold: Fold) -> None:
    """Freeze a copy at each point, and read its pieces before, while and after the original goes on, and at the end."""
    machine, last, kept = fold.begin("frozen"), len(fold.commands) - 1, []
    for index in range(-1, last + 1):
        after = min(index + 1, last)
        copy = fold.freeze(machine, index) if index in fold.looks else None
        pieces: Iterator[bytes] = checked_items(copy) if copy is not None else iter(())
        begun = fold.called(1, index, partial(next_of, pieces))
        if index < last:
            fold.step(machine, after)
        if copy is not None:
            fold.start = index
            rest: list[bytes] = fold.called(1, after, partial(list, pieces))
            fold.same(fold.look_at(begun + rest, copy, index), after, index)
            fold.same(fold.look(copy, index), after, index)
            kept.append((index, copy))
            fold.start = -1
    for fold.start, copy in kept:
        fold.same(fold.look(copy, fold.start), last, fold.start)


def next_of(pieces: Iterator[bytes]) -> list[bytes]:
    """The next piece, if there is one."""
    return list(islice(pieces, 1))


def written(fold: Fold) -> None:
    """Freeze a copy at each point, and fold on with the copy, and with a copy of that: the original stays."""
    machine = fold.begin("written")
    for index in points_passed(fold, machine):
        copy = fold.freeze(machine, index)
        fold.same(fold.look(copy, index), index)
        end = min(index + WRITTEN, len(fold.commands) - 1)
        for on in range(index + 1, end + 1):
            fold.step(copy, on)
            fold.way = "original"
            fold.same(fold.look(machine, on), on, index)
            fold.way = "written"
        fold.same(fold.look(copy, end), end)


def points_of(raised: list[bool]) -> list[int]:
    """The commands after which a machine is looked at; -1: before the first. Where it raised, both before and after."""
    count = len(raised)
    if count <= POINTS_MAX:
        return list(range(-1, count))
    errors = [index for index, was in enumerate(raised) if was]
    errors = errors[:: 1 + len(errors) // (POINTS_MAX // 4)]
    spread = range(-1, count, 1 + count // (POINTS_MAX // 4))
    near = {point for index in (*errors, *spread, count - 1) for point in (index - 1, index)}
    return sorted(point for point in near if point >= -1)


OTHERS: dict[str, Callable[[Fold], None]] = {
    way.__name__: way for way in (beside, written, frozen, loaded)
}


def fold_in_all_ways(kind: type[Machine], request: dict[str, Any], world: World, mark: Mark) -> dict[str, Any]:
    """Fold what is asked: what was seen of the second fold, and the first fault of all, if there is one."""
    fold, faults, late = Fold(kind, request, world, mark), [], False
    for way in (alone, again, looked, *(OTHERS[name] for name in request["ways"])):
        try:
            way(fold)
        except Found as found:
            faults.append(found.fault)
            if way in (alone, again, looked):
                break
        except Late:
            late = True
            break
    first = min(faults, key=lambda fault: fault.number, default=None)
    return {
        "answers": [answer[:2] for answer in fold.answers], "trace": fold.trace, "fault": first and list(first),
        "complete": not late, "folds": fold.folds, "applied": fold.applied, "points": len(fold.looks),
    }
