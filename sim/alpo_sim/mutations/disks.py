"""Mutations of what is on disks: cleaning and trimming (R19, R20), full and damaged disks (R31), and how bases are sent
and installed (R14, R27); and the plans of bases that meet trouble on their way. Each world goes through its plan once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from alpo.core import dispatch, replica
from alpo.core.acceptance import Acceptance
from alpo.core.changes import Changes
from alpo.core.cleaning import Cleaning
from alpo.core.damage import Damage
from alpo.core.disk_space import Disks
from alpo.core.machine.cursors import Trims
from alpo.core.members import Role, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    CopyAnswer,
    Envelope,
    SnapshotPart,
    StartAnswer,
    VoteAnswer,
)
from alpo.core.ready import Clean
from alpo.core.replication import Replication
from alpo.core.requests import MemberStep
from alpo.core.snapshots import Installing, Newcomers

from ..checks import Broken
from ..options import MS, SECOND, Load
from .log import LOST
from .mutation import Mutation, edit
from .worlds import BUSY, ORDERED, SAVING, SOUND, Once, once, planned, spare, world

_FULL = world(faults=("full", "full", "crash"), load=BUSY)

_DAMAGED = world(faults=("damage", "damage", "crash", "isolate"), load=BUSY)

_TAILS = world(faults=("damage", "isolate", "isolate"), load=BUSY)

_CLEANED = world(
    faults=("damage", "damage", "crash"), load=BUSY, clean_every_us=50 * MS, fault_every_us=150 * MS, seconds=8,
)


def _damage_beyond(w: Once) -> Iterator[int]:
    """Two entries of a follower's are damaged, one that the others have cleaned and one that they have not; no copies
    come."""
    leader, damaged, other, *_ = w.cast()
    w.drops = lambda x: isinstance(x.message, CopyAnswer) and bool(x.message.entries)
    yield from w.waits(lambda: min(w.mark_id(id) for id in w.links.ids) > 20)
    upto_id = w.mark_id(damaged) // 2
    for id in (leader, other):
        time_ms, lsn, count = w.stage.hosts[id].store.entry_head(upto_id) or (0, 0, 0)
        w.ask(id, Clean(upto_id, time_ms, lsn + count))
    yield from w.waits(lambda: all(w.stage.hosts[id].running.log.base_id == upto_id for id in (leader, other)))
    w.damage(damaged, (upto_id, upto_id + 1))
    yield 300 * MS


def _damaged_candidate(w: Once) -> Iterator[int]:
    """An entry of a candidate's is found damaged before it has any answer."""
    leader, *_ = w.cast()
    yield 200 * MS
    w.drops = lambda x: isinstance(x.message, VoteAnswer)
    w.crash(leader)
    yield from w.waits(lambda: any(w.stands(id) for id in w.links.ids))
    for id in w.links.ids:
        if w.stands(id):
            w.damage(id, (1,))
    yield 100 * MS


