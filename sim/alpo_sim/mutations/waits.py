"""Mutations by which nothing is lost, but somebody waits who need not wait, and the plans that show it; and mutations
of what servers do whose disks hang (R34).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from alpo.core import dispatch
from alpo.core.changes import Changes
from alpo.core.disk_space import Disks
from alpo.core.election import Election
from alpo.core.entries import random_client
from alpo.core.handover import Handover
from alpo.core.members import Role
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    CopyAnswer,
    Envelope,
    HandOver,
    Room,
    SnapshotPart,
    StartAnswer,
)
from alpo.core.ready import Stop
from alpo.core.replica import Replica
from alpo.core.replication import Replication
from alpo.core.requests import AppendRun, MemberStep, Reply
from alpo.core.snapshots import Newcomers

from ..checks import Broken
from ..clients import Actor
from ..host import WALL_ZERO_MS
from ..options import MS, SECOND
from .mutation import Mutation, edit
from .worlds import BUSY, COLLIDING, IDLE, ORDERED, Once, Repeated, once, planned, repeated, spare, world


class _Steady(Actor):
    """Client that appends at one server every ``every_us``, whatever it is answered, while that server leads."""

    def __init__(self, w: Once, server: int, every_us: int) -> None:
        super().__init__(w.clients)
        self._w, self.server, self._every_us, self._serial = w, server, every_us, 0
        w.clients.ids_created += 1
        self._client = random_client(WALL_ZERO_MS, w.clients.ids_created)
        self._append()

    def _append(self) -> None:
        w = self._w
        if w.leads(self.server) and not w.clients.closing:
            self._serial += 1
            run = AppendRun(self.origin(), self._client, 0, self._serial, [(1, w.clients.payload())])
            w.history.asked(run)
            w.ask(self.server, run)
            w.after(self._every_us, self._append)

    def heard(self, server: int, reply: Reply) -> None:
        return


def demand(w: Repeated, met: Callable[[], bool], within_us: int, what: str) -> Iterator[int]:
    """Demand that ``met()`` comes true within ``within_us``; ``what``: the violation in words. Yields waits. Raises
    `Broken`."""
    yield from w.waits(met, within_us)
    if not met():
        raise Broken("no progress", f"{what}, {within_us / SECOND:.1f} s long")


def steady(w: Once, server: int, every_us: int) -> None:
    """Have a client append at ``server`` every ``every_us``, as long as that leads."""
    _Steady(w, server, every_us)


def _damaged_under_load(w: Once) -> Iterator[int]:
    """An entry of the leader's is damaged, no copy mends it, and appends keep coming."""
    leader, *_ = w.cast()
    yield w.some_us(200, 400)
    w.drops = lambda x: isinstance(x.message, CopyAnswer)
    _Steady(w, leader, MS)
    yield 100 * MS
    w.damage(leader, (1,))
    yield from demand(w, lambda: not w.leads(leader), 8 * w.options.election_timeout_us, "a damaged leader leads on")


def _room_again_under_load(w: Once) -> Iterator[int]:
    """A follower's disk is all but full for a while, and appends keep coming."""
    leader, full, *_ = w.cast()
    yield 200 * MS
    _Steady(w, leader, 2 * MS)
    w.fill(full, Room.NONE)
    yield w.some_us(200, 400)
    w.fill(full, Room.PLENTY)
    last_id = w.last_id(full)
    t_us = w.options.election_timeout_us
    yield from demand(w, lambda: w.last_id(full) > last_id, 4 * t_us, f"server {full} has room, and is sent nothing")


def _unmended_follower(w: Once) -> Iterator[int]:
    """An entry of a follower's is damaged, no copy mends it, and appends keep coming."""
    leader, damaged, *_ = w.cast()
    yield 200 * MS
    w.drops = lambda x: isinstance(x.message, CopyAnswer)
    w.damage(damaged, (1,))
    _Steady(w, leader, 2 * MS)
    yield w.some_us(400, 600)
    last_id, t_us = w.last_id(leader), w.options.election_timeout_us
    yield from demand(w, lambda: w.last_id(damaged) >= last_id, 2 * t_us, f"server {damaged} stands still")


