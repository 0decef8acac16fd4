"""Worlds whose faults follow a plan, over and over until their time is up; all else is as random as ever.

A plan is a generator over the world that yields microseconds to wait. It only does what a random world might.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alpo.core.inputs import Stop
from alpo.core.ranks import State

from ..broken import Broken
from ..demands import LEADER_WITHIN_TIMEOUTS
from ..options import MS, SECOND, Options
from ..world import World
from ..writers import Named

Plan = Callable[["Directed"], Iterator[int]]


class Directed(World):
    """``plan`` is begun again whenever it ends, from a whole network with everybody up and a leader."""

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
        until_us = self.now_us + at_most_us
        while not condition() and self.now_us < until_us:
            yield 100

    def cast(self) -> list[int]:
        """The leader, then the others in random order."""
        leader = self.leader()
        others = [id for id in self.stage.hosts if leader is None or id != leader.me.id]
        self.rng.shuffle(others)
        return ([leader.me.id] if leader is not None else []) + others

    def only(self, *pairs: tuple[int, int]) -> None:
        """Nothing passes but from the first to the second of each pair."""
        ids = self.links.ids
        self.set_cuts([(a, b) for a in ids for b in ids if a != b and (a, b) not in pairs])

    def alone(self, *ids: int) -> None:
        """Nothing passes to or from these."""
        all_ids = self.links.ids
        self.set_cuts([(a, b) for a in all_ids for b in all_ids if a != b and (a in ids or b in ids)])

    def stall(self, id: int, span_us: int) -> None:
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
        """As at the end of every world: there is a leader before long. Raises `Broken`."""
        began_us, bound_us = self.now_us, LEADER_WITHIN_TIMEOUTS * self.options.election_timeout_us + SECOND
        yield from self.waits(lambda: self.leader() is not None, bound_us)
        if self.now_us - began_us >= bound_us:
            raise Broken("no progress", f"no leader for {bound_us / SECOND:.1f} s, with a majority connected")

    def demands_successor(self, old: int) -> Iterator[int]:
        """If ``old`` leads it is told to stop, and another leads within an election timeout. Raises `Broken`."""
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
        yield from self.waits(lambda: not self.up(old), 6 * SECOND)  # it stays for its successor's sake

    def term(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.term if replica is not None else 0

    def mark_id(self, id: int) -> int:
        replica = self.stage.hosts[id].replica
        return replica.guaranteed_id if replica is not None else 0

    def some_us(self, low_ms: int, high_ms: int) -> int:
        return self.rng.randrange(low_ms * MS, high_ms * MS)


def directed(plan: Plan) -> Callable[[Options], World]:
    """What makes the worlds of that plan."""
    return lambda options: Directed(options, plan)


def long_suffix(w: Directed) -> Iterator[int]:
    """A leader that is cut off goes on appending; the others guarantee a little; then the old one returns."""
    old, *others = w.cast()
    term = w.term(old)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    yield w.some_us(10, 60)
    new = next((id for id in others if w.leads(id, term)), others[0])
    w.crash(new)
    w.set_cuts([])
    yield SECOND


def older_term(w: Directed) -> Iterator[int]:
    """Figure 8 of the Raft paper: one server's backlog of an old term, another's entry of a later term."""
    old, *others = w.cast()
    term = w.term(old)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    new = next((id for id in others if w.leads(id, term)), others[0])
    w.alone(new)
    yield from w.waits(lambda: w.leads(old, term))
    mark_id = w.mark_id(old)
    yield from w.waits(lambda: w.mark_id(old) > mark_id, 80 * MS)
    w.crash(old)
    w.set_cuts([])
    yield SECOND


def lost_vote(w: Directed) -> Iterator[int]:
    """A voter whose disk is slow gives its vote and crashes; the winner is cut off."""
    old, first, second = w.cast()
    term = w.term(old)
    w.crash(old)
    w.stall(second, SECOND)
    yield from w.waits(lambda: w.leads(first, term))
    w.crash(second)
    w.alone(first)
    w.stalled_until[second] = 0
    w.boot(old)
    w.boot(second)
    yield SECOND


def lost_acceptance(w: Directed) -> Iterator[int]:
    """A follower whose disk is slow crashes with the leader; the other one has seen nothing of all that."""
    leader, slow, behind = w.cast()
    w.alone(behind)
    w.stall(slow, SECOND)
    yield w.some_us(50, 140)
    w.crash(slow)
    w.alone(leader)
    w.stalled_until[slow] = 0
    w.boot(slow)
    yield SECOND


def lost_disk(w: Directed) -> Iterator[int]:
    """A follower's disk is lost while the other follower is behind; then the leader is cut off."""
    leader, lost, behind = w.cast()
    w.alone(behind)
    yield w.some_us(50, 150)
    if w.options.wipes > sum(host.disks for host in w.stage.hosts.values()):
        w.wipe(lost)
    w.alone(leader)
    w.boot(lost)
    yield SECOND