DISKS = (
    Mutation(
        "M8", "R19", "what some member does not hold yet is cleaned",
        "a server that was away can never be caught up",
        (edit(Cleaning, "cleanable_id", ("r.fully_replicated_id, ", "")),),
        world(clean_every_us=200 * MS, load=BUSY), ("no progress", "alarm"), ("cleaned too early",),
    ),
    Mutation(
        "P28", "replicated state", "a cleaning does not wait for the table of sessions to be saved",
        "after a restart the table is made of what is left of the log: retries are appended twice",
        (edit(replica, "table_save", (
            "if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):",
            "if not wanted and lag < r.cfg.table_save_entries:",
        )),),
        world(clean_every_us=200 * MS, load=BUSY, faults=("crash", "crash_all")),
        ("equal tables", "exactly once", "sessions", "alarm", *LOST),
    ),
    Mutation(
        "P29", "R20", "a trim counts before its entry is guaranteed",
        "payloads are refused that a later leader still serves",
        (edit(Trims, "_derive", ("self._stack[0][1]", "self.head")),),
        world(load=replace(BUSY, operators=True), seconds=30), ("trimmed",),
    ),
    Mutation(
        "P50", "full disks", "a leader whose disk is low goes on taking appends",
        "the disk fills up to where votes and cleaning have no room either",
        (edit(Disks, "why_not", ("self.room is Room.PLENTY and (", "(")),), _FULL, ("no space",),
    ),
    Mutation(
        "P51", "full disks", "a server whose disk is all but full takes entries",
        "the disk fills up to where votes and cleaning have no room either",
        (edit(Disks, "takes_entries", ("self.room is not Room.NONE", "True")),), _FULL, ("no space",),
    ),
    Mutation(
        "P52", "full disks, R14", "a server without room vouches for the entries that it did not take",
        "guaranteed entries lost",
        (edit(Acceptance, "_take", ("upto, fresh = fresh[0].id - 1, []", "fresh = []")),), _FULL,
        ("alarm", "durable before sent", *LOST),
    ),
    Mutation(
        "P53", "full disks", "a server that had no room is never again taken to have some",
        "it stays behind for good",
        (edit(Replication, "on_answer", ("peer.room = answer.room", "peer.room = max(peer.room, answer.room)")),),
        _FULL, ("no progress",),
    ),
    Mutation(
        "P130", "full disks", "a voter that does not answer counts as one with space",
        "appends are taken that no majority can accept, and nobody is told why they wait",
        (edit(Disks, "_short_of_space", ("if lack is Lack.SILENT}", "if False}")),), _FULL, ("no space",),
    ),
    Mutation(
        "P54", "R31", "damage is treated as absence: the log ends before the first damaged entry",
        "guaranteed entries lost",
        (edit(Damage, "heard", ("self.ids = found.ids", "found.ids and r.expunge(found.ids[0])")),), _DAMAGED,
        ("alarm", "nothing guaranteed expunged", *LOST),
    ),
    Mutation(
        "P55", "R31", "a server whose disk is damaged gives votes",
        "a leader is made by a server that may not hold what it thinks it holds",
        (edit(dispatch, "_on_received", ("(r.damage.binds or r.disks.hangs)", "r.disks.hangs")),),
        _DAMAGED, ("damage",),
    ),
    Mutation(
        "P56", "R31", "a server whose disk is damaged accepts on",
        "an entry is called guaranteed that too few disks hold",
        (edit(Damage, "sound", ("min(id, self.first_id - 1) if self.first_id and self.binds else id", "id")),),
        _DAMAGED, ("damage",),
    ),
    Mutation(
        "P57", "R31", "a server whose disk was damaged is never sound again",
        "it votes and accepts no more",
        (edit(Damage, "heard", ("self.ids = found.ids", "self.ids = found.ids or self.ids")),), _DAMAGED,
        ("no progress", "damage"),
    ),
    Mutation(
        "P70", "R31", "copies of damaged entries are asked for, and the answers are not heeded",
        "it votes and accepts no more",
        (edit(Damage, "on_answer", ("r.out.mend(entry)", "pass")),), _DAMAGED, ("no progress",),
    ),
    Mutation(
        "P71", "R31", "a copy is taken whatever its term",
        "two servers hold different entries at one id for ever",
        (
            edit(Damage, "on_request", ("log.term_at(request.id) == request.entry_term", "True")),
            edit(Damage, "on_answer", ("if r.log.term_at(entry.id) == entry.term:", "if True:")),
        ),
        _TAILS, ("damage",),
    ),
    Mutation(
        "P72", "R31", "what another member has cleaned binds for ever",
        "it votes and accepts no more",
        (edit(Damage, "on_answer", ("self._gone_id = max(self._gone_id, answer.base_id)", "pass")),),
        _CLEANED, ("no progress",),
    ),
    Mutation(
        "P144", "R31", "what another member has cleaned says that all damage binds no more",
        "a server accepts entries beyond one that it lacks and others need",
        (edit(Damage, "on_answer", (
            "max(self._gone_id, answer.base_id)", "max(self._gone_id, answer.base_id, self.ids[-1])",
        )),),
        planned(network=ORDERED, load=BUSY, seconds=4), ("damage",), makes=once(_damage_beyond),
    ),
    Mutation(
        "P145", "R31", "a candidate whose disk is found damaged goes on",
        "a leader is made that may not hold what it thinks it holds",
        (edit(Damage, "heard", ("if self.binds and r.state is State.CANDIDATE:", "if False:")),),
        planned(network=ORDERED, load=BUSY, seconds=4), ("damage",), makes=once(_damaged_candidate),
    ),
)


#: Bound within which a newcomer has its snapshot and votes, once nothing hinders it any more.
_BROUGHT_UP_US = 3 * SECOND