def _all_leave(w: Repeated) -> Iterator[int]:
    """All servers are told to stop at one moment, while nothing is asked of them; a process takes a moment to end."""
    leader, *_ = w.cast()
    yield w.some_us(300, 600)
    boots, w.linger_us = w.stage.hosts[leader].boots, w.some_us(1, 6)
    for id in w.stage.hosts:
        w.ask(id, Stop())
    yield from demand(
        w, lambda: not w.up(leader) or w.stage.hosts[leader].boots > boots, 2 * SECOND, f"server {leader} stays",
    )


def _twice_empty(w: Once) -> Iterator[int]:
    """A disk is lost. Once its server has taken a snapshot, its last word that it is empty comes once more."""
    leader, lost, *_ = w.cast()
    yield 300 * MS
    w.wipe(lost)
    sent: set[int] = set()

    def keeps(x: Envelope) -> bool:
        if isinstance(x.message, SnapshotPart):
            sent.add(x.message.number)
        return isinstance(x.message, StartAnswer) and x.sender.id == lost

    w.keeps = keeps
    w.drops = lambda x: isinstance(x.message, AppendAnswer) and x.sender.id == lost
    w.boot(lost)
    yield from w.waits(lambda: w.role(lost, lost) is Role.LEARNER, 2 * SECOND)
    yield 5 * MS
    for envelope in w.kept[-3:]:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[leader])
    yield 20 * MS
    if len(sent) > 1:
        raise Broken("no progress", f"server {lost} is sent {len(sent)} snapshots")


def _promoted_in_secret(w: Once) -> Iterator[int]:
    """A leader of three makes a fourth a voter, in an entry that nobody else gets, and crashes. The next leader's
    entries reach the fourth alone, and it goes down as the first comes back: of every list a majority is up."""
    a, *others = (id for id in w.cast() if id != spare(w))
    d = spare(w)
    w.boot(d)
    w.drops = lambda x: (
        isinstance(x.message, AppendRequest) and bool(x.message.entries)
        and (w.role(a, d) is Role.VOTER if x.sender.id == a else x.target.id != d)
    )
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.VOTER, 3 * SECOND)
    yield from w.waits(lambda: w.stage.hosts[a].disk_last_id == w.last_id(a), 100 * MS)
    term = w.term(a)
    w.crash(a)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    new = next((id for id in others if w.leads(id, term)), others[0])
    yield 50 * MS
    w.crash(new)
    w.drops = lambda x: False
    w.boot(a)
    yield from w.demands_leader()


def _dead_learner(w: Once) -> Iterator[int]:
    """Two servers are added while too few are up for a promotion. The first dies, and then all others are up."""
    first, second = w.links.ids[-2:]
    a, _, c = (id for id in w.cast() if id not in (first, second))
    w.crash(c)
    for id in (first, second):
        w.boot(id)
        w.change(a, MemberStep.ADD, id)
        yield 300 * MS
    w.crash(first)
    yield 2 * w.options.election_timeout_us  # the answers of the first promote it no more
    w.boot(c)
    yield from demand(w, lambda: w.role(a, second) is Role.VOTER, 2 * SECOND, f"learner {second} is not promoted")


def _asks_for_nobody(w: Once) -> Iterator[int]:
    """A server is added, and an operator asks again and again to add another one, which is not there."""
    there, nobody = w.links.ids[-2:]
    a, *_ = (id for id in w.cast() if id not in (there, nobody))
    w.drops = lambda x: isinstance(x.message, AppendAnswer) and x.sender.id == there
    w.boot(there)
    w.change(a, MemberStep.ADD, there)
    yield from w.waits(lambda: w.role(a, there) is Role.LEARNER, 3 * SECOND)
    yield 50 * MS
    w.change(a, MemberStep.ADD, nobody)
    w.drops = lambda x: False
    until_us = w.now_us + 2 * SECOND
    while w.role(a, there) is not Role.VOTER:
        if w.now_us > until_us:
            raise Broken("no progress", f"learner {there} is not promoted while server {nobody} is asked for")
        w.change(a, MemberStep.ADD, nobody)
        yield 20 * MS


