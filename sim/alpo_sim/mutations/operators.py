"""Mutations of what operators ask for: outcomes, settings, cursors (R21, rules.md#settings, rules.md#cursors), and a
deposed leader's answers (R25)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from alpo.core.cleaning import Cleaning
from alpo.core.entries import random_client
from alpo.core.machine.journal import JournalledSessions
from alpo.core.members import Role
from alpo.core.messages import Room
from alpo.core.operator_requests import OperatorRequests
from alpo.core.replica import Replica
from alpo.core.requests import ChangeMember, ListSessions, MemberStep, Transfer
from alpo.core.serving import Reads

from ..host import WALL_ZERO_MS
from ..options import MS, SECOND, Load, Options
from ..world import World
from .fault_plans import slow_zombie
from .mutation import Mutation, Patch, edit
from .operator_mistakes import Mistaken
from .planned import repeated
from .worlds import CROWD, READING, SLOW, SOUND, planned, world

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
