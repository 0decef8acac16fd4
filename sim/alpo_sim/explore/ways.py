"""Ways that the search found: as lines to read, as deeds in order, and as a scenario to replay, draw and keep.

Laws:

* The search delivers a message that does not change its target without an action (`messages`). If a later action needs
  the answer to one, its delivery is among the deeds.
* In the search time stands still, and any timer may run out at any moment. In a schedule every server's clock almost
  stands still too, and runs only for as long as that server's timer needs.
* The effect of `Timer.PROBE` is brought about in a schedule by a new connection (R17).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from alpo.core.messages import StartAnswer, StartQuestion

from ..checks import Broken
from ..replay import Impossible, Replay
from ..scenario import CORE_ERRORS, CRASHED, Arrive, Deed, Expect, Line, Scenario, Tick, with_origin
from ..shapes import main_fields, more_fields, pattern
from ..stage import Ask, Boot, Clock, Crash, Link, Persist, Serve, Wipe
from .messages import Action, FirstStarts, Messages, request
from .reigns import Reign, Reigns, Teller
from .search import State
from .state import Timer

#: Rate of a clock that almost stands still.
STILL = 1e-9
_APART_US = 1000
#: Bound on the questions of one process; the first numbers of two processes lie further apart.
_QUESTIONS_MAX = 1000


# -- as lines -------------------------------------------------------------------------------------------


def lines(space: Messages | Reigns, way: tuple[int, ...]) -> Iterator[str]:
    """Yield lines that say, from the first state on, what each action does and the server's state after it."""
    state: State | None = space.first()
    for count, number in enumerate(way, 1):
        assert state is not None
        action: Any = space.actions[number]
        said = _reign(action) if isinstance(space, Reigns) else _action(space, action)
        yield f"{count:3}  {said}"
        state = next(step.state for step in space.successors(state) if step.action == number)
        if state is not None:
            for id in [id for id in (action.server, getattr(action, "other", 0)) if id]:
                yield f"       {id}: {space.servers.line(id, state[id - 1])}"


def _message(space: Messages, number: int) -> str:
    envelope, source, _ = space.servers.messages[number]
    fields = " ".join(f"{name} {value}" for name, value in dict(main_fields(envelope.message)).items())
    return f"{type(envelope.message).__name__} of {source} ({fields})"


def _action(space: Messages, action: Action) -> str:
    id, what = action.server, action.what
    if action.kind == "hear":
        return f"{id} hears " + " and ".join(_message(space, each) for each in space.combined[what])
    if action.kind in ("deliver", "forget"):
        forgot = ", its leader being silent," if action.kind == "forget" else ""
        return f"{id}{forgot} takes {_message(space, what)}"
    return {
        "persist": f"{id}: a write is on disk",
        "serve": f"{id}: entries are read from disk",
        "timer": f"{id}: {Timer(what).name.lower() if action.kind == 'timer' else ''} is due",
        "miss": f"{id} has not heard {what} for 2h, and asks who is there",
        "crash": f"{id} restarts, {what} of its writes under way kept",
        "wipe": f"{id} restarts on an empty disk",
        "append": f"{id} is asked for append {what}",
    }[action.kind]


def _reign(action: Reign) -> str:
    if action.kind == "ask":
        return f"{action.server} is asked {action.request!r}"
    if action.kind == "crash":
        return f"{action.server} restarts"
    if action.kind == "elect":
        return f"{action.server} is elected by {action.other}"
    return f"leader {action.server} and {action.other} exchange {action.messages} messages"