def _demand_brought_up(w: Once, id: int) -> Iterator[int]:
    """Demand that newcomer ``id`` becomes a voter within `_BROUGHT_UP_US`. Raises `Broken`."""
    yield from w.waits(lambda: w.role(id, id) is Role.VOTER, _BROUGHT_UP_US)
    if w.role(id, id) is not Role.VOTER:
        replica = w.stage.hosts[id].replica
        shows = replica.status_text if replica is not None else "down"
        raise Broken("no progress", f"server {id} is {shows}, {_BROUGHT_UP_US / SECOND:.1f} s after all was well")


def _part(number: int) -> Callable[[Envelope], bool]:
    """A condition: true for messages that are part ``number`` of a snapshot."""
    return lambda x: isinstance(x.message, SnapshotPart) and x.message.part == number


def restarted_in_transfer(w: Once) -> Iterator[int]:
    """A newcomer starts again when it has the first part of its snapshot, and has forgotten that part."""
    a, d = w.cast()[0], spare(w)
    yield 500 * MS  # there are some sessions
    w.keeps = w.drops = _part(1)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: bool(w.kept), 3 * SECOND)
    w.crash(d)
    w.boot(d)
    w.drops = lambda x: False
    yield from _demand_brought_up(w, d)


def part_of_another_transfer(w: Once) -> Iterator[int]:
    """The first part of a deposed leader's base comes amid the parts of its successor's, to a newcomer that knows of no
    term yet."""
    a, d = w.cast()[0], spare(w)
    yield 500 * MS
    w.keeps = w.drops = lambda x: isinstance(x.message, SnapshotPart)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: bool(w.kept), 3 * SECOND)
    late, term = w.kept[0], w.term(a)
    w.crash(a)
    yield from w.waits(lambda: any(w.leads(id, term) for id in w.links.ids))
    w.kept.clear()
    w.keeps = w.drops = lambda x: _part(1)(x) and x.message.term > term  # type: ignore[union-attr]
    yield from w.waits(lambda: bool(w.kept), 3 * SECOND)
    w.stage.deliver(late, True)
    w.poke(w.stage.hosts[d])
    w.boot(a)
    yield MS
    w.drops = lambda x: False
    yield from _demand_brought_up(w, d)


def _behind_what_it_holds(w: Once) -> Iterator[int]:
    """A newcomer has taken its snapshot, and accepts entries without learning that they are guaranteed; the leader
    cleans some of them. In the end nothing reaches the newcomer any more, and ``kept`` holds what it answered to the
    leader's newest question before it started."""
    a, *others = (id for id in w.cast() if id != spare(w))
    d, leader = spare(w), w.stage.hosts[a].running
    yield 50 * MS
    w.keeps = lambda x: isinstance(x.message, StartAnswer) and (x.sender.id, x.target.id) == (d, a)
    # No entry is guaranteed once the newcomer has started, and its acceptances get lost.
    w.drops = lambda x: isinstance(x.message, AppendAnswer) and _started(w, d) and (
        x.sender.id != d or x.message.match_id > 0
    )
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: _started(w, d) and a in w.stage.hosts[d].replica.connected, 3 * SECOND)  # type: ignore
    yield 20 * MS  # no client has all its appends in flight after so short a time
    held_id = w.stage.hosts[d].disk_last_id
    yield from w.waits(lambda: all(w.stage.hosts[id].disk_last_id >= held_id for id in others), 100 * MS)
    learner = w.stage.hosts[d].running
    # The newcomer's last acceptance is heard, and no later question reaches it: so it is not promoted.
    w.drops = lambda x: x.target.id == d or (isinstance(x.message, AppendAnswer) and x.sender.id in others)
    yield 20 * MS
    w.drops = lambda x: x.target.id == d
    marked_id = learner.guaranteed_id
    yield from w.waits(lambda: leader.cleaning.cleanable_id > marked_id + 1, 300 * MS)
    upto_id = (marked_id + leader.cleaning.cleanable_id) // 2
    head = w.stage.hosts[a].store.entry_head(upto_id)
    if head is not None and upto_id > marked_id:
        w.ask(a, Clean(upto_id, head[0], head[1] + head[2]))
    yield 20 * MS


def _started(w: Once, id: int) -> bool:
    replica = w.stage.hosts[id].replica
    return replica is not None and replica.first_start.started


