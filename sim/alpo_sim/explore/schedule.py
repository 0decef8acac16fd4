"""A way that the search found as a scenario: a schedule with clocks, to be replayed, drawn and kept.

Laws:

* In the search time stands still, and any timer may run out at any moment. In a schedule every server's clock all but
  stands still too, and runs only for as long as that server's timer needs.
* What the search calls an answer to a server's `Timer.PROBE` is brought about by a new connection (R17).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from alpo.core.messages import StartAnswer, StartQuestion

from ..actions import Ask, Boot, Clock, Crash, Link, Persist, Serve, Wipe
from ..broken import Broken
from ..on_its_way import pattern
from ..replay import Impossible, Replay
from ..scenario import CORE_ERRORS, CRASHED, Arrive, Expect, Line, Scenario, Tick, with_origin
from ..scenario import Deed as What
from ..shapes import main_fields, more_fields
from . import deeds as d
from .first_starts import FirstStarts
from .messages import Messages
from .reigns import Reigns
from .timeless import Timer

#: How fast a clock runs that stands still.
STILL = 1e-9
_APART_US = 1000
#: No process asks more often; the places from which two processes number lie further apart.
_QUESTIONS_MAX = 1000


class NoSchedule(Exception):
    """The way cannot be had as a schedule, and why."""


def schedule(space: Messages | Reigns, way: tuple[int, ...], mutation: str, notes: tuple[str, ...]) -> Scenario:
    """What ``way`` does, with what breaks at its end. Raises `NoSchedule`. A mutation must be in force already."""
    return _Writer(space, mutation, notes).write(way)


class _Writer:
    """Does every deed on a replay as it writes it down."""

    def __init__(self, space: Messages | Reigns, mutation: str, notes: tuple[str, ...]) -> None:
        self._space = space
        self._begins = isinstance(space, FirstStarts)
        stage = space.servers.stage
        prompt = isinstance(space, Reigns) or not space.bounds.writes
        self._scenario = Scenario(
            space.size, settings=stage.settings, limits=tuple(stage.limits.items()), founded=not self._begins,
            prompt=prompt, mutation=mutation, notes=notes,
        )
        self._replay = Replay(self._scenario)
        self._lines: list[Line] = []
        self._first_numbers: dict[int, int] = {}  # server -> number of its process's first question

    def write(self, way: tuple[int, ...]) -> Scenario:
        todo = d.deeds_of(self._space, way)
        if not self._begins:
            self._replay.found()
        try:
            self._begin()
            for deed in todo:
                self._do(deed)
            for host in self._replay.stage.hosts.values():
                if host.inbox:  # a leader lets it wait, until its next heartbeat at most
                    self._run_out(host.id, Timer.HEARTBEAT)
            self._replay.compare()
        except Broken as broken:
            invariant = broken.invariant
        except CORE_ERRORS:
            invariant = CRASHED
        except Impossible as why:
            raise NoSchedule(f"after {len(self._lines)} lines: {why}") from why
        else:
            raise NoSchedule("replayed, with clocks, it breaks no check" + (
                f" of those that {self._scenario.mutation} leaves in force" if self._scenario.mutation else ""
            ))
        expects = (Expect("broken", invariant=invariant),)
        return replace(self._scenario, lines=tuple(self._lines), expects=expects)

    # -- lines ------------------------------------------------------------------------------------------

    def _line(self, what: What) -> None:
        line = Line(what)
        self._lines.append(line)
        self._replay.line(line)

    @property
    def _now_us(self) -> int:
        return self._replay.stage.now_us

    def _next_us(self) -> int:
        return self._now_us + _APART_US

    def _begin(self) -> None:
        """Nobody hears a leader, everybody is connected, all clocks stand."""
        times, ids = self._scenario.times, self._space.servers.ids
        at_us = 0 if self._begins else times.election_timeout_us - times.heartbeat_us + _APART_US
        for id in ids:
            self._line(Clock(at_us, id, STILL, 0))
        if self._begins:
            for id in ids:
                self._boot(id)
            for id in ids:  # what the first asked was lost: the last was not there yet
                self._run_out(id, Timer.QUESTION)
                self._note_questions(id)

    def _boot(self, id: int) -> None:
        self._line(Boot(self._next_us(), id))
        self._note_questions(id)
        for peer in self._space.servers.ids:
            if peer != id:
                self._line(Link(self._now_us, id, peer, True))

    def _note_questions(self, id: int) -> None:
        replica = self._replay.stage.hosts[id].replica
        assert replica is not None
        self._first_numbers[id] = replica.first_start._number

    def _pass(self, id: int, span_us: int) -> None:
        """So much time for that server alone, and nothing that comes of it yet."""
        self._line(Clock(self._next_us(), id, 1.0, 0))
        self._line(Clock(self._now_us + span_us, id, STILL, 0))

    # -- deeds ------------------------------------------------------------------------------------------

    def _do(self, deed: d.Deed) -> None:
        id = deed.server
        if isinstance(deed, d.Deliver):
            if deed.forgets:
                self._forget(id)
            self._deliver(deed.message)
        elif isinstance(deed, d.Forget):
            self._forget(id)
        elif isinstance(deed, d.RunOut):
            self._run_out(id, deed.timer)
        elif isinstance(deed, d.Miss):
            self._pass(id, 2 * self._scenario.times.heartbeat_us + _APART_US)
            self._line(Tick(self._now_us, id))
        elif isinstance(deed, d.Persist):
            self._line(Persist(self._next_us(), id, 1))
        elif isinstance(deed, d.Serve):
            self._line(Serve(self._next_us(), id))
        elif isinstance(deed, d.Restart):
            self._line(Crash(self._next_us(), id, deed.kept))
            if deed.wiped:
                self._line(Wipe(self._now_us, id))
            self._boot(id)
        else:
            self._line(Ask(self._next_us(), id, with_origin(deed.request, "client")))

    def _forget(self, id: int) -> None:
        times = self._scenario.times
        self._pass(id, times.election_timeout_us - times.heartbeat_us)

    def _run_out(self, id: int, timer: Timer) -> None:
        times = self._scenario.times
        if timer is Timer.PROBE:
            replica = self._replay.stage.hosts[id].replica
            assert replica is not None and replica.leadership is not None
            for peer in replica.leadership.peers.values():
                self._line(Link(self._next_us(), id, peer.who.id, True))
            return
        span_us = {
            Timer.CYCLE: times.election_timeout_us, Timer.SILENCE: times.election_timeout_us,
            Timer.HEARTBEAT: times.heartbeat_us, Timer.MARKS: times.mark_delay_us,
        }.get(timer)
        if span_us is None:  # the only one that it has
            self._line(Clock(self._next_us(), id, 1.0, 0))
            self._line(Clock(max(self._now_us, self._replay.stage.hosts[id].due_us), id, STILL, 0))
        else:
            self._pass(id, span_us + _APART_US)
        self._line(Tick(self._now_us, id))

    # -- messages ---------------------------------------------------------------------------------------

    def _deliver(self, number: int) -> None:
        """The message on its way that is most like the one that the search delivered."""
        envelope, source, target = self._space.servers.messages[number]
        wanted = self._as_numbered_here(envelope.message, source, target)
        kind = type(wanted).__name__
        waiting = self._replay.on_its_way.get((source, target, kind), [])
        alike = [at for at, each in enumerate(waiting) if each.main == main_fields(wanted)]
        if not alike:
            raise NoSchedule(f"after {len(self._lines)} lines no {kind} is on its way from {source} to {target}")
        more = dict(more_fields(wanted))

        def likeness(at: int) -> tuple[bool, int, int]:
            same = sum(more.get(name) == value for name, value in waiting[at].more)
            return waiting[at].envelope.message == wanted, same, at

        at = max(alike, key=likeness)
        fields, nth = pattern(waiting, at)
        self._line(Arrive(self._next_us(), source, target, kind, fields, nth, copy=True))

    def _as_numbered_here(self, message: Any, source: int, target: int) -> Any:
        """Every process numbers its first questions from another place, here as in the search (R29)."""
        if not isinstance(message, StartQuestion | StartAnswer):
            return message
        asker = source if isinstance(message, StartQuestion) else target
        numbers = [
            each.envelope.message.number for each in self._space.servers.messages
            if each.source == asker and isinstance(each.envelope.message, StartQuestion)
        ]
        first = min((n for n in numbers if abs(n - message.number) < _QUESTIONS_MAX), default=message.number)
        return message._replace(number=self._first_numbers.get(asker, 0) + message.number - first)