# -- as deeds -------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """Deed on one server. ``what``, by ``kind``:

    deliver: number of a message; forget: None (the server ceases to take the leader that it heard for live); run_out:
    a `Timer`; miss: id of a peer that a leader misses; persist, serve: None; restart: number of writes kept; wipe: None
    (a restart on an empty disk); ask: a request.
    """

    kind: str
    server: int
    what: Any = None


def deeds_of(space: Messages | Reigns, way: tuple[int, ...]) -> list[Done]:
    """The deeds of the actions that lead to the first state, then of the actions ``way``."""
    states = [space.first()]
    for number in way[:-1]:
        found = next(step.state for step in space.successors(states[-1]) if step.action == number)
        assert found is not None
        states.append(found)
    if isinstance(space, Reigns):
        return [deed for state, number in zip(states, way, strict=True) for deed in _of_reign(space, state, number)]
    done = [_of_action(space, number) for number in way]
    prelude = [deed for number in space.prelude for deed in _of_action(space, number)]
    return prelude + _with_answers(space, states, done)


def _of_action(space: Messages, number: int) -> list[Done]:
    kind, id, what = space.actions[number]
    if kind == "hear":
        return [Done("deliver", id, each) for each in space.combined[what]]
    if kind == "forget":
        return [Done("forget", id), Done("deliver", id, what)]
    if kind == "timer":
        return [Done("run_out", id, Timer(what))]
    if kind == "append":
        return [Done("ask", id, request(what))]
    return [Done("restart" if kind == "crash" else kind, id, what)]


def _with_answers(space: Messages, states: list[State], done: list[list[Done]]) -> list[Done]:
    """Add the deliveries that the search made without an action, from the last action back.

    A message that an action needs was on its way before, or left with the action before, or is an answer to a message
    that was delivered without an action.
    """
    needed: dict[int, None] = {}
    parts: list[list[Done]] = []
    for at in range(len(states) - 1, -1, -1):
        parts.append(done[at])
        needed |= {deed.what: None for deed in done[at] if deed.kind == "deliver"}
        before = states[at - 1][space.fixed :] if at else ()
        silent: list[Done] = []
        todo = [message for message in needed if message not in before]
        while todo:
            message = todo.pop()
            needed.pop(message, None)
            asked = _asked_by(space, states[at], message)
            if asked is None:
                continue  # it left with the action before
            silent.insert(0, Done("deliver", space.servers.messages[asked].target, asked))
            if asked in before:
                needed[asked] = None
            else:
                todo.append(asked)
        parts.append(silent)
    return [deed for part in reversed(parts) for deed in part]


def _asked_by(space: Messages, state: State, message: int) -> int | None:
    """The message on its way to which ``message`` is an answer that does not change the answering server; else None."""
    source = space.servers.messages[message].source
    for each in state[space.fixed :]:
        if space.servers.messages[each].target == source and message in space.arrival(state[source - 1], each).answers:
            return each
    return None


def _of_reign(space: Reigns, state: State, number: int) -> list[Done]:
    action: Reign = space.actions[number]
    if action.kind == "ask":
        return [Done("ask", action.server, action.request)]
    if action.kind == "crash":
        return [Done("restart", action.server, 0)]
    teller = _Teller()
    id, other = action.server, action.other
    talks = space.exchange(action.kind, id, state[id - 1], other, state[other - 1], teller)
    for delivered, _ in enumerate(talks, 1):
        if action.kind == "talk" and delivered == action.messages:
            break
    return teller.done


class _Teller(Teller):
    """Listener that collects the deeds of an exchange."""

    def __init__(self) -> None:
        self.done: list[Done] = []

    def ran_out(self, id: int, timer: Timer) -> None:
        self.done.append(Done("run_out", id, timer))

    def forgot(self, id: int) -> None:
        self.done.append(Done("forget", id))

    def delivered(self, id: int, message: int) -> None:
        self.done.append(Done("deliver", id, message))


# -- as a schedule --------------------------------------------------------------------------------------


class NoSchedule(Exception):
    """Exception for a way that cannot be a schedule; the message says why."""


def schedule(space: Messages | Reigns, way: tuple[int, ...], mutation: str, notes: tuple[str, ...]) -> Scenario:
    """Make the scenario of the deeds of ``way``, with the check that breaks at its end. A mutation must be in force.

    Raises `NoSchedule`.
    """
    return _Writer(space, mutation, notes).write(way)


class _Writer:
    """Writer of a scenario, which does every deed on a replay as it writes it down."""

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
        todo = deeds_of(self._space, way)
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

    def _line(self, what: Deed) -> None:
        line = Line(what)
        self._lines.append(line)
        self._replay.line(line)

    @property
    def _now_us(self) -> int:
        return self._replay.stage.now_us

    def _next_us(self) -> int:
        return self._now_us + _APART_US

    def _begin(self) -> None:
        """Begin with all servers connected, none hearing a leader, and all clocks almost standing still."""
        times, ids = self._scenario.times, self._space.servers.ids
        at_us = 0 if self._begins else times.election_timeout_us - times.heartbeat_us + _APART_US
        for id in ids:
            self._line(Clock(at_us, id, STILL, 0))
        if self._begins:
            for id in ids:
                self._boot(id)
            for id in ids:  # the first servers' questions were lost: the last server was not there yet
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
        self._first_numbers[id] = replica.first_start.number

    def _pass(self, id: int, span_us: int) -> None:
        """Let ``span_us`` pass for server ``id`` alone, without a step."""
        self._line(Clock(self._next_us(), id, 1.0, 0))
        self._line(Clock(self._now_us + span_us, id, STILL, 0))

    # -- deeds ------------------------------------------------------------------------------------------

    def _do(self, deed: Done) -> None:
        kind, id, what = deed
        todo: dict[str, Callable[[], None]] = {
            "deliver": lambda: self._deliver(what),
            "forget": lambda: self._forget(id),
            "run_out": lambda: self._run_out(id, what),
            "miss": lambda: self._miss(id),
            "persist": lambda: self._line(Persist(self._next_us(), id, 1)),
            "serve": lambda: self._line(Serve(self._next_us(), id)),
            "restart": lambda: self._restart(id, what),
            "wipe": lambda: self._restart(id, 0, wiped=True),
            "ask": lambda: self._line(Ask(self._next_us(), id, with_origin(what, "client"))),
        }
        todo[kind]()

    def _miss(self, id: int) -> None:
        self._pass(id, 2 * self._scenario.times.heartbeat_us + _APART_US)
        self._line(Tick(self._now_us, id))

    def _restart(self, id: int, kept: int, *, wiped: bool = False) -> None:
        self._line(Crash(self._next_us(), id, kept))
        if wiped:
            self._line(Wipe(self._now_us, id))
        self._boot(id)

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
        """Deliver the message on its way that is most like message ``number`` of the search."""
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
        """Number a question or its answer as this replay's process does: each process begins elsewhere (R29)."""
        if not isinstance(message, StartQuestion | StartAnswer):
            return message
        asker = source if isinstance(message, StartQuestion) else target
        numbers = [
            each.envelope.message.number for each in self._space.servers.messages
            if each.source == asker and isinstance(each.envelope.message, StartQuestion)
        ]
        first = min((n for n in numbers if abs(n - message.number) < _QUESTIONS_MAX), default=message.number)
        return message._replace(number=self._first_numbers.get(asker, 0) + message.number - first)