def _late_word(w: Once) -> Iterator[int]:
    """A newcomer's message from before it had its snapshot arrives long after. In the end ``kept`` holds parts of
    another base."""
    yield from _behind_what_it_holds(w)
    d = spare(w)
    said = [x for x in w.kept if isinstance(x.message, StartAnswer) and x.message.status is StartStatus.EMPTY]
    w.kept.clear()
    w.keeps = lambda x: isinstance(x.message, SnapshotPart)
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.target.id == d
    for envelope in said[-1:]:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[envelope.target.id])
    yield 300 * MS


def late_word(w: Once) -> Iterator[int]:
    """The plan `_late_word`; then no message is lost any more."""
    yield from _late_word(w)
    w.drops = lambda x: False
    yield SECOND


def late_word_is_no_reason(w: Once) -> Iterator[int]:
    """The plan `_late_word`; a newcomer that accepted entries of this reign must get no other base. Raises `Broken`."""
    yield from _late_word(w)
    if w.kept:
        raise Broken("members", f"server {spare(w)} has accepted entries of this reign, and is sent another snapshot")


#: Options of worlds in which a snapshot has as many parts as there are sessions.
_PARTS = planned(
    network=SOUND, load=BUSY, seconds=8, spares=1, limits=(("part_slots_max", 1), ("table_save_entries", 5))
)
#: Options of worlds with rare heartbeats, so that one question of the leader's stays the newest for long.
_SLOW = planned(
    network=SOUND, load=Load(4, 0, 10 * MS), limits=SAVING, seconds=8, spares=1, election_timeout_us=SECOND
)

_LATE_WORD = edit(Changes, "on_start_answer", (
    " and not self._replication.peers[sender.id].really_heard", "",
))
_BY_THE_MARK = edit(Installing, "_install", (
    "(base.id < r.log.base_id or r.log.term_at(base.id) == base.term)", "base.id <= r.guaranteed_id",
))

SNAPSHOTS = (
    Mutation(
        "N8", "R27", "a snapshot is compared with the guaranteed mark, not with the log, and late word begins another",
        "a learner gives up what it acknowledged: its leader counts what is gone",
        (_LATE_WORD, _BY_THE_MARK), _SLOW, ("nothing acknowledged given up",), makes=once(late_word),
    ),
    Mutation(
        "N8r", "R27", "as N8, and a refusal's round, and a learner in doubt, count for a promotion",
        "a voter that needs what was cleaned",
        (
            _LATE_WORD, _BY_THE_MARK,
            edit(Changes, "_promote", ("or not peer.matched or peer.doubted_round:", "or not peer.matched:"), (
                "peer.accepted_round < now.round", "peer.round < now.round",
            )),
            edit(Changes, "_begin_catch_up", (" and not p.doubted_round", "")),
            edit(Replication, "_doubt", ("votes = r.members.latest.is_voter(peer.who)", "votes = True")),
        ),
        _SLOW, ("members", "fully replicated", "cleaned too early", "no progress"),
        ("nothing acknowledged given up",), makes=once(late_word),
    ),
    Mutation(
        "N9", "R27", "a silent transfer goes on where its leader is",
        "a learner that has started again, and has nothing of it, stays one for the whole reign",
        (edit(Newcomers, "_repeat", ("self._send(sending, 0)", "self._send(sending, sending.at)")),),
        _PARTS, ("no progress",), makes=once(restarted_in_transfer),
    ),
    Mutation(
        "N9p", "R27", "a learner goes over to whatever transfer's first part comes, and answers no part of another",
        "a part of a deposed leader's makes it forget, and it stays a learner for the whole reign",
        (
            edit(Newcomers, "_repeat", ("self._send(sending, 0)", "self._send(sending, sending.at)")),
            edit(Installing, "on_part", ("key < self._newest or ", "(key != self._newest and part.part) or "), (
                "if key > self._newest:", "if key != self._newest:",
            )),
        ),
        _PARTS, ("no progress",), makes=once(part_of_another_transfer),
    ),
    Mutation(
        "P79", "R27", "late word that a disk is empty begins another snapshot",
        "all sessions go once more to a learner that keeps up",
        (_LATE_WORD,), _SLOW, ("members",), makes=once(late_word_is_no_reason),
    ),
)