def leader_falls(w: Directed) -> Iterator[int]:
    """Leaders crash at any moment, with messages of theirs on the way."""
    leader, *_ = w.cast()
    yield w.some_us(1, 100)
    w.crash(leader)
    yield w.some_us(200, 600)


def slow_zombie(w: Directed) -> Iterator[int]:
    """A leader with a slow clock is cut off and replaced, goes on leading, and hears old answers of a follower."""
    old, *others = w.cast()
    term = w.term(old)
    w.set_clock(old, 0.2, 0)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    new = next((id for id in others if w.leads(id, term)), others[0])
    third = next(id for id in others if id != new)
    w.only((new, third), (third, new), (third, old))
    yield 500 * MS


def astray(w: Directed) -> Iterator[int]:
    """As `slow_zombie`, but nobody asks it for anything until writers that opened their sessions since turn to it."""
    old, *others = w.cast()
    term, zombie = w.term(old), w.stage.hosts[old].replica
    assert zombie is not None
    yield from w.waits(lambda: zombie.guaranteed_id == zombie.last_id)
    w.set_clock(old, 0.2, 0)
    w.alone(old)
    while w.leads(old, term - 1):
        yield MS
        for party in w.clients.parties:
            if isinstance(party, Named) and party.epoch > zombie.guaranteed_id:
                party.server = old
            elif party.server == old:
                party.server = others[0]


def lost_own_copy(w: Directed) -> Iterator[int]:
    """A leader whose disk is slow crashes; then the only one who has its entries is cut off."""
    leader, first, behind = w.cast()
    w.alone(behind)
    w.stall(leader, SECOND)
    yield w.some_us(50, 140)
    w.crash(leader)
    w.alone(first)
    w.stalled_until[leader] = 0
    w.boot(leader)
    yield SECOND


def late_completion(w: Directed) -> Iterator[int]:
    """A leader whose disk is slow is not heard, is replaced, and expunges a long suffix while that is written."""
    old, *others = w.cast()
    w.set_clock(old, 0.2, 0)
    w.set_cuts([(old, other) for other in others])
    w.stall(old, 100 * MS)
    yield 90 * MS
    w.stall(old, 500 * MS)
    yield 600 * MS


def old_acceptances(w: Directed) -> Iterator[int]:
    """Of five, a leader and one follower are cut off; it leads again later, and hears what that one said before."""
    old, mate, *others = w.cast()
    term = w.term(old)
    w.set_clock(old, 0.3, 0)
    w.set_cuts([(a, b) for a in w.links.ids for b in w.links.ids if (a in (old, mate)) != (b in (old, mate))])
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    yield 200 * MS
    w.alone(mate)
    yield w.some_us(20, 100)
    new = next((id for id in others if w.leads(id, term)), others[0])
    w.crash(new)
    w.set_clock(old, 2.0, 0)  # so that it stands before the others
    yield from w.waits(lambda: w.leads(old, term))
    third = next(id for id in others if id != new)
    w.only((old, third), (third, old), (mate, old))
    yield 500 * MS


def behind_in_terms(w: Directed) -> Iterator[int]:
    """The freshest log, and one server that is a term ahead of it; the third is down."""
    old, *others = w.cast()
    term = w.term(old)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    new = next((id for id in others if w.leads(id, term)), others[0])
    w.alone(*w.links.ids)
    w.crash(new)
    yield from w.waits(lambda: not w.leads(old))
    w.set_cuts([])
    yield from w.demands_leader()


def dead_holder(w: Directed) -> Iterator[int]:
    """The freshest log stands in a term in which the other one alive has voted for a third, which is down."""
    fresh, voter, dead = w.cast()
    w.alone(fresh)
    yield w.some_us(60, 120)
    for id in w.links.ids:
        w.crash(id)
    w.only((fresh, voter), (voter, fresh), (voter, dead), (dead, voter))
    for id in w.links.ids:
        w.boot(id)
    yield from w.waits(lambda: w.stands(fresh) and w.vote(voter) == dead and w.term(voter) == w.term(fresh))
    if w.stands(fresh) and w.vote(voter) == dead:
        w.crash(dead)
        w.only((fresh, voter), (voter, fresh))
        yield from w.demands_leader()


def stale_first(w: Directed) -> Iterator[int]:
    """The leader dies, and of the other two the one whose timer is the shorter by far has missed its last entries."""
    leader, *others = w.cast()
    _, stale = sorted(others)
    w.alone(stale)
    yield w.some_us(50, 100)
    w.crash(leader)
    w.set_cuts([])
    yield from w.demands_leader()


def handed_over(w: Directed) -> Iterator[int]:
    """A leader is told to stop while all is well: another leads before any election timer can run out."""
    old, *_ = w.cast()
    yield w.some_us(50, 300)
    yield from w.demands_successor(old)


def handed_over_with_one_down(w: Directed) -> Iterator[int]:
    """As `handed_over`, with one of the others down."""
    old, down, *_ = w.cast()
    yield w.some_us(50, 300)
    w.crash(down)
    yield w.options.election_timeout_us // 2 + w.some_us(50, 300)  # no longer taken for an heir: not heard for 2h
    yield from w.demands_successor(old)
