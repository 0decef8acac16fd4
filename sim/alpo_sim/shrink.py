"""Shrinking of a failing schedule: leaves out lines without which the same invariant still breaks.

Laws:

* A change is kept only if a replay with it breaks the same invariant; the new schedule is what that replay did.
* Lines are left out together with the time before them, so that the distances between later lines stay.
* Shrinking ends when nothing more can be left out, or when its time is up; the result is the best schedule so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, islice, permutations
from typing import Any

from alpo.core.entries import random_client
from alpo.core.ready import Input
from alpo.core.requests import AppendRun, ChangeMember, Transfer
from alpo.core.settings import Settings

from .host import WALL_ZERO_MS
from .replay import Outcome, Replay
from .scenario import Arrive, Deed, Expect, Line, Scenario, Seen, Tick, Times, with_origin
from .stage import Ask, Boot, Clock, Configure, Link, Persist, Serve, Step

_PERMUTED_MAX = 120


def _changed(scenario: Scenario, change: Callable[[Deed], Deed]) -> Scenario:
    """``scenario`` with each deed changed."""
    return replace(scenario, lines=tuple(line._replace(what=change(line.what)) for line in scenario.lines))


def retimed(scenario: Scenario, apart_us: int) -> Scenario:
    """``scenario`` with lines ``apart_us`` apart. Deadlines are at the time of the line before, to be waited for."""
    steps_us = (0 if isinstance(line.what, Tick) else apart_us for line in scenario.lines)
    times_us = accumulate(steps_us)
    return _changed(scenario, lambda what: what._replace(at_us=next(times_us)))


def plain_asks(scenario: Scenario) -> Scenario:
    """``scenario`` with every append as the first of a random client of its own, with one short payload."""
    number = 0

    def plain(what: Deed) -> Deed:
        nonlocal number
        if not isinstance(what, Ask) or not isinstance(what.request, AppendRun):
            return what
        number += 1
        body = (1, _letters(number).encode())
        return what._replace(request=AppendRun("", random_client(WALL_ZERO_MS, number), 0, 1, [body]))

    return _changed(scenario, plain)


def anonymous(scenario: Scenario) -> Scenario:
    """``scenario`` with every request from a client with no other request."""
    return _changed(
        scenario, lambda what: what._replace(request=with_origin(what.request, "")) if isinstance(what, Ask) else what
    )


def _letters(number: int) -> str:
    """Name ``number``, from 1, of a, b, … z, aa, ab, …"""
    text = ""
    while number:
        number, at = divmod(number - 1, 26)
        text = chr(ord("a") + at) + text
    return text


def without_servers(scenario: Scenario, gone: Sequence[int]) -> Scenario:
    """``scenario`` without the servers ``gone`` and lines about them; the others are renumbered in the same order."""
    kept = [id for id in range(1, scenario.servers + scenario.spares + 1) if id not in gone]
    return _renumbered(scenario, {id: at for at, id in enumerate(kept, 1)})


def permuted(scenario: Scenario) -> Iterator[Scenario]:
    """Variants of ``scenario`` with renumbered servers; in the first, by the order in which they first do something."""
    order: dict[int, None] = {}
    for line in scenario.lines:
        for id in _ids(line):
            order[id] = None
    spares = {id: id for id in range(scenario.servers + 1, scenario.servers + scenario.spares + 1)}
    order = {id: None for id in order if id not in spares} | dict.fromkeys(range(1, scenario.servers + 1))
    for numbers in islice(permutations(range(1, scenario.servers + 1)), _PERMUTED_MAX):
        yield _renumbered(scenario, dict(zip(order, numbers, strict=True)) | spares)


#: Fields of deeds that hold a server's id.
_IDS = ("id", "source", "target", "peer")


def _ids(line: Line) -> tuple[int, ...]:
    what = line.what
    return tuple(getattr(what, name) for name in _IDS[:3] if name in what._fields)


def _renumbered(scenario: Scenario, new: dict[int, int]) -> Scenario:
    """``scenario`` with servers renumbered by ``new``. Servers not in ``new``, and lines about them, are left out."""
    lines = []
    for line in scenario.lines:
        what: Any = line.what
        ids = {name: getattr(what, name) for name in _IDS if name in what._fields}
        request = _of_others(what.request, new) if isinstance(what, Ask) else None
        if any(id not in new for id in ids.values()) or (isinstance(what, Ask) and request is None):
            continue
        what = what._replace(**{name: new[id] for name, id in ids.items()})
        if isinstance(what, Ask):
            what = what._replace(request=request)  # type: ignore[arg-type]
        elif isinstance(what, Configure):
            members = tuple(sorted((new[id], priority) for id, priority in what.members if id in new))
            what = what._replace(members=members)
        lines.append(line._replace(what=what))
    by_number = {number: id for id, number in new.items()}
    servers = sum(id <= scenario.servers for id in new)
    priorities = tuple(scenario.priorities[by_number[n] - 1] for n in range(1, servers + 1) if scenario.priorities)
    return replace(
        scenario, servers=servers, spares=len(new) - servers, lines=tuple(lines), priorities=priorities
    )


def _of_others(request: Input, new: dict[int, int]) -> Input | None:
    """``request`` with the server that it names, if any, renumbered; None if that server is left out."""
    if isinstance(request, ChangeMember):
        return request._replace(id=new[request.id]) if request.id in new else None
    if isinstance(request, Transfer):
        return request._replace(target=new[request.target]) if request.target in new else None
    return request


_START_KINDS = ("StartQuestion", "StartAnswer", "WrongIncarnation")
#: Most lines of a schedule for which leaving out every pair of lines is tried too.
_PAIRS_LINES_MAX = 120
_SHORTCUT_LINES_MAX = 8
#: Microseconds between lines, tried in turn at the end, for tidy times.
_APART_US = (1000, 500, 200, 100)


@dataclass(slots=True)
class Progress:
    """Progress of shrinking: lines left, replays so far, and the change that is tried."""

    lines: int
    replays: int
    phase: str


class OutOfTime(Exception):
    """Exception that ends shrinking when its time is up."""


class CannotReplay(Exception):
    """Exception for a schedule that does not break the invariant when it is replayed on the core alone."""


class Shrinker:
    """Shrinking of ``scenario``, which breaks ``invariant``. `best` is the smallest so far, at any time after `begin`.

    The scenario's mutation must be in force meanwhile. ``limit_s``: seconds to shrink in.
    """

    def __init__(
        self, scenario: Scenario, invariant: str, *, limit_s: float = 120.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.best = replace(scenario, expects=(Expect("broken", invariant=invariant),))
        self.detail = ""
        self._invariant = invariant
        self._ends_s = time.monotonic() + limit_s
        self._on_progress = on_progress
        self._progress = Progress(len(scenario.lines), 0, "replaying")

    def run(self) -> Scenario:
        """Shrink the scenario. Returns the smallest found, which can be written to a file. Raises `CannotReplay`."""
        self.begin()
        try:
            self._coarse()
            while True:
                before = self._size()
                self._fine()
                if self._size() >= before:
                    break
        except OutOfTime:
            pass
        return self._as_file()

    def begin(self) -> None:
        """Replay the scenario as it stands. Raises `CannotReplay`."""
        outcome = Replay(self.best, strict=False).run()
        if outcome.invariant != self._invariant:
            came = f"{outcome.invariant} broke instead: {outcome.detail}" if outcome.invariant else "every check held"
            raise CannotReplay(came)
        self._keep(self.best, outcome)

    # -- trying -----------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, int]:
        return self.best.servers, len(self.best.lines)

    def _keep(self, scenario: Scenario, outcome: Outcome) -> None:
        self.best = replace(scenario, lines=tuple(outcome.done))
        self.detail = outcome.detail
        self._progress.lines = len(outcome.done)

    def _try(self, scenario: Scenario, *, smaller: bool = False) -> bool:
        """Replay ``scenario``, and keep it as the best if the invariant breaks. ``smaller``: and if it has fewer lines.

        Returns whether the scenario was kept. Raises `OutOfTime`.
        """
        if time.monotonic() > self._ends_s:
            raise OutOfTime
        self._progress.replays += 1
        self._on_progress(self._progress)
        outcome = Replay(scenario, strict=False).run()
        if outcome.invariant != self._invariant or (smaller and len(outcome.done) >= len(self.best.lines)):
            return False
        self._keep(scenario, outcome)
        return True

    def _without(self, drop: Callable[[Line], bool]) -> bool:
        """Try to leave out all lines for which ``drop`` is true. Returns whether that worked."""
        gone = {at for at, line in enumerate(self.best.lines) if drop(line)}
        return bool(gone) and self._try(replace(self.best, lines=_left(self.best.lines, gone)))

    # -- what is large first ----------------------------------------------------------------------------

    def _coarse(self) -> None:
        self._phase("simplifying")
        self._defaults()
        self._chunks(smallest=max(32, len(self.best.lines) // 64))
        self._try(retimed(self.best, 20))
        self._groups()
        self._chunks(smallest=8)
        self._defaults()

    def _fine(self) -> None:
        self._groups()
        self._chunks(smallest=1)
        self._phase("simplifying")
        self._defaults()
        self._fewer_servers()
        self._try(plain_asks(self.best))
        self._tidy_times()
        if len(self.best.lines) <= _PAIRS_LINES_MAX:
            self._pairs()
            self._shortcuts()
        self._order()
        self._tidy_times()

    def _phase(self, name: str) -> None:
        self._progress.phase = name

    def _defaults(self) -> None:
        """Try the defaults of settings, limits, timers and clocks, prompt disks, and a first start done beforehand."""
        best = self.best
        if not best.founded:
            self._found()
        for change in ({"limits": ()}, {"settings": Settings()}, {"priorities": ()}, {"times": Times()}):
            if any(getattr(self.best, name) != value for name, value in change.items()):
                self._try(replace(self.best, **change))
        self._without(lambda line: isinstance(line.what, Clock))
        self._without(lambda line: isinstance(line.what, Configure))
        if any(line.more for line in self.best.lines):
            lines = (Line(line.what) for line in self.best.lines if not isinstance(line.what, Step))
            self._try(replace(self.best, lines=tuple(lines)))
        if not self.best.prompt:
            kept = (line for line in self.best.lines if not isinstance(line.what, (Persist, Serve)))
            self._try(replace(self.best, prompt=True, lines=tuple(kept)))
        if any(isinstance(line.what, Ask) for line in self.best.lines):
            self._try(plain_asks(self.best))
            self._try(anonymous(self.best))

    def _found(self) -> None:
        """Try with the first start done beforehand; if that fails, with renumbered servers, whose timers differ."""
        founded = replace(self.best, founded=True, lines=_left(self.best.lines, _of_start(self.best.lines)))
        if not self._try(founded) and len(founded.lines) <= _PAIRS_LINES_MAX:
            any(self._try(each) for each in permuted(founded))

    def _groups(self) -> None:
        """Try to leave out all lines of one kind, of one server, or between two servers."""
        self._phase("leaving out by kind and server")
        groups: dict[tuple[object, ...], None] = {}
        for line in self.best.lines:
            for group in _groups_of(line.what):
                groups[group] = None
        for group in groups:
            self._without(lambda line, group=group: group in _groups_of(line.what))  # type: ignore[misc]

    def _chunks(self, *, smallest: int) -> None:
        """Try to leave out runs of lines: half of all, a quarter, …, down to ``smallest`` lines."""
        size = max(1, len(self.best.lines) // 2)
        while True:
            self._phase(f"leaving out {size} at a time" if size > 1 else "leaving out one at a time")
            at = 0
            while at < len(self.best.lines):
                gone = set(range(at, min(at + size, len(self.best.lines))))
                if not self._try(replace(self.best, lines=_left(self.best.lines, gone)), smaller=True):
                    at += size
            if size <= smallest:
                return
            size = max(smallest, size // 2)

    def _pairs(self) -> None:
        self._phase("leaving out two at a time")
        apart = 1
        while apart < len(self.best.lines):
            at = 0
            while at + apart < len(self.best.lines):
                lines = _left(self.best.lines, {at, at + apart})
                if not self._try(replace(self.best, lines=lines), smaller=True):
                    at += 1
            apart += 1

    def _shortcuts(self) -> None:
        """Try a server's deadline in the place of several lines with the same effect."""
        self._phase("trying shortcuts")
        for size in range(_SHORTCUT_LINES_MAX, 1, -1):
            at = 0
            while at + size <= len(self.best.lines):
                ids = range(1, self.best.servers + self.best.spares + 1)
                if not any(self._shortcut(at, size, id) for id in ids):
                    at += 1

    def _shortcut(self, at: int, size: int, id: int) -> bool:
        lines = self.best.lines
        tick = Line(Tick(lines[at].what.at_us, id))
        rest = _left(lines, set(range(at + 1, at + size)))
        return self._try(replace(self.best, lines=(*rest[:at], tick, *rest[at + 1 :])), smaller=True)

    def _fewer_servers(self) -> None:
        for count in (4, 2, 1):
            while self.best.servers + self.best.spares > count and self._one_fewer(count):
                pass

    def _one_fewer(self, count: int) -> bool:
        ids = range(1, self.best.servers + self.best.spares + 1)
        return any(self._try(without_servers(self.best, gone)) for gone in combinations(ids, count))

    def _order(self) -> None:
        """Try with servers numbered in the order in which they first do something."""
        first = next(permuted(self.best))
        if first != self.best:
            self._try(first)

    def _tidy_times(self) -> None:
        any(self._try(retimed(self.best, apart_us)) for apart_us in _APART_US)

    # -- the end ----------------------------------------------------------------------------------------

    def _as_file(self) -> Scenario:
        """The best scenario with its deliveries as `Arrive`, as a file has them."""
        outcome = Replay(self.best, strict=False, patterns=True).run()
        return replace(self.best, lines=tuple(outcome.done))


