"""Worlds in which operators ask for what cannot be, ask twice, and change their minds. No mutation shows in them: that
every server answers and goes on, and that what it answered is right, is what the checks of every world see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from alpo.core.cursors import CURSORS_MAX
from alpo.core.inputs import (
    ChangeMember,
    ChangeSettings,
    Initialise,
    Input,
    MemberStep,
    Outcome,
    SetCursor,
    ShowSettings,
    Stop,
    Transfer,
)
from alpo.core.members import Role, StartStatus
from alpo.core.messages import BaseAnswer, BasePart
from alpo.core.ready import Refused, Reply

from ..options import MS, SECOND, Network, Options
from ..party import Party
from ..world import World
from .changing import Changing
from .directed import Plan
from .worlds import BUSY, planned


class Asker(Party):
    """``told``: what was answered last, by what was asked: a code of a refusal, or the kind of reply."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clients)
        self.told: dict[str, str] = {}
        self._asked_as: dict[tuple[int, int], str] = {}

    def ask(self, at: int, what: str, make: Callable[[tuple[int, int]], Input]) -> None:
        """Server ``at``; what it is told together it takes in one step."""
        origin = self.origin()
        self._asked_as[origin] = what
        request, world = make(origin), self.clients.world
        world.history.asked(request)
        world.stage.ask(at, request)

    def heard(self, server: int, reply: Reply) -> None:
        origin: Any = reply.origin
        self.told[self._asked_as[origin]] = reply.code.name if isinstance(reply, Refused) else type(reply).__name__


class Mistaken(Changing):
    """Goes through its plan once, by the hands of ``asker``; nobody's requests and answers are lost."""

    def __init__(self, options: Options, plan: Plan) -> None:
        super().__init__(options, plan)
        self.asker = Asker(self)

    def _round(self) -> Iterator[int]:
        self.clients.calm = True
        return super()._round()

    def go(self, id: int) -> None:
        """It takes what it was asked."""
        self.poke(self.stage.hosts[id])


def what_cannot_be(w: Mistaken) -> Iterator[int]:
    """A leader is asked for changes that it must refuse; one more cursor than there may be."""
    a, b, *_ = w.cast()
    d, ask, leader = len(w.stage.hosts), w.asker.ask, w.stage.hosts[a].replica
    assert leader is not None
    yield from w.waits(lambda: leader.sessions.names >= 2, 3 * SECOND)
    window = leader.settings.window
    ask(a, "a stranger goes", lambda o: ChangeMember(o, MemberStep.REMOVE, 77, "", 0))
    ask(a, "two at one address", lambda o: ChangeMember(o, MemberStep.ADD, d, w.stage.hosts[b].address, 0))
    ask(a, "no serial", lambda o: Outcome(o, "someone", 0))
    ask(a, "no such setting", lambda o: ChangeSettings(o, (("colour", 1, 2),)))
    ask(a, "a setting too large", lambda o: ChangeSettings(o, (("window", window, 1 << 40),)))
    ask(a, "fewer names than open", lambda o: ChangeSettings(o, (("names_max", leader.settings.names_max, 1),)))
    ask(a, "a cursor without a name", lambda o: SetCursor(o, "", 1))
    ask(a, "a cursor that is no text", lambda o: SetCursor(o, "\udc80", 1))
    for number in range(CURSORS_MAX + 1):
        ask(a, f"cursor {number}", lambda o, name=f"reader-{number}": SetCursor(o, name, 1))  # type: ignore[misc]
    w.go(a)
    yield 200 * MS


def a_server_alone(w: Mistaken) -> Iterator[int]:
    """A cluster of one is asked to go without its only server; then that is stopped."""
    (a,) = w.cast()
    w.asker.ask(a, "the last one goes", lambda o: ChangeMember(o, MemberStep.REMOVE, a, "", 0))
    w.go(a)
    yield 50 * MS
    w.ask(a, Stop())
    yield 3 * SECOND


def started_wrongly(w: Mistaken) -> Iterator[int]:
    """A server that waits to be added is told to found a cluster; then it is started as if it were a founder."""
    d = len(w.stage.hosts)
    host = w.stage.hosts[d]
    w.boot(d)
    w.asker.ask(d, "to join and to found", Initialise)
    w.go(d)
    yield 100 * MS
    w.crash(d)
    host.joining = False
    w.boot(d)
    yield 500 * MS
    w.crash(d)
    host.joining = True
    yield 100 * MS


def of_two_minds(w: Mistaken) -> Iterator[int]:
    """A leader is asked for its settings, to hand over, to stop, and to stop: it hands over, and judges no more."""
    a, b, *_ = w.cast()
    w.asker.ask(a, "settings of one who leaves", ShowSettings)
    w.asker.ask(a, "a handover broken off", lambda o: Transfer(o, b))
    for _ in range(2):
        w.stage.ask(a, Stop())
    w.go(a)
    yield 3 * SECOND


