"""Replays a scenario on the core alone: a stage and the checks, nobody who decides anything.

Laws:

* Nothing is random but what the replicas draw from their own seeds; the same scenario gives the same outcome.
* Every message that was sent stays available until it is delivered or its target's process ends.
* Time never goes back: a line whose time has passed happens now. A lenient replay keeps the time between lines instead,
  and waits for deadlines: what is left of a schedule stays together, however much of it was left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from alpo.core.inputs import Initialise
from alpo.core.messages import START_ONLY, Envelope
from alpo.core.ready import Reply

from .actions import Ask, Boot, Clock, Configure, Crash, Join, Link, Move, Persist, PutBack, Serve, Step, Wipe
from .broken import Broken
from .checks.together import Checks
from .host import NEVER_US, Host
from .on_its_way import OnItsWay, find_like, pattern
from .outcome import Outcome
from .scenario import CORE_ERRORS, CRASHED, Arrive, Deed, Line, Scenario, Seen, Tick, party_of, with_origin
from .stage import Stage, Watcher

_SETTLE_MAX = 1000
_OPERATOR = "operator"
#: So many election timeouts a lenient replay waits for a deadline, at most.
_PATIENCE_TIMEOUTS = 3


class Impossible(Exception):
    """A line that cannot happen as things stand."""


class Replay:
    """``strict``: a line that is impossible ends it; else it is left out. ``patterns``: note deliveries as `Arrive`.

    ``watchers`` are made for the stage and see everything; ``on_line(at)`` is called before every line.
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
        """To the end, or to the first check that fails."""
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
        """What must be equal once all has happened. Raises `Broken`."""
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
        """Do it. Returns it as it was done. Raises `Impossible`, `Broken`, and what the core raises."""
        what, stage = line.what, self.stage
        self._doing = None
        if self._strict:
            stage.now_us = max(stage.now_us, what.at_us)
        else:
            stage.now_us += max(0, what.at_us - self._last_us)
            self._last_us = what.at_us
        kind = type(what)
        id = what.target if isinstance(what, (Arrive, Seen)) else what.id
        done = _DO[kind](self, what, line.more)
        if kind in _TAKEN and not line.more:
            stage.step(id)
        if self.scenario.prompt and stage.hosts[id].replica is not None:
            self._settle(stage.hosts[id])
        return done

    def _begin(self, what: Deed, more: bool) -> Line:
        """It is possible, and about to happen now."""
        self._doing = Line(what._replace(at_us=self.stage.now_us), more)
        return self._doing

    def _settle(self, host: Host) -> None:
        """A prompt disk."""
        for _ in range(_SETTLE_MAX):
            if host.writes:
                self.stage.persist(host.id, len(host.writes))
            elif host.loads:
                self.stage.serve(host.id)
            else:
                return
            self.stage.step(host.id)
        raise Impossible(f"server {host.id} writes without end")

    def _up(self, id: int) -> Host:
        host = self.stage.hosts[id]
        if host.replica is None:
            raise Impossible(f"server {id} is down")
        return host

    def _down(self, id: int) -> None:
        if self.stage.hosts[id].replica is not None:
            raise Impossible(f"server {id} is up")

    def _boot(self, x: Boot, more: bool) -> Line:
        self._down(x.id)
        done = self._begin(x, more)
        self.stage.boot(x.id)
        return done

    def _crash(self, x: Crash, more: bool) -> Line:
        host = self._up(x.id)
        if self._strict and x.kept > len(host.writes):
            raise Impossible(f"server {x.id} has {len(host.writes)} writes under way")
        done = self._begin(x._replace(kept=min(x.kept, len(host.writes))), more)  # what the disk had by then
        self.stage.crash(x.id, min(x.kept, len(host.writes)))
        for key in [key for key in self.on_its_way if key[1] == x.id]:
            del self.on_its_way[key]
        return done

    def _wipe(self, x: Wipe, more: bool) -> Line:
        self._down(x.id)
        done = self._begin(x, more)
        self.stage.wipe(x.id)
        return done

    def _put_back(self, x: PutBack, more: bool) -> Line:
        self._down(x.id)
        if self.stage.hosts[x.id].laid_aside is None:
            raise Impossible(f"server {x.id} had no other disk before")
        done = self._begin(x, more)
        self.stage.put_back(x.id)
        return done

    def _join(self, x: Join, more: bool) -> Line:
        done = self._begin(x, more)
        self.stage.join(x.id)
        return done

    def _move(self, x: Move, more: bool) -> Line:
        self._down(x.id)
        done = self._begin(x, more)
        self.stage.move(x.id)
        return done

    def _configure(self, x: Configure, more: bool) -> Line:
        done = self._begin(x, more)
        self.stage.configure(x.id, x.members)
        return done

    def _persist(self, x: Persist, more: bool) -> Line:
        host = self._up(x.id)
        if not host.writes or (self._strict and x.count > len(host.writes)):
            raise Impossible(f"server {x.id} has {len(host.writes) or 'no'} writes under way")
        count = min(x.count or len(host.writes), len(host.writes))
        done = self._begin(x._replace(count=0 if count == len(host.writes) else count), more)
        self.stage.persist(x.id, count)
        return done

    def _serve(self, x: Serve, more: bool) -> Line:
        if not self._up(x.id).loads:
            raise Impossible(f"server {x.id} reads nothing from its disk")
        done = self._begin(x, more)
        self.stage.serve(x.id)
        return done

    def _link(self, x: Link, more: bool) -> Line:
        self._up(x.id)
        done = self._begin(x, more)
        self.stage.link(x.id, x.peer, x.up)
        return done

    def _ask(self, x: Ask, more: bool) -> Line:
        self._up(x.id)
        done = self._begin(x, more)
        request = with_origin(x.request, (party_of(x.request) or f"line {self._at}", self._at))
        self.history.asked(request)
        self.stage.ask(x.id, request)
        return done

    def _step(self, x: Step, more: bool) -> Line:
        if not self._up(x.id).inbox:
            raise Impossible(f"nothing waits at server {x.id}")
        done = self._begin(x, more)
        if not self.stage.step(x.id):
            raise Impossible(f"what waits at server {x.id} may wait for more")
        return done

    def _tick(self, x: Tick, more: bool) -> Line:
        host = self._up(x.id)
        if host.due_us > self.stage.now_us:
            when = f"comes at {host.due_us / 1000:.3f} ms" if host.due_us < NEVER_US else "never comes"
            if self._strict or host.due_us > self.stage.now_us + self._patience_us:
                raise Impossible(f"the deadline of server {x.id} {when}")
            self.stage.now_us = -(-host.due_us // 1000) * 1000  # tidy: a whole millisecond
        done = self._begin(x, more)
        self.stage.step(x.id)
        return done

    def _clock(self, x: Clock, more: bool) -> Line:
        done = self._begin(x, more)
        self.stage.set_clock(x.id, x.rate, x.jump_ms)
        return done

    # -- messages ---------------------------------------------------------------------------------------

    def _arrive(self, x: Arrive | Seen, more: bool) -> Line:
        self._up(x.target)
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
        """All servers up, connected and through their first start, at time 0."""
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


_TAKEN = (Persist, Serve, Link, Ask, Arrive, Seen)
_DO: dict[type, Callable[..., Line]] = {
    Boot: Replay._boot, Crash: Replay._crash, Wipe: Replay._wipe, PutBack: Replay._put_back, Join: Replay._join,
    Move: Replay._move, Configure: Replay._configure,
    Persist: Replay._persist, Serve: Replay._serve, Link: Replay._link, Ask: Replay._ask, Step: Replay._step,
    Tick: Replay._tick, Clock: Replay._clock, Arrive: Replay._arrive, Seen: Replay._arrive,
}
