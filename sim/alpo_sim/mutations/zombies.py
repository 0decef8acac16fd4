"""A plan for operators who ask a deposed leader that does not know it, and the mutations that show there (R25)."""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core.inputs import ChangeMember, ListSessions, MemberStep, Transfer
from alpo.core.members import Role
from alpo.core.messages import Room
from alpo.core.reads import Reads

from ..options import MS, SECOND, Load, Network, Options
from ..world import World
from .mistakes import Mistaken
from .mutation import Mutation, Patch, edit
from .worlds import planned


def asked_after_its_time(w: Mistaken) -> Iterator[int]:
    """A leader that has added a fourth server is cut off; the others take that out again, and much is appended. The old
    leader, whose clock is slow, is asked for its sessions, to add the fourth one, and to lead."""
    a, *others = (id for id in w.cast() if id != len(w.stage.hosts))
    d = len(w.stage.hosts)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.VOTER and w.role(d, d) is Role.VOTER, 3 * SECOND)
    yield 100 * MS
    term, leader = w.term(a), w.stage.hosts[a].replica
    assert leader is not None
    yield from w.waits(lambda: leader.guaranteed_id == leader.last_id)
    w.set_clock(a, 0.1, 0)
    w.fill(a, Room.LOW)  # it takes no appends: all that it holds is guaranteed
    w.alone(a)
    yield from w.waits(lambda: (now := w.leader()) is not None and now.term > term)
    new = next((id for id in (*others, d) if w.leads(id, term)), d)
    w.change(new, MemberStep.REMOVE, d)
    yield from w.waits(lambda: w.role(new, d) is Role.GONE)
    yield 300 * MS
    ask, address = w.asker.ask, w.stage.hosts[d].address
    ask(a, "sessions", ListSessions)
    ask(a, "done already", lambda o: ChangeMember(o, MemberStep.ADD, d, address, 0))
    ask(a, "to lead", lambda o: Transfer(o, a))
    w.go(a)
    yield SECOND
    w.fill(a, Room.PLENTY)


def _at_once(kind: str) -> tuple[Patch, ...]:
    """What waits for a round, of that kind, is judged as it comes."""
    return (edit(Reads, "ask", ("self._new.append(request)", (
        f"(r.keeping.judge if isinstance(request, {kind}) else self._new.append)(request)"
    ))),)


def _world(options: Options) -> World:
    return Mistaken(options, asked_after_its_time)  # type: ignore[arg-type]


_SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)
_CALM = planned(network=_SOUND, load=Load(3, 0, 40 * MS), seconds=6, spares=1)

ZOMBIES = (
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