WAITS = (
    Mutation(
        "W1", "R31, full disks", "a leader that hands over by itself goes on taking appends",
        "something is always in flight: it leads on while appends come",
        (edit(Replica, "serves", ("self.handover is None", "(self.handover is None or self.handover._why)")),),
        planned(network=ORDERED, load=IDLE, seconds=3), ("no progress",), makes=once(_damaged_under_load),
    ),
    Mutation(
        "W2", "R17, full disks", "a guaranteed mark that is sent alone counts as a heartbeat",
        "a server that may be sent no entries is not heard, and stays behind while appends come",
        (edit(Replication, "_send", ("if round:", "if True:")),),
        planned(network=ORDERED, load=IDLE, seconds=3), ("no progress",), makes=once(_room_again_under_load),
    ),
    Mutation(
        "W3", "R17, R31", "what a damaged server has on its disk counts as in flight to it",
        "after one window of entries it stands still, and its readers with it",
        (edit(Replication, "on_answer", ("peer.wrote(answer.conflict_id, r.came_s)", "False")),),
        planned(network=ORDERED, load=IDLE, seconds=3), ("no progress",), makes=once(_unmended_follower),
    ),
    Mutation(
        "W4", "R28", "a server that is stopping takes a handover, and an heir that is stopping stays the heir",
        "when all are told to stop the last one stays for five seconds",
        (
            edit(Election, "on_hand_over", ("r.may_stand and not r.stopping", "r.may_stand")),
            edit(Handover, "advance", ("target.stopping or ", "")),
        ),
        planned(network=ORDERED, load=IDLE, seconds=20), ("no progress",), makes=repeated(_all_leave),
    ),
    Mutation(
        "W5", "R27", "a learner that has taken a snapshot is taken for one that may not have started",
        "late word that its disk is empty has the whole snapshot sent again",
        (edit(Newcomers, "on_snapshot_answer", ("peer.really_heard = True", "pass")),),
        planned(network=ORDERED, load=IDLE, seconds=3, wipes=1), ("no progress",), makes=once(_twice_empty),
    ),
    Mutation(
        "W6", "R27", "a learner is sent entries before one of the leader's own term is guaranteed",
        "it outranks voters that need its vote, and may not stand: no leader, with a majority of every list up",
        (edit(Replication, "_flush_peer", ("r.guaranteed_id < self.first_id and", "False and")),),
        planned(network=ORDERED, load=IDLE, seconds=12, spares=1), ("no progress",), makes=once(_promoted_in_secret),
    ),
    Mutation(
        "W7", "R27", "the learner that has accepted most is promoted first, whether it is heard or not",
        "one that died holds up one that lives while nothing is appended",
        (edit(Changes, "_begin_catch_up", ("if p.heard_s > since_s", "if True")),),
        planned(network=ORDERED, load=replace(IDLE, writers=0), seconds=8, spares=2), ("no progress",),
        makes=once(_dead_learner),
    ),
    Mutation(
        "W8", "R27, R30", "a change that waits for its server holds up promotions and lost disks",
        "they wait for as long as somebody asks for a server that is not there",
        (edit(Changes, "advance", ("if self.may_change:", "elif self._lost:"),
              ("if self.may_change and self._r.members.latest.learners:", "elif self._r.members.latest.learners:")),),
        planned(network=ORDERED, load=IDLE, seconds=8, spares=2), ("no progress",), makes=once(_asks_for_nobody),
    ),
    Mutation(
        "W9", "R7", "a candidate stands anew only when a deferral completes the majority, not when a vote does",
        "no leader for up to an election timeout more, if a deferral overtakes a vote",
        (edit(Election, "_settle_cycle", ("elif self._enough_deferred():", "elif False:")),),
        world(servers=7, network=COLLIDING, stagger_us=0, faults=("crash_all", "crash", "crash"), load=IDLE),
        ("electable",),
    ),
)


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
        (edit(Replica, "may_stand", (" or (self.log.writes and self.disks.hangs)", "")),), _HUNG, ("hung disk",),
    ),
)
