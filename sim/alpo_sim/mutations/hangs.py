"""Mutations of what servers do whose disks hang (R34), and the plans that show them."""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core import dispatch
from alpo.core.disk_space import Disks
from alpo.core.messages import HandOver
from alpo.core.replica import Replica

from ..checks import Broken
from ..options import MS
from .mutation import Mutation, edit
from .planned import Once, once
from .waits import demand, steady
from .worlds import BUSY, IDLE, ORDERED, planned, world

_LONG = 20  # election timeouts for which disks hang


def _leader_hangs(w: Once) -> Iterator[int]:
    """The leader's disk hangs while appends keep coming."""
    leader, *_ = w.cast()
    timeout_us = w.options.election_timeout_us
    steady(w, leader, 5 * MS)
    yield 50 * MS
    w.stall(leader, _LONG * timeout_us)
    yield from demand(w, lambda: not w.leads(leader), 3 * timeout_us, "a leader whose disk hangs leads on")


def _nobody_hears(w: Once) -> Iterator[int]:
    """The leader's disk hangs while appends keep coming, and no heir is ever told."""
    leader, *_ = w.cast()
    timeout_us = w.options.election_timeout_us
    w.drops = lambda x: isinstance(x.message, HandOver)
    steady(w, leader, 5 * MS)
    yield 50 * MS
    w.stall(leader, _LONG * timeout_us)
    yield from demand(w, lambda: not w.leads(leader), 5 * timeout_us, "a leader whose disk hangs waits for its heir")


def _undisturbed(w: Once, leader: int, term: int) -> None:
    if not w.leads(leader) or w.term(leader) != term:
        raise Broken("disturbed", f"leader {leader} of term {term} leads no more, and no other disk is better")


def _two_hang(w: Once) -> Iterator[int]:
    """The disks of the leader and of another of three hang: nobody could be elected."""
    leader, other, _ = w.cast()
    timeout_us, term = w.options.election_timeout_us, w.term(leader)
    steady(w, leader, 5 * MS)
    yield 50 * MS
    for id in (leader, other):
        w.stall(id, _LONG * timeout_us)
    yield 8 * timeout_us
    _undisturbed(w, leader, term)


def _all_are_slow(w: Once) -> Iterator[int]:
    """The leader's disk hangs, and a write on any other takes almost as long as a server waits for its disk."""
    leader, *others = w.cast()
    timeout_us, term = w.options.election_timeout_us, w.term(leader)
    steady(w, leader, 5 * MS)
    yield 50 * MS
    w.stall(leader, _LONG * timeout_us)
    for _ in range(6):
        for id in others:
            w.stall(id, timeout_us * 8 // 10)
        yield timeout_us * 8 // 10
    _undisturbed(w, leader, term)


_PLANNED = planned(network=ORDERED, load=IDLE, seconds=6, fsync_us=(300, 1000))
_HUNG = world(faults=("hang", "hang", "crash", "isolate"), load=BUSY)

HANGS = (
    Mutation(
        "H1", "R34", "a leader whose disk hangs leads on",
        "its clients wait once as much as may be in flight is not on its disk, though a majority is well",
        (edit(Disks, "advance", ("hangs = self.hangs", "hangs = False")),), _PLANNED, ("no progress",),
        makes=once(_leader_hangs),
    ),
    Mutation(
        "H2", "R34", "a leader whose disk hangs, and whose heir does not lead in time, tries again for ever",
        "it takes no appends, and nobody else may",
        (edit(Disks, "_leave", ("if self._left_since_s is not None:", "if False:")),), _PLANNED, ("no progress",),
        makes=once(_nobody_hears),
    ),
    Mutation(
        "H3", "R34", "a leader whose disk hangs hands over although most other disks hang too",
        "nobody can be elected: the only leader there could be is gone",
        (edit(Disks, "_leave", ("if len(better) < r.members.latest.majority:", "if not better:")),), _PLANNED,
        ("disturbed",), makes=once(_two_hang),
    ),
    Mutation(
        "H4", "R34", "an heir's disk need not be quick",
        "leadership goes to and fro between disks that are all slow, or is lost over votes that come too late",
        (edit(Disks, "_leave", (" and p.owed_s(r.now_s) <= quick_s", "")),), _PLANNED, ("disturbed",),
        makes=once(_all_are_slow),
    ),
    Mutation(
        "H5", "R34", "a server whose disk hangs answers those that ask for votes",
        "candidates stand again and again for a vote that never comes",
        (edit(dispatch, "_on_received", ("(r.damage.binds or r.disks.hangs)", "r.damage.binds")),), _HUNG,
        ("hung disk",),
    ),
    Mutation(
        "H6", "R34", "a server whose disk hangs canvasses, and takes a handover",
        "it stands, and is silent until its disk moves: its vote is lost to the others",
        (edit(Replica, "may_stand", (" or self.disks.hangs", "")),), _HUNG, ("hung disk",),
    ),
)
