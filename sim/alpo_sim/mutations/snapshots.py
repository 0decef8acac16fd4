"""Mutations of how bases are sent and installed, and plans of bases that meet trouble on their way (R14, R27).

Each world goes through its plan once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alpo.core.changes import Changes
from alpo.core.inputs import Clean
from alpo.core.installing import Installing
from alpo.core.members import Role, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    Envelope,
    SnapshotPart,
    StartAnswer,
)
from alpo.core.newcomers import Newcomers
from alpo.core.replication import Replication
from alpo.core.requests import MemberStep

from ..checks import Broken
from ..options import MS, SECOND, Load
from .mutation import Mutation, edit
from .planned import Once, once, spare
from .worlds import BUSY, SAVING, SOUND, planned

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
