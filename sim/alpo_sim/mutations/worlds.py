"""Worlds in which mutations show: small, short, and with faults of the kind that matters.

Further options of a mutation stand where the mutation is listed. The faults of a planned world follow a plan: a
generator over the world that yields microseconds to wait. Its faults are such as a random world may have; all else is
random as in other worlds. In worlds of first starts (R29) disks are lost, and answers late, before anybody has started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from alpo.core.disk import StartState
from alpo.core.members import Role, StartStatus
from alpo.core.messages import Envelope, StartAnswer
from alpo.core.ranks import State
from alpo.core.ready import Stop
from alpo.core.requests import AppendRun, ChangeMember, MemberStep, Reply, Transfer
from alpo.core.settings import Settings

from ..checks import Broken
from ..clients import Actor
from ..host import Host
from ..options import MS, SECOND, Load, Network, Options
from ..world import LEADER_WITHIN_TIMEOUTS, World

#: Three servers, quick elections, a fault every 300 ms for twelve seconds.
_BASE: dict[str, Any] = {
    "servers": 3,
    "seconds": 12,
    "election_timeout_us": 150 * MS,
    "priorities": (),
    "auto_init": True,
    "network": Network((100, 3000), 0.01, SECOND, 0.01, 0.01, False),
    "load": Load(3, 1, 40 * MS, 8, 20, False, 300 * MS),
    "settings": Settings(),
    "limits": (),
    "fault_every_us": 300 * MS,
    "faults": ("crash", "cut", "isolate", "pause", "stall", "crash_all"),
    "wipes": 0,
    "drift": 0.01,
    "last_topology": "whole",
}


def world(**changed: Any) -> Callable[[int], Options]:
    """A function from a seed to the base world's options, with those given here in the place of the base's."""
    return lambda seed: Options(seed, **(_BASE | changed))


def planned(**changed: Any) -> Callable[[int], Options]:
    """A function as from `world`, of options without random faults: a plan makes the faults."""
    return world(fault_every_us=0, **changed)


#: Bounds by which a request has one entry and little is in flight: servers often hold only part of what was sent.
NARROW = (("request_bytes_max", 1), ("peer_inflight_bytes_max", 40), ("tail_bytes_max", 2000))
ONE_BY_ONE = (("request_bytes_max", 1), ("peer_inflight_bytes_max", 1), ("tail_bytes_max", 2000))
#: Bounds by which the session table is saved every few entries.
SAVING = (("table_save_entries", 5),)

#: Network in which no message is lost, copied or late; but some messages are damaged.
SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)
#: Network like `SOUND`, with messages in order and undamaged.
ORDERED = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, True, 0.0)
SLOW = Network((2 * MS, 25 * MS), 0.01, SECOND, 0.01, 0.01, False)
#: Network in which candidates often stand at the same time, and lose each other's messages.
COLLIDING = Network((2 * MS, 25 * MS), 0.01, SECOND, 0.2, 0.01, False)
LOSSY = Network((100, 5000), 0.1, SECOND, 0.01, 0.05, False)
#: Networks in which a third, or half, of all messages arrive much later, behind many that were sent since.
LATE = Network((100, 3000), 0.3, 2 * SECOND, 0.0, 0.1, False)
LATER = Network((100, 3000), 0.5, SECOND, 0.0, 0.1, False)

IDLE = Load(1, 0, SECOND)
BUSY = Load(6, 1, 10 * MS, 8, 20, False, 300 * MS)
READING = Load(3, 8, 20 * MS, 8, 20, False, 50 * MS)
#: Load of many quick writers under few names, which often die; many requests arrive twice, the second time late.
CROWD = Load(6, 1, 20 * MS, 8, 20, False, 300 * MS, copied=0.2, same_name=0.9, quits=0.02)
NEW_NAMES = Load(6, 1, 40 * MS, 8, 20, False, 300 * MS, same_name=0.0, quits=0.1)


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


class Birth(World):
    """World in which servers lose `Options.wipes` disks in all, until the first server has started.

    No progress is demanded in the end: the first member list may name a disk that is lost by then.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._lost = 0

    def run(self) -> None:
        for id in self.links.ids:
            self.boot(id)
        self._lose()
        self.run_until(self.options.seconds * SECOND, self._born)

    def _born(self) -> bool:
        replicas = self.replicas()
        return len(replicas) == len(self.links.ids) and all(r.first_start.started for r in replicas)

    def _lose(self) -> None:
        ids = self.links.ids
        started = [h for h in self.stage.hosts.values() if h.store.boot().start.status is StartStatus.STARTED]
        if started or self._lost >= self.options.wipes:
            return
        self._lost += 1
        id = self.rng.choice(ids)
        self.wipe(id)
        self.after(self.rng.randrange(10 * MS), self.boot, id)
        self.after(self.rng.randrange(80 * MS), self._lose)


class OldAnswers(World):
    """World in which answers to a server's first map of incarnations come after the server has made a second one (N4).

    The answers are held back; another server's disk is lost, and a third server starts by a map with the new disk. Then
    the first server hears the old answers, again and again.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._old, self._lost, self._third = self.rng.sample(self.links.ids, 3)
        self._held: list[Envelope] = []
        self._passes = self._none

    def run(self) -> None:
        for id in self.links.ids:
            self.boot(id)
        self.run_until(2 * SECOND, lambda: self._starting(self._third) and self._starting(self._lost))
        self._passes = self._until_first_map
        self.run_until(3 * SECOND, lambda: len(self._held) >= 8)
        self.wipe(self._lost)
        self._passes = self._until_second_map
        self.boot(self._lost)
        self.run_until(8 * SECOND, lambda: self._state(self._third).status is StartStatus.STARTED)
        for envelope in self._held * 5:
            self.after(self.rng.randrange(500 * MS), self._late, envelope)
        self.run_until(self.now_us + 500 * MS)
        self._passes = self._all
        self.run_until(self.now_us + SECOND)

    def _late(self, envelope: Envelope) -> None:
        self.stage.deliver(envelope, True)
        self.poke(self.stage.hosts[self._old])

    def _state(self, id: int) -> StartState:
        return self.stage.hosts[id].store.boot().start

    def _starting(self, id: int) -> bool:
        return self._state(id).status is StartStatus.STARTING

    def _on_send(self, host: Host, envelope: Envelope) -> None:
        if type(envelope.message) is not StartAnswer or self._passes(envelope, envelope.target.id == self._old):
            super()._on_send(host, envelope)

    # -- which start answers pass; each is `self._passes` for a while ------------------------------------

    def _none(self, envelope: Envelope, to_old: bool) -> bool:
        return not to_old

    def _until_first_map(self, envelope: Envelope, to_old: bool) -> bool:
        if to_old and self._starting(self._old):
            self._held.append(envelope)
            return False
        return to_old or envelope.sender.id != self._old or not self._starting(self._old)

    def _until_second_map(self, envelope: Envelope, to_old: bool) -> bool:
        new, known = self.stage.hosts[self._lost].store.boot().me, self._state(self._old).incarnations
        if new in known:
            self._passes = self._none
        return new not in known if to_old else envelope.sender.id != self._old or new in known

    def _all(self, envelope: Envelope, to_old: bool) -> bool:
        return True