def _left(lines: Sequence[Line], gone: set[int]) -> tuple[Line, ...]:
    """The lines except those at the indices ``gone``, and without the time that passed before each of these."""
    left, saved_us, before_us = [], 0, 0
    for at, line in enumerate(lines):
        now_us = line.what.at_us
        if at in gone:
            saved_us += now_us - before_us
        else:
            left.append(line._replace(what=line.what._replace(at_us=now_us - saved_us)))
        before_us = now_us
    return tuple(left)


def _of_start(lines: Sequence[Line]) -> set[int]:
    """Indices of the lines of the first start: first boots, and all up to the start's last message."""
    ends = 0
    for at, line in enumerate(lines):
        if isinstance(line.what, Seen):
            if line.what.kind not in _START_KINDS:
                break
            ends = at
    booted: dict[int, bool] = {}
    gone: set[int] = set()
    for at, line in enumerate(lines):
        what = line.what
        if isinstance(what, Boot) and what.id not in booted:
            booted[what.id] = True
            gone.add(at)
        elif at <= ends and isinstance(what, (Seen, Tick, Step, Persist)):
            gone.add(at)
    return gone


def _groups_of(what: Deed) -> list[tuple[object, ...]]:
    """The groups that a deed belongs to: by kind, servers, and client."""
    if isinstance(what, (Seen, Arrive)):
        kind = (what.kind,)
        ends = [("to", what.target), ("from", what.source), ("between", what.source, what.target)]
        return [kind, *ends, (what.kind, what.source, what.target)]
    name = type(what).__name__
    groups: list[tuple[object, ...]] = [(name,), (name, what.id)]
    if isinstance(what, Link):
        groups.append((name, what.id, what.peer))
    if isinstance(what, Ask):
        request = what.request
        groups += [(name, type(request).__name__)]
        client = getattr(request, "client", None) or getattr(request, "name", None)
        groups += [(name, client)] if client else []
    if isinstance(what, Tick):
        groups = [(name, what.id)]
    return groups
