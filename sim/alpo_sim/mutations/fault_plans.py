"""Plans of crashes, cuts, slow disks and clocks; each is repeated until its world's time is up."""

from __future__ import annotations

from collections.abc import Iterator

from ..options import MS, SECOND
from ..writers import NamedWriter, RandomWriter
from .worlds import Repeated


def long_suffix(w: Repeated) -> Iterator[int]:
    """A leader that is cut off goes on appending; the others guarantee less; then the old leader returns."""
    old, *others = w.cast()
    term = w.term(old)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    yield w.some_us(10, 60)
    new = next((id for id in others if w.leads(id, term)), others[0])
    w.crash(new)
    w.set_cuts([])
    yield SECOND


def older_term(w: Repeated) -> Iterator[int]:
    """Figure 8 of the Raft paper: one server has a backlog of an old term, another server one entry of a later term."""
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


def lost_vote(w: Repeated) -> Iterator[int]:
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


def _crashed_while_writing(w: Repeated, slow: int, other: int, behind: int) -> Iterator[int]:
    """``behind`` is cut off; ``slow`` crashes while its disk is slow, and starts again once ``other`` is cut off."""
    w.alone(behind)
    w.stall(slow, SECOND)
    yield w.some_us(50, 140)
    w.crash(slow)
    w.alone(other)
    w.stalled_until[slow] = 0
    w.boot(slow)
    yield SECOND


def lost_acceptance(w: Repeated) -> Iterator[int]:
    """A follower whose disk is slow crashes, and the leader is cut off; the other follower has none of their
    entries."""
    leader, slow, behind = w.cast()
    yield from _crashed_while_writing(w, slow, leader, behind)


def lost_disk(w: Repeated) -> Iterator[int]:
    """A follower's disk is lost while the other follower is behind; then the leader is cut off."""
    leader, lost, behind = w.cast()
    w.alone(behind)
    yield w.some_us(50, 150)
    if w.options.wipes > sum(host.disks for host in w.stage.hosts.values()):
        w.wipe(lost)
    w.alone(leader)
    w.boot(lost)
    yield SECOND


def leader_falls(w: Repeated) -> Iterator[int]:
    """Leaders crash at any moment, with messages of theirs on the way."""
    leader, *_ = w.cast()
    yield w.some_us(1, 100)
    w.crash(leader)
    yield w.some_us(200, 600)


def slow_zombie(w: Repeated) -> Iterator[int]:
    """A leader with a slow clock is cut off and replaced, goes on leading, and then hears a follower's late answers."""
    old, *others = w.cast()
    term = w.term(old)
    w.set_clock(old, 0.2, 0)
    w.alone(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    new = next((id for id in others if w.leads(id, term)), others[0])
    third = next(id for id in others if id != new)
    w.only((new, third), (third, new), (third, old))
    yield 500 * MS


def astray(w: Repeated) -> Iterator[int]:
    """The plan `slow_zombie`, but only writers whose sessions were opened since then ask the old leader."""
    old, *others = w.cast()
    term, zombie = w.term(old), w.stage.hosts[old].running
    yield from w.waits(lambda: zombie.guaranteed_id == zombie.last_id)
    w.set_clock(old, 0.2, 0)
    w.alone(old)
    while w.leads(old, term - 1):
        yield MS
        for actor in w.clients.actors:
            if isinstance(actor, NamedWriter) and actor.epoch > zombie.guaranteed_id:
                actor.server = old
            elif actor.server == old:
                actor.server = others[0]


def behind(w: Repeated) -> Iterator[int]:
    """The plan `slow_zombie`, but once the others have a longer log, only new clients ask the old leader."""
    old, *others = w.cast()
    term, zombie = w.term(old), w.stage.hosts[old].running
    yield from w.waits(lambda: zombie.guaranteed_id == zombie.last_id)
    w.set_clock(old, 0.2, 0)
    w.alone(old)
    last_lsn = zombie.log.next_lsn - 1
    while w.leads(old, term - 1):
        longer = w.clients.last_lsn > last_lsn + 1
        for actor in w.clients.actors:
            if longer and isinstance(actor, RandomWriter) and actor.next_serial == 1 and not actor.sparse:
                actor.server = old
            elif actor.server == old:
                actor.server = others[0]
        yield MS


def lost_own_copy(w: Repeated) -> Iterator[int]:
    """A leader whose disk is slow crashes; then the only server that has its entries is cut off."""
    leader, first, behind = w.cast()
    yield from _crashed_while_writing(w, leader, first, behind)


def late_completion(w: Repeated) -> Iterator[int]:
    """A leader with a slow disk is replaced, and expunges a long suffix while its disk is still writing it."""
    old, *others = w.cast()
    w.set_clock(old, 0.2, 0)
    w.set_cuts([(old, other) for other in others])
    w.stall(old, 100 * MS)
    yield 90 * MS
    w.stall(old, 500 * MS)
    yield 600 * MS


def old_acceptances(w: Repeated) -> Iterator[int]:
    """A leader and one of four followers are cut off; later the leader leads again, and hears that follower's old
    answers."""
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
    w.set_clock(old, 2.0, 0)  # a fast clock has this server stand before the others
    yield from w.waits(lambda: w.leads(old, term))
    third = next(id for id in others if id != new)
    w.only((old, third), (third, old), (mate, old))
    yield 500 * MS


def behind_in_terms(w: Repeated) -> Iterator[int]:
    """Two servers are left, of three: one has the freshest log, the other is a term ahead of it."""
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


def dead_holder(w: Repeated) -> Iterator[int]:
    """The server with the freshest log stands in a term in which the other one that is up voted for the one that is
    down."""
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


def stale_first(w: Repeated) -> Iterator[int]:
    """The leader dies; of the other two the one with the far shorter timer has missed the leader's last entries."""
    leader, *others = w.cast()
    _, stale = sorted(others)
    w.alone(stale)
    yield w.some_us(50, 100)
    w.crash(leader)
    w.set_cuts([])
    yield from w.demands_leader()


def handed_over(w: Repeated) -> Iterator[int]:
    """A leader is told to stop while all is well; another must lead before any election timer can run out."""
    old, *_ = w.cast()
    yield w.some_us(50, 300)
    yield from w.demands_successor(old)


def handed_over_with_one_down(w: Repeated) -> Iterator[int]:
    """The plan `handed_over`, with one of the other servers down."""
    old, down, *_ = w.cast()
    yield w.some_us(50, 300)
    w.crash(down)
    yield w.options.election_timeout_us // 2 + w.some_us(50, 300)  # no longer taken for an heir: not heard for 2h
    yield from w.demands_successor(old)
