"""Mutations of what operators ask for: outcomes, settings, cursors (R21, rules.md#settings, rules.md#cursors), and of a
deposed leader's answers (R25).

In the worlds of `MISTAKES` operators make impossible requests, ask twice, and change their minds. They need no
mutation: the checks of every world see whether servers answer correctly, and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from alpo.core.cleaning import Cleaning
from alpo.core.entries import random_client
from alpo.core.machine.cursors import CURSORS_MAX
from alpo.core.machine.journal import JournalledSessions
from alpo.core.members import Role, StartStatus
from alpo.core.messages import Room, SnapshotAnswer, SnapshotPart
from alpo.core.operator_requests import OperatorRequests
from alpo.core.ready import Input, Stop
from alpo.core.replica import Replica
from alpo.core.requests import (
    ChangeMember,
    ChangeSettings,
    Initialise,
    ListSessions,
    MemberStep,
    Outcome,
    Refused,
    Reply,
    SetCursor,
    ShowSettings,
    Transfer,
)
from alpo.core.serving import Reads

from ..clients import Actor
from ..host import WALL_ZERO_MS
from ..options import MS, SECOND, Load, Options
from ..world import World
from .fault_plans import slow_zombie
from .mutation import Mutation, Patch, edit
from .worlds import BUSY, CROWD, READING, SLOW, SOUND, Once, Plan, planned, repeated, world


class Asker(Actor):
    """Operator that asks as a plan says. ``told``: name of a question -> the last answer: a refusal's code, or the
    reply's type."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clients)
        self.told: dict[str, str] = {}
        self._asked_as: dict[tuple[int, int], str] = {}

    def ask(self, at: int, what: str, make: Callable[[tuple[int, int]], Input]) -> None:
        """Send server ``at`` a request, for its next step. ``what``: the question's name in ``told``."""
        origin = self.origin()
        self._asked_as[origin] = what
        request, cluster = make(origin), self.clients.cluster
        cluster.history.asked(request)
        cluster.stage.ask(at, request)

    def heard(self, server: int, reply: Reply) -> None:
        origin: Any = reply.origin
        self.told[self._asked_as[origin]] = reply.code.name if isinstance(reply, Refused) else type(reply).__name__


class Mistaken(Once):
    """World that goes through its plan once, with an operator, ``asker``; no request or answer is lost."""

    def __init__(self, options: Options, plan: Plan) -> None:
        super().__init__(options, plan)
        self.asker = Asker(self)

    def _round(self) -> Iterator[int]:
        self.clients.calm = True
        return super()._round()

    def go(self, id: int) -> None:
        """Let a server take its waiting requests."""
        self.poke(self.stage.hosts[id])


def what_cannot_be(w: Mistaken) -> Iterator[int]:
    """A leader is asked for changes that it must refuse, and for one more cursor than there may be."""
    a, b, *_ = w.cast()
    d, ask, leader = len(w.stage.hosts), w.asker.ask, w.stage.hosts[a].running
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
    """A leader is asked in one step for its settings, to hand over, and twice to stop: it hands over, and answers
    nothing more."""
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
    """A leader is cut off with appends in flight, and told to stop: it stays, to hand over, but not for ever."""
    a, *_ = w.cast()
    w.alone(a)
    yield 50 * MS
    w.ask(a, Stop())
    yield 6 * SECOND


def taken_out_while_brought_up(w: Mistaken) -> Iterator[int]:
    """A newcomer is removed while its snapshot is on the way; its answers come long after, and so do the snapshot's
    parts, of a reign that has ended."""
    a, *_ = w.cast()
    d = len(w.stage.hosts)
    w.keeps = lambda x: isinstance(x.message, SnapshotPart | SnapshotAnswer)
    w.drops = lambda x: isinstance(x.message, SnapshotAnswer)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: any(isinstance(x.message, SnapshotAnswer) for x in w.kept), 3 * SECOND)
    w.change(a, MemberStep.REMOVE, d)
    yield from w.waits(lambda: w.role(a, d) is Role.GONE)
    answers = [x for x in w.kept if isinstance(x.message, SnapshotAnswer)]
    parts = [x for x in w.kept if isinstance(x.message, SnapshotPart)]
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
    """A world in which the command to found a cluster comes again before the first one's effect is on disk."""

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
    """A world in which a founder that has its map on disk starts again with another list, and then with the right one
    (R29)."""

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


