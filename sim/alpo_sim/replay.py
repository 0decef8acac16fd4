"""Replay of a scenario on the core alone: on a stage, under the checks, without any random choice.

Laws:

* Only the replicas draw random numbers, from their own seeds; the same scenario gives the same outcome.
* A message that was sent can be delivered until its target's process ends.
* Time never goes back: a line whose time has passed happens now. A lenient replay keeps the time between lines instead,
  and waits for deadlines, so that the rest of a schedule still fits when lines are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from alpo.core.messages import START_ONLY, Envelope
from alpo.core.ranks import State
from alpo.core.ready import Input
from alpo.core.requests import Initialise, Reply

from .checks import Broken
from .checks.all import Checks
from .host import NEVER_US, Host
from .scenario import (
    CORE_ERRORS,
    CRASHED,
    INPUTS,
    Arrive,
    Deed,
    Expect,
    Line,
    Scenario,
    Seen,
    Tick,
    Times,
    party_of,
    with_origin,
)
from .shapes import OnItsWay, find_like, main_fields, more_fields, pattern
from .stage import Action, Ask, Boot, Crash, Deliver, Link, Move, Persist, PutBack, Serve, Stage, Step, Watcher, Wipe


@dataclass(slots=True)
class Outcome:
    """Outcome of a replay. ``invariant``: the check that broke, "" if none did; ``at``: the line, from 0, at which the
    replay ended.

    ``problem``: why line ``at`` was impossible, in a strict replay. ``done``: the lines as they happened; deliveries
    are `Seen`, or `Arrive` if the replay was made with ``patterns``. ``guaranteed``: number of entries guaranteed.
    """

    invariant: str = ""
    detail: str = ""
    at: int = -1
    problem: str = ""
    steps: int = 0
    done: list[Line] = field(default_factory=list)
    stage: Stage | None = None
    guaranteed: int = 0


def unmet(scenario: Scenario, outcome: Outcome) -> list[str]:
    """A sentence for each expectation of the scenario that is not met; [] if all are."""
    if outcome.problem:
        return [f"it is impossible: {outcome.problem}"]
    wrong = []
    if outcome.invariant and not any(e.what == "broken" for e in scenario.expects):
        wrong.append(f"{outcome.invariant} broke: {outcome.detail}")
    for expect in scenario.expects:
        said = _unmet(expect, outcome)
        if said:
            wrong.append(said)
    return wrong


def _unmet(x: Expect, outcome: Outcome) -> str:
    assert outcome.stage is not None
    replicas = {h.id: h.replica for h in outcome.stage.hosts.values() if h.replica is not None}
    if x.what == "broken":
        if not outcome.invariant:
            return f"every check held; {x.invariant!r} was to break"
        other = f"{outcome.invariant} broke, not {x.invariant}: {outcome.detail}"
        return "" if outcome.invariant == x.invariant else other
    if x.what == "guaranteed":
        return "" if outcome.guaranteed == x.number else f"{outcome.guaranteed} entries are guaranteed, not {x.number}"
    if x.what == "logs equal":
        logs = {h: _log(outcome.stage.hosts[h]) for h in replicas}
        first = next(iter(logs.values()), [])
        return "" if all(log == first for log in logs.values()) else "the logs differ: " + _lasts(logs)
    if x.what == "ok":
        return ""
    replica = replicas.get(x.server)
    if replica is None:
        return f"server {x.server} is down"
    if x.what == "leader":
        right = replica.state is State.LEADER and replica.term == x.number
    elif x.what == "passive":
        right = replica.state is State.PASSIVE
    else:
        right = (replica.guaranteed_id if x.what == "knows" else replica.log.last_id) == x.number
    return "" if right else (
        f"server {x.server} is {replica.state.value} in term {replica.term}, its log ends at {replica.log.last_id}, "
        f"guaranteed up to {replica.guaranteed_id}"
    )


def _log(host: Host) -> list[int]:
    """The checksums of all entries of a server's log, on disk or not."""
    replica = host.running
    stored = host.store.read_entries(1, replica.log.stable_id, 1 << 40)
    later = [replica.log.entry(id) for id in range(replica.log.stable_id + 1, replica.log.last_id + 1)]
    return [entry.check for entry in [*stored, *later] if entry is not None]


def _lasts(logs: dict[int, list[int]]) -> str:
    return ", ".join(f"server {id} has {len(log)} entries" for id, log in logs.items())