def handed_over_to_nobody(w: Mistaken) -> Iterator[int]:
    """A leader is cut off as it begins to hand over, and hears of no other."""
    a, b, *_ = w.cast()
    w.alone(a)
    w.asker.ask(a, "a handover in vain", lambda o: Transfer(o, b))
    w.go(a)
    yield 6 * SECOND


def left_alone(w: Mistaken) -> Iterator[int]:
    """A leader is cut off with appends in flight, and told to stop: it stays for the others' sake, but not for ever."""
    a, *_ = w.cast()
    w.alone(a)
    yield 50 * MS
    w.ask(a, Stop())
    yield 6 * SECOND


def taken_out_while_brought_up(w: Mistaken) -> Iterator[int]:
    """A newcomer is taken out while its base is on the way; what it answers comes long after, and so do the base's
    parts, of a reign that has ended."""
    a, *_ = w.cast()
    d = len(w.stage.hosts)
    w.keeps = lambda x: isinstance(x.message, BasePart | BaseAnswer)
    w.drops = lambda x: isinstance(x.message, BaseAnswer)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: any(isinstance(x.message, BaseAnswer) for x in w.kept), 3 * SECOND)
    w.change(a, MemberStep.REMOVE, d)
    yield from w.waits(lambda: w.role(a, d) is Role.GONE)
    answers = [x for x in w.kept if isinstance(x.message, BaseAnswer)]
    parts = [x for x in w.kept if isinstance(x.message, BasePart)]
    for envelope in answers:
        w.stage.deliver(envelope, True)
        w.go(a)
    term = w.term(a)
    w.drops = lambda x: False
    w.alone(a)
    yield from w.waits(lambda: any(w.leads(id, term) for id in w.links.ids), 2 * SECOND)
    yield 300 * MS
    w.set_cuts([])
    if w.up(d):
        for envelope in parts:
            w.stage.deliver(envelope, True)
            w.go(d)
    yield 300 * MS


class Impatient(World):
    """The operator's command to found a cluster comes again before its first effect is on disk."""

    def run(self) -> None:
        self.initialised = True
        self.after(SECOND, self._initialise, self.links.ids[0])
        super().run()

    def _initialise(self, id: int) -> None:
        super()._initialise(id)
        if self.up(id):
            self.after(200, self._again, id)

    def _again(self, id: int) -> None:
        if self.up(id):
            self.ask(id, Initialise("operator"))


class SecondThoughts(World):
    """A founder has its map on disk, and is started again with another list, and then with the right one (R29)."""

    def run(self) -> None:
        for id in self.links.ids:
            self.boot(id)
        self.run_until(2 * SECOND, lambda: bool(self._starting()))
        for id in self._starting()[:1]:
            self.crash(id)
            self.stage.configure(id, [(c.id, c.priority + 1) for c in self.stage.configured])
            self.boot(id)
            self.run_until(self.now_us + 300 * MS)
            self.stage.configure(id, ())
            self.crash(id)
            self.boot(id)
        super().run()

    def _starting(self) -> list[int]:
        return [
            host.id for host in self.stage.hosts.values() if host.store.boot().start.status is StartStatus.STARTING
        ]


def _mistaken(plan: Callable[[Mistaken], Iterator[int]]) -> Callable[[Options], World]:
    return lambda options: Mistaken(options, plan)  # type: ignore[arg-type]


_CALM: dict[str, Any] = {"network": Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False), "load": BUSY, "seconds": 4}
_THREE, _ONE = planned(**_CALM), planned(**_CALM, servers=1, auto_init=False)
_LONG = planned(**(_CALM | {"seconds": 8}))

#: By name: the options of a seed, and what makes a world of them.
MISTAKES: dict[str, tuple[Callable[[int], Options], Callable[[Options], World]]] = {
    "what cannot be": (planned(**_CALM, spares=1), _mistaken(what_cannot_be)),
    "a server alone": (_ONE, _mistaken(a_server_alone)),
    "started wrongly": (planned(**_CALM, spares=1), _mistaken(started_wrongly)),
    "of two minds": (_THREE, _mistaken(of_two_minds)),
    "handed over to nobody": (_LONG, _mistaken(handed_over_to_nobody)),
    "left alone": (_LONG, _mistaken(left_alone)),
    "taken out while brought up": (planned(**_CALM, spares=1), _mistaken(taken_out_while_brought_up)),
    "founded twice": (_ONE, Impatient),
    "second thoughts": (_THREE, SecondThoughts),
}