_UNDISTURBED: dict[str, Any] = {"network": SOUND, "load": BUSY, "seconds": 4}
_THREE, _ONE = planned(**_UNDISTURBED), planned(**_UNDISTURBED, servers=1, auto_init=False)
_LONG = planned(**(_UNDISTURBED | {"seconds": 8}))

#: Name -> (the options for a seed, the function that makes a world of them).
MISTAKES: dict[str, tuple[Callable[[int], Options], Callable[[Options], World]]] = {
    "what cannot be": (planned(**_UNDISTURBED, spares=1), _mistaken(what_cannot_be)),
    "a server alone": (_ONE, _mistaken(a_server_alone)),
    "started wrongly": (planned(**_UNDISTURBED, spares=1), _mistaken(started_wrongly)),
    "of two minds": (_THREE, _mistaken(of_two_minds)),
    "handed over to nobody": (_LONG, _mistaken(handed_over_to_nobody)),
    "left alone": (_LONG, _mistaken(left_alone)),
    "taken out while brought up": (planned(**_UNDISTURBED, spares=1), _mistaken(taken_out_while_brought_up)),
    "founded twice": (_ONE, Impatient),
    "second thoughts": (_THREE, SecondThoughts),
}


SETTING = replace(CROWD, keepers=4, keep=("settings",))
READERS = replace(CROWD, keepers=4, keep=("cursor",))


def asked_after_its_time(w: Mistaken) -> Iterator[int]:
    """A leader that has added a fourth server is cut off; the others remove the fourth again, and there is an append.
    Then the old leader, whose clock is slow, is asked for its sessions, to add the fourth one, and to lead."""
    a, *others = (id for id in w.cast() if id != len(w.stage.hosts))
    d = len(w.stage.hosts)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.VOTER and w.role(d, d) is Role.VOTER, 3 * SECOND)
    yield 100 * MS
    term, leader = w.term(a), w.stage.hosts[a].running
    for id in (*others, d):  # the leader then takes no appends and has no heir, and all that it holds is guaranteed
        w.fill(id, Room.LOW)
    assert leader.leadership is not None
    peers = leader.leadership.peers.values()
    yield from w.waits(lambda: all(peer.room is Room.LOW for peer in peers) and leader.guaranteed_id == leader.last_id)
    w.fill(a, Room.LOW)
    w.set_clock(a, 0.1, 0)
    w.alone(a)
    for id in (*others, d):
        w.fill(id, Room.PLENTY)
    yield from w.waits(lambda: (now := w.leader()) is not None and now.term > term)
    new = next((id for id in (*others, d) if w.leads(id, term)), d)
    w.change(new, MemberStep.REMOVE, d)
    yield from w.waits(lambda: w.role(new, d) is Role.GONE)
    w.append(new, random_client(WALL_ZERO_MS, 1), 1, b"after the removal")
    yield 300 * MS
    ask, address = w.asker.ask, w.stage.hosts[d].address
    ask(a, "sessions", ListSessions)
    ask(a, "done already", lambda o: ChangeMember(o, MemberStep.ADD, d, address, 0))
    ask(a, "to lead", lambda o: Transfer(o, a))
    w.go(a)
    yield SECOND
    w.fill(a, Room.PLENTY)


def _at_once(kind: str) -> tuple[Patch, ...]:
    """Patches by which requests of ``kind`` are answered at once, without a read round."""
    return (edit(Reads, "ask", ("self._new.append(request)", (
        f"(self._judge if isinstance(request, {kind}) else self._new.append)(request)"
    ))),)


