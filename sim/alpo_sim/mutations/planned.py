"""Worlds whose faults follow a plan; all else is random as in other worlds.

A plan is a generator over the world that yields microseconds to wait. Its faults are such as a random world may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alpo.core.inputs import Stop
from alpo.core.members import Role
from alpo.core.messages import Envelope
from alpo.core.ranks import State
from alpo.core.requests import AppendRun, ChangeMember, MemberStep, Reply, Transfer

from ..checks import Broken
from ..clients import Actor
from ..host import Host
from ..options import MS, SECOND, Options
from ..world import LEADER_WITHIN_TIMEOUTS, World

Plan = Callable[["Repeated"], Iterator[int]]


class Repeated(World):
    """World whose plan begins again whenever it ends, from a whole network with all servers up and a leader."""

    def __init__(self, options: Options, plan: Plan) -> None:
        super().__init__(options)
        self._plan = plan
        self._going = self._round()

    def run(self) -> None:
        self.at(SECOND, self._advance)
        super().run()

    def _round(self) -> Iterator[int]:
        while True:
            for id in self.stage.hosts:
                self.stalled_until[id] = 0
                self.set_clock(id, 1.0, 0)
                self.boot(id)
            self.set_cuts([])
            yield 200 * MS
            yield from self.waits(lambda: self.leader() is not None)
            yield from self._plan(self)

    def _advance(self) -> None:
        wait_us = next(self._going)
        if self.now_us + wait_us < self.options.seconds * SECOND:
            self.after(wait_us, self._advance)

    # -- what plans are made of -------------------------------------------------------------------------

    def waits(self, condition: Callable[[], bool], at_most_us: int = SECOND) -> Iterator[int]:
        """Yield waits until ``condition()`` is true, or ``at_most_us`` have passed."""
        until_us = self.now_us + at_most_us
        while not condition() and self.now_us < until_us:
            yield 100

    def cast(self) -> list[int]:
        """The ids of all servers: the leader's, then the others in random order."""
        leader = self.leader()
        others = [id for id in self.stage.hosts if leader is None or id != leader.me.id]
        self.rng.shuffle(others)
        return ([leader.me.id] if leader is not None else []) + others

    def only(self, *pairs: tuple[int, int]) -> None:
        """Cut all links but those (source, target)."""
        ids = self.links.ids
        self.set_cuts([(a, b) for a in ids for b in ids if a != b and (a, b) not in pairs])

    def alone(self, *ids: int) -> None:
        """Cut all links to and from these servers, and no others."""
        all_ids = self.links.ids
        self.set_cuts([(a, b) for a in all_ids for b in all_ids if a != b and (a in ids or b in ids)])

    def stall(self, id: int, span_us: int) -> None:
        """Let a server's disk stand still for ``span_us``."""
        self.stalled_until[id] = self.now_us + span_us

    def leads(self, id: int, term: int = 0) -> bool:
        replica = self.stage.hosts[id].replica
        return replica is not None and replica.state is State.LEADER and replica.term > term

    def stands(self, id: int) -> bool:
        replica = self.stage.hosts[id].replica
        return replica is not None and replica.state is State.CANDIDATE

    def vote(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.vote if replica is not None else 0

    def demands_leader(self) -> Iterator[int]:
        """Demand a leader within the bound of the demands at a world's end. Yields waits. Raises `Broken`."""
        began_us, bound_us = self.now_us, LEADER_WITHIN_TIMEOUTS * self.options.election_timeout_us + SECOND
        yield from self.waits(lambda: self.leader() is not None, bound_us)
        if self.now_us - began_us >= bound_us:
            raise Broken("no progress", f"no leader for {bound_us / SECOND:.1f} s, with a majority connected")

    def demands_successor(self, old: int) -> Iterator[int]:
        """Stop ``old`` if it leads, and demand that another leads within an election timeout. Raises `Broken`."""
        if not self.leads(old):
            return
        self.ask(old, Stop())
        began_us, bound_us = self.now_us, self.options.election_timeout_us

        def succeeded() -> bool:
            leader = self.leader()
            return leader is not None and leader.me.id != old

        yield from self.waits(succeeded, bound_us)
        if not succeeded():
            raise Broken("no progress", f"leader {old} was told to stop {(self.now_us - began_us) / SECOND:.2f} s ago, "
                         "and nobody has succeeded it")
        yield from self.waits(lambda: not self.up(old), 6 * SECOND)  # the old one leaves once its successor has begun

    def term(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.term if replica is not None else 0

    def last_id(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.last_id if replica is not None else 0

    def mark_id(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.guaranteed_id if replica is not None else 0

    def some_us(self, low_ms: int, high_ms: int) -> int:
        """A random time, in microseconds, between two in milliseconds."""
        return self.rng.randrange(low_ms * MS, high_ms * MS)


def repeated(plan: Plan) -> Callable[[Options], World]:
    """A function that makes a world from options; the world repeats ``plan``."""
    return lambda options: Repeated(options, plan)


class _Asker(Actor):
    """Operator and client of a plan, which looks at the servers, not at replies."""

    def heard(self, server: int, reply: Reply) -> None:
        return


class Once(Repeated):
    """World that goes through its plan once.

    ``drops(envelope)``: true for messages that are lost; ``keeps(envelope)``: true for those copied into ``kept``.
    """

    def __init__(self, options: Options, plan: Plan) -> None:
        super().__init__(options, plan)
        self.drops: Callable[[Envelope], bool] = lambda envelope: False
        self.keeps: Callable[[Envelope], bool] = lambda envelope: False
        self.kept: list[Envelope] = []
        self._asker: _Asker | None = None

    def _on_send(self, host: Host, envelope: Envelope) -> None:
        self._kept = self.keeps(envelope)
        if self._kept:
            self.kept.append(envelope)
        if not self.drops(envelope):
            super()._on_send(host, envelope)

    def _round(self) -> Iterator[int]:
        yield from self.waits(lambda: self.leader() is not None, 5 * SECOND)
        if self.leader() is not None:
            yield from self._plan(self)
            self.drops = self.keeps = lambda envelope: False
        while True:
            yield SECOND

    def change(self, at: int, step: MemberStep, id: int) -> None:
        """Ask server ``at`` for a change of member ``id``."""
        address = "" if step is MemberStep.REMOVE else self.stage.hosts[id].address
        if self.up(at):
            self.ask(at, ChangeMember(self._origin(), step, id, address, 0))

    def append(self, at: int, client: str, serial: int, *payloads: bytes, sparse: bool = False) -> None:
        """Send server ``at`` a frame of appends of ``client``."""
        if self.up(at):
            run = AppendRun(self._origin(), client, 0, serial, [(1, each) for each in payloads], sparse)
            self.history.asked(run)
            self.ask(at, run)

    def hand_over(self, id: int) -> Iterator[int]:
        """Have the leader hand over to ``id``, until that leads or a second has passed. Yields waits."""
        leader = self.leader()
        if leader is not None and leader.me.id != id:
            self.ask(leader.me.id, Transfer(self._origin(), id))
        yield from self.waits(lambda: self.leads(id))


    def _origin(self) -> tuple[int, int]:
        if self._asker is None:
            self._asker = _Asker(self.clients)
        return self._asker.origin()

    def role(self, at: int, id: int) -> Role:
        """The role of ``id`` in the latest member list of server ``at``; GONE if ``id`` is not in it."""
        replica = self.stage.hosts[at].replica
        member = replica.members.latest.get(id) if replica is not None else None
        return member.role if member is not None else Role.GONE

    def parted(self, *group: int) -> None:
        """Cut exactly the links between the servers ``group`` and the others."""
        ids = self.links.ids
        self.set_cuts([(a, b) for a in ids for b in ids if (a in group) != (b in group)])


def once(plan: Callable[[Once], Iterator[int]]) -> Callable[[Options], World]:
    """A function that makes a world from options; the world goes through ``plan`` once."""
    return lambda options: Once(options, plan)  # type: ignore[arg-type]


def spare(w: Once) -> int:
    """The id of the last server: the spare one, where there is one."""
    return len(w.stage.hosts)