_SETTLE_MAX = 1000
_OPERATOR = "operator"
#: Election timeouts for which a lenient replay waits for a deadline at most.
_PATIENCE_TIMEOUTS = 3


class Impossible(Exception):
    """Exception for a line that cannot happen in the present state."""


class Replay:
    """Replay of one scenario. ``strict``: an impossible line ends it; otherwise such lines are left out.

    ``patterns``: `Outcome.done` has deliveries as `Arrive`, not `Seen`. ``watchers``: functions that make watchers of
    the stage; ``on_line(at)`` is called before every line.
    """

    def __init__(
        self, scenario: Scenario, *, strict: bool = True, patterns: bool = False,
        watchers: Sequence[Callable[[Stage], Watcher]] = (), on_line: Callable[[int], None] = lambda at: None,
    ) -> None:
        s = self.scenario = scenario
        self._strict, self._patterns, self._on_line = strict, patterns, on_line
        self.stage = Stage(
            s.servers, s.seed, timers=s.times.timers(), settings=s.settings, auto_init=s.auto_init,
            priorities=s.priorities, limits=dict(s.limits), spares=s.spares,
        )
        checks = Checks(self.stage)
        self.history, self.safety, self.tables = checks.history, checks.safety, checks.tables
        self.stage.watchers += [make(self.stage) for make in watchers]
        self.stage.on_send, self.stage.on_reply = self._on_send, self._on_reply
        self.on_its_way: dict[tuple[int, int, str], list[OnItsWay]] = {}
        self._patience_us = _PATIENCE_TIMEOUTS * s.times.election_timeout_us
        self._at = -1
        self._last_us = 0
        self._doing: Line | None = None
        self._founding = False

    def run(self) -> Outcome:
        """Do all lines, up to the first check that fails. Returns the outcome."""
        outcome = Outcome(stage=self.stage)
        try:
            if self.scenario.founded:
                self.found()
            for at, line in enumerate(self.scenario.lines):
                outcome.at = self._at = at
                self._on_line(at)
                try:
                    outcome.done.append(self.line(line))
                except Impossible as why:
                    if self._strict:
                        outcome.problem = str(why)
                        break
            else:
                self.compare()
        except Broken as broken:
            outcome.invariant, outcome.detail = broken.invariant, broken.detail
        except CORE_ERRORS as error:
            outcome.invariant, outcome.detail = CRASHED, f"{type(error).__name__}: {error}"
        if outcome.invariant and outcome.at >= 0 and self._doing is not None:
            outcome.done.append(self._doing)
        outcome.steps = self.stage.steps
        outcome.guaranteed = len(self.safety.guaranteed)
        return outcome

    def compare(self) -> None:
        """Compare the session tables of all servers. Raises `Broken`."""
        for host in self.stage.hosts.values():
            self.tables.compare(host)

    # -- what the stage tells ---------------------------------------------------------------------------

    def _on_send(self, host: Host, envelope: Envelope) -> None:
        target = self.stage.hosts.get(envelope.target.id)
        if target is not None and (target.replica is not None or self._founding):
            key = (host.id, target.id, type(envelope.message).__name__)
            self.on_its_way.setdefault(key, []).append(OnItsWay(envelope))

    def _on_reply(self, host: Host, reply: Reply) -> None:
        if reply.origin != _OPERATOR:
            self.history.replied(reply)

    # -- lines ------------------------------------------------------------------------------------------

    def line(self, line: Line) -> Line:
        """Do one line. Returns the line as it was done. Raises `Impossible`, `Broken`, or any exception of the core."""
        what, stage = line.what, self.stage
        self._doing = None
        if self._strict:
            stage.now_us = max(stage.now_us, what.at_us)
        else:
            stage.now_us += max(0, what.at_us - self._last_us)
            self._last_us = what.at_us
        kind = type(what)
        id = what.target if isinstance(what, (Arrive, Seen)) else what.id
        if kind in _DOWN and stage.hosts[id].replica is not None:
            raise Impossible(f"server {id} is up")
        if kind in _UP and stage.hosts[id].replica is None:
            raise Impossible(f"server {id} is down")
        particular = _PARTICULAR.get(kind)
        done = self._plainly(what, line.more) if particular is None else particular(self, what, line.more)
        if kind in INPUTS and not line.more:
            stage.step(id)
        if self.scenario.prompt and stage.hosts[id].replica is not None:
            self._settle(stage.hosts[id])
        return done

    def _begin(self, what: Deed, more: bool) -> Line:
        """Note that a possible deed happens now. Returns the deed as a line."""
        self._doing = Line(what._replace(at_us=self.stage.now_us), more)
        return self._doing

    def _settle(self, host: Host) -> None:
        """Complete all writes and reads of a server, as a prompt disk does."""
        for _ in range(_SETTLE_MAX):
            if host.writes:
                self.stage.persist(host.id, len(host.writes))
            elif host.loads:
                self.stage.serve(host.id)
            else:
                return
            self.stage.step(host.id)
        raise Impossible(f"server {host.id} writes without end")

    # -- deeds, each done if it is possible; each returns its line ----------------------------------------

    def _plainly(self, x: Deed, more: bool) -> Line:
        done = self._begin(x, more)
        self.stage.perform(x)  # type: ignore[arg-type]
        return done

    def _crash(self, x: Crash, more: bool) -> Line:
        writes = len(self.stage.hosts[x.id].writes)
        if self._strict and x.kept > writes:
            raise Impossible(f"server {x.id} has {writes} writes under way")
        done = self._plainly(x._replace(kept=min(x.kept, writes)), more)
        for key in [key for key in self.on_its_way if key[1] == x.id]:
            del self.on_its_way[key]
        return done

    def _put_back(self, x: PutBack, more: bool) -> Line:
        if self.stage.hosts[x.id].laid_aside is None:
            raise Impossible(f"server {x.id} had no other disk before")
        return self._plainly(x, more)

    def _persist(self, x: Persist, more: bool) -> Line:
        writes = len(self.stage.hosts[x.id].writes)
        if not writes or (self._strict and x.count > writes):
            raise Impossible(f"server {x.id} has {writes or 'no'} writes under way")
        count = min(x.count or writes, writes)
        done = self._begin(x._replace(count=0 if count == writes else count), more)
        self.stage.persist(x.id, count)
        return done

    def _serve(self, x: Serve, more: bool) -> Line:
        if not self.stage.hosts[x.id].loads:
            raise Impossible(f"server {x.id} reads nothing from its disk")
        return self._plainly(x, more)

    def _ask(self, x: Ask, more: bool) -> Line:
        done = self._begin(x, more)
        request = with_origin(x.request, (party_of(x.request) or f"line {self._at}", self._at))
        self.history.asked(request)
        self.stage.ask(x.id, request)
        return done

    def _step(self, x: Step, more: bool) -> Line:
        if not self.stage.hosts[x.id].inbox:
            raise Impossible(f"nothing waits at server {x.id}")
        done = self._begin(x, more)
        if not self.stage.step(x.id):
            raise Impossible(f"what waits at server {x.id} may wait for more")
        return done

    def _tick(self, x: Tick, more: bool) -> Line:
        host = self.stage.hosts[x.id]
        if host.due_us > self.stage.now_us:
            when = f"comes at {host.due_us / 1000:.3f} ms" if host.due_us < NEVER_US else "never comes"
            if self._strict or host.due_us > self.stage.now_us + self._patience_us:
                raise Impossible(f"the deadline of server {x.id} {when}")
            self.stage.now_us = -(-host.due_us // 1000) * 1000  # tidy: a whole millisecond
        done = self._begin(x, more)
        self.stage.step(x.id)
        return done

    # -- messages ---------------------------------------------------------------------------------------

    def _arrive(self, x: Arrive | Seen, more: bool) -> Line:
        waiting = self.on_its_way.get((x.source, x.target, x.kind))
        if not waiting:
            raise Impossible(f"no {x.kind} is on its way from {x.source} to {x.target}")
        at = self._find(x, waiting) if isinstance(x, Arrive) else find_like(x, waiting)
        found = waiting[at]
        if self._patterns:
            fields, nth = pattern(waiting, at)
            what: Deed = Arrive(x.at_us, x.source, x.target, x.kind, fields, nth, x.copy)
        else:
            behind = len(waiting) - 1 - at
            what = Seen(x.at_us, x.source, x.target, x.kind, found.main, found.more, behind, x.copy)
        done = self._begin(what, more)
        if not x.copy:
            del waiting[at]
        self.stage.deliver(found.envelope, x.copy)
        return done

    def _find(self, x: Arrive, waiting: list[OnItsWay]) -> int:
        fitting = [at for at, each in enumerate(waiting) if each.fits(x.fields)]
        if len(fitting) < x.nth:
            there = "; ".join(str(each) for each in waiting[:5])
            way = f"on their way from {x.source} to {x.target}"
            raise Impossible(f"{len(fitting) or 'none'} of the {x.kind} {way} fits; there: {there}")
        return fitting[x.nth - 1]

    # -- the first start --------------------------------------------------------------------------------

    def found(self) -> None:
        """Boot and connect all founders at time 0, and deliver their messages until the first start is done."""
        stage = self.stage
        self._founding = True
        ids = [each.id for each in stage.configured]
        for id in ids:
            stage.boot(id)
        for id in ids:
            for peer in ids:
                if peer != id:
                    stage.link(id, peer, True)
            if id == 1 and (not self.scenario.auto_init or self.scenario.servers == 1):
                stage.ask(id, Initialise(_OPERATOR))
            stage.step(id)
        for _ in range(_SETTLE_MAX):
            for key in list(self.on_its_way):
                for each in self.on_its_way.pop(key):
                    if isinstance(each.envelope.message, START_ONLY):
                        stage.deliver(each.envelope)
                        stage.step(key[1])
            for host in stage.hosts.values():
                self._settle(host)
            if all(stage.hosts[id].store.boot().start.cluster for id in ids):
                break
        self._founding = False
        self.on_its_way.clear()


_DOWN = (Boot, Wipe, PutBack, Move)
_UP = (Crash, Persist, Serve, Link, Ask, Step, Tick, Arrive, Seen)
#: Kind of deed -> the method that does it, where `Stage.perform` is not enough.
_PARTICULAR: dict[type, Callable[..., Line]] = {
    Crash: Replay._crash, PutBack: Replay._put_back, Persist: Replay._persist, Serve: Replay._serve, Ask: Replay._ask,
    Step: Replay._step, Tick: Replay._tick, Arrive: Replay._arrive, Seen: Replay._arrive,
}


_WAIT = (Deliver, Persist, Serve, Link, Ask)


def recorded(stage: Stage, mutation: str = "") -> Scenario:
    """The scenario of all actions on ``stage``. Its deliveries are `Seen`, so it can be replayed, but not written."""
    assert stage.record is not None, "the world was made without record=True"
    return Scenario(
        len(stage.configured), stage.seed, Times.of(stage.timers), stage.settings,
        tuple(c.priority for c in stage.configured) if any(c.priority for c in stage.configured) else (),
        tuple(stage.limits.items()), stage.auto_init, mutation=mutation, lines=tuple(_lines(stage.record)),
        spares=len(stage.hosts) - len(stage.configured),
    )


def _lines(record: Sequence[Action]) -> list[Line]:
    lines: list[Line] = []
    waits: dict[int, int] = {}  # server -> how many inputs wait
    last: tuple[int, int] | None = None  # (server, time) of the input just before
    for action in record:
        if isinstance(action, Step):
            if not waits.get(action.id):
                lines.append(Line(Tick(action.at_us, action.id)))
            elif last == (action.id, action.at_us):
                lines[-1] = lines[-1]._replace(more=False)
            else:
                lines.append(Line(action))
            waits[action.id] = 0
            last = None
            continue
        id = action.envelope.target.id if isinstance(action, Deliver) else action.id
        last = None
        if isinstance(action, _WAIT):
            waits[id] = waits.get(id, 0) + 1
            last = (id, action.at_us)
        elif isinstance(action, (Boot, Crash)):
            waits[id] = 0
        lines.append(_line(action))
    return lines


def _line(action: Action) -> Line:
    if isinstance(action, Deliver):
        x = action.envelope
        kind = type(x.message).__name__
        main, more = main_fields(x.message), more_fields(x.message)
        seen = Seen(action.at_us, x.sender.id, x.target.id, kind, main, more, 0, action.again)
        return Line(seen, True)
    if isinstance(action, Ask):
        return Line(action._replace(request=_by_party(action.request)), True)
    return Line(action, isinstance(action, _WAIT))


def _by_party(request: Input) -> Input:
    """``request`` with its actor's number as the origin, where a world has (actor, number of the request)."""
    origin = getattr(request, "origin", "")
    return with_origin(request, str(origin[0]) if isinstance(origin, tuple) else "")