def _world(options: Options) -> World:
    return Mistaken(options, asked_after_its_time)  # type: ignore[arg-type]


_CALM = planned(network=SOUND, load=Load(3, 0, 40 * MS), seconds=6, spares=1)

OPERATORS = (
    Mutation(
        "P40", "R25", "a leader tells outcomes without a read round",
        "a zombie says of an append that was acknowledged that it is not in the log",
        (edit(Reads, "ask", ("self._new.append(request)", (
            "(self._judge if isinstance(request, Outcome) else self._new.append)(request)"
        ))),),
        planned(load=replace(READING, writers=1, readers=0, keepers=8, keep=("outcome",))), ("outcome",),
        makes=repeated(slow_zombie),
    ),
    Mutation(
        "P41", "R21", "an outcome is told from the head of the log",
        "an append is said to be at an LSN, and is lost with its leader",
        (edit(OperatorRequests, "_outcome", ("verdict.rests_on, taken=False", "0, taken=False")),),
        world(load=replace(CROWD, keepers=4, keep=("outcome",))), ("outcome",),
    ),
    Mutation(
        "P42", "settings", "a change of settings is not undone by an expunge",
        "two servers forget at different serials: a retry is appended twice, or told otherwise by the next leader",
        (edit(JournalledSessions, "expunge", ("self._settings.expunge(from_id)", "pass")),),
        world(load=replace(SETTING, keepers=2), network=SLOW, faults=("isolate", "cut")), ("equal tables",),
    ),
    Mutation(
        "P43", "settings", "a change of settings does not compare what it changes with what its asker believes",
        "of two operators one undoes in silence what the other did",
        (edit(OperatorRequests, "_change_settings", ("if now[name] not in (old, wanted)", "if False")),),
        world(load=SETTING), ("settings",),
    ),
    Mutation(
        "P44", "settings", "the settings are told as they are at the head of the log",
        "an operator is told of a change that is lost with its leader",
        (edit(OperatorRequests, "_show_settings", ("r.log.last_id, taken=False", "0, taken=False")),),
        world(load=SETTING), ("settings",),
    ),
    Mutation(
        "P45", "cursors", "a server cleans whatever a cursor says",
        "a reader finds that payloads are gone that it had kept",
        (
            edit(Cleaning, "clean", ("if hold_lsn is not None and request.next_lsn > hold_lsn:", "if False:")),
            edit(Cleaning, "take_base", ("(hold_lsn is not None and", "(False and")),
        ),
        world(load=READERS, clean_every_us=200 * MS), ("cursors",),
    ),
    Mutation(
        "P46", "cursors", "what happened to cursors is not undone by an expunge",
        "two servers keep different payloads for a reader",
        (edit(Replica, "expunge", ("in self._made", "in (self.members, self.trims)")),),
        world(load=READERS, network=SLOW, faults=("isolate", "cut")), ("cursors",),
    ),
    Mutation(
        "P47", "cursors", "the cursors are told as they are at the head of the log",
        "a reader is told of a cursor that is lost with its leader",
        (edit(OperatorRequests, "_list_cursors", ("r.log.last_id, taken=False", "0, taken=False")),),
        world(load=READERS), ("cursors",),
    ),
    Mutation(
        "P82", "R25", "the sessions are listed without a round", "an operator sees sessions as they were long before",
        _at_once("ListSessions"), _CALM, ("linearizable",), makes=_world,
    ),
    Mutation(
        "P83", "R25, R27", "a change of the member list is said to be done already without a round",
        "a server is said to be a member that was taken out since",
        _at_once("ChangeMember"), _CALM, ("linearizable",), makes=_world,
    ),
    Mutation(
        "P84", "R25, R28", "a leader says without a round that it leads",
        "an operator is told that a deposed leader leads",
        _at_once("Transfer"), _CALM, ("linearizable",), makes=_world,
    ),
)
