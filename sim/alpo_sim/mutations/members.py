"""Mutations of what happens to members: they come, go, and lose their disks (R27, R28, R30); and plans that show it.

Plans are of member changes that meet trouble. Each world goes through its plan once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from alpo.core import replica
from alpo.core.changes import Changes
from alpo.core.handover import Handover
from alpo.core.members import MemberList, Members, Role
from alpo.core.messages import AppendRequest, SnapshotAnswer, SnapshotPart
from alpo.core.outbox import Outbox
from alpo.core.parts import Reign
from alpo.core.ready import Input, Ready
from alpo.core.replica import Replica
from alpo.core.replication import Replication
from alpo.core.requests import MembersChanged, MemberStep
from alpo.core.snapshots import Installing, Newcomers

from ..checks import Broken
from ..host import Host
from ..options import MS, SECOND
from ..stage import Watcher
from ..world import World
from .fault_plans import handed_over, handed_over_with_one_down, lost_disk
from .log import LOST
from .mutation import Mutation, edit, swap
from .worlds import BUSY, ONE_BY_ONE, ORDERED, SAVING, SOUND, Once, once, planned, repeated, spare, world


def two_at_once(w: Once) -> Iterator[int]:
    """A leader of five takes out one member and then another while nothing is guaranteed; the other three go by the
    first list."""
    a, b, c, d, e = w.cast()
    w.parted(a, b, c)
    w.stall(b, 3 * SECOND)
    w.stall(c, 3 * SECOND)
    yield 20 * MS
    w.change(a, MemberStep.REMOVE, e)
    yield from w.waits(lambda: w.role(a, e) is Role.GONE, 100 * MS)
    w.parted(a, b)
    w.crash(c)
    w.change(a, MemberStep.REMOVE, d)
    yield from w.waits(lambda: w.role(a, d) is Role.GONE, 100 * MS)
    w.stalled_until[b] = w.stalled_until[c] = 0
    w.boot(c)
    yield SECOND


def list_of_another_reign(w: Once) -> Iterator[int]:
    """A leader of four adds a fifth, and nobody hears of it; the next leader removes a member before an entry of its
    own term is guaranteed (the error that Raft's one-server changes had until 2015)."""
    a, *others = w.cast()
    e = spare(w)
    others.remove(e)
    w.boot(e)
    w.drops = lambda x: w.role(a, e) is Role.VOTER and x.sender.id == a and x.target.id in others
    w.change(a, MemberStep.ADD, e)
    yield from w.waits(lambda: w.role(a, e) is Role.VOTER, 3 * SECOND)
    term = w.term(a)
    w.parted(a, e)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    b = next((id for id in others if w.leads(id, term)), others[0])
    c, d = (id for id in others if id != b)
    w.only((b, c), (c, b))
    w.drops = lambda x: isinstance(x.message, AppendRequest) and bool(x.message.entries) and w.role(b, a) is Role.VOTER
    w.change(b, MemberStep.REMOVE, a)
    yield from w.waits(lambda: w.role(b, a) is Role.GONE, 100 * MS)
    w.drops = lambda x: False
    yield 100 * MS
    w.parted(a, d, e)
    yield SECOND


def newcomer_dies(w: Once) -> Iterator[int]:
    """One of three members goes down while a fourth catches up, which dies too: two of three are a majority, two of
    four are none."""
    a, _, c, *_ = (id for id in w.cast() if id != spare(w))
    d = spare(w)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.LEARNER, 3 * SECOND)
    w.crash(c)
    yield from w.waits(lambda: w.role(a, d) is Role.VOTER, 500 * MS)
    w.crash(d)
    yield SECOND
    yield from w.demands_leader()


def remaining_majority(w: Once) -> Iterator[int]:
    """One of three members is down, and an operator removes another: one of the two that would remain answers."""
    a, b, c = w.cast()
    w.crash(c)
    yield 300 * MS
    w.change(a, MemberStep.REMOVE, b)
    yield SECOND
    yield from w.demands_leader()


def _removed_in_secret(w: Once, leader: int, follower: int) -> Iterator[int]:
    """A leader removes a follower, and from then on no entry of the leader's gets through to anybody."""
    w.drops = lambda x: (
        isinstance(x.message, AppendRequest) and bool(x.message.entries) and w.role(leader, follower) is Role.GONE
    )
    w.change(leader, MemberStep.REMOVE, follower)
    yield from w.waits(lambda: w.role(leader, follower) is Role.GONE, 100 * MS)


def removed_in_vain(w: Once) -> Iterator[int]:
    """A follower that is behind is removed, in a list that nobody hears of; the others clean entries that the follower
    lacks."""
    a, _, c = w.cast()
    w.alone(c)
    yield 100 * MS
    yield from _removed_in_secret(w, a, c)
    yield 130 * MS
    w.alone(a)
    w.drops = lambda x: False
    yield SECOND


def restarted_in_vain(w: Once) -> Iterator[int]:
    """A leader removes a follower, crashes before anybody hears of the list, and starts again under another leader."""
    a, _, c = w.cast()
    yield w.some_us(50, 200)
    yield from _removed_in_secret(w, a, c)
    yield 30 * MS
    w.crash(a)
    yield 500 * MS
    w.drops = lambda x: False
    w.boot(a)
    yield SECOND


def expunged_list(w: Once) -> Iterator[int]:
    """A leader removes a follower, and is cut off before anybody hears of the list, which is expunged once the
    leader is back."""
    a, b, c = w.cast()
    yield w.some_us(50, 200)
    yield from _removed_in_secret(w, a, c)
    w.parted(b, c)
    yield from w.waits(lambda: (led := w.leader()) is not None and led.me.id != a, 3 * SECOND)
    w.drops = lambda x: False
    w.parted(a, b, c)
    yield SECOND


def _late_base(w: Once, *, voter: bool) -> Iterator[int]:
    """The parts of a newcomer's base come once more, after a restart; ``voter``: when the newcomer has become a
    voter."""
    a, _, c, *_ = (id for id in w.cast() if id != spare(w))
    d = spare(w)
    w.keeps = lambda e: isinstance(e.message, SnapshotPart)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.LEARNER, 3 * SECOND)
    if not voter:
        w.crash(c)  # too few are left for a promotion
    yield from w.waits(lambda: w.role(d, d) is Role.VOTER, SECOND)
    yield 300 * MS
    w.crash(d)
    w.boot(d)
    yield 50 * MS
    for envelope in w.kept:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[d])
    yield 300 * MS


def late_base_to_a_learner(w: Once) -> Iterator[int]:
    """A snapshot comes once more to a learner that has started again since."""
    return _late_base(w, voter=False)


def late_base_to_a_voter(w: Once) -> Iterator[int]:
    """A snapshot comes once more to a voter that has started again since."""
    return _late_base(w, voter=True)


def cleaned_meanwhile(w: Once) -> Iterator[int]:
    """A leader cleans beyond the snapshot that it is sending; the newcomer starts again before its answer arrives, and
    its disk is slow when the next base comes."""
    a, d = w.cast()[0], spare(w)
    leader = w.stage.hosts[a].running
    yield 300 * MS
    w.keeps = lambda x: isinstance(x.message, SnapshotPart)
    w.drops = lambda x: isinstance(x.message, SnapshotPart | SnapshotAnswer)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: bool(w.kept), 3 * SECOND)
    before_id = leader.log.base_id
    yield from w.waits(lambda: leader.log.base_id > before_id, SECOND)
    w.drops = lambda x: isinstance(x.message, SnapshotAnswer)
    yield from w.waits(lambda: w.role(d, d) is Role.LEARNER, SECOND)
    yield 20 * MS
    w.crash(d)
    w.boot(d)
    w.drops = lambda x: False
    numbers = {x.message.number for x in w.kept if isinstance(x.message, SnapshotPart)}
    yield from w.waits(
        lambda: any(isinstance(x.message, SnapshotPart) and x.message.number not in numbers for x in w.kept), SECOND
    )
    w.stall(d, 300 * MS)
    yield 400 * MS


def taken_out_behind(w: Once) -> Iterator[int]:
    """A follower that was cut off for a while is removed, and hears heartbeats again, but no entries."""
    a, _, c = w.cast()
    w.alone(c)
    yield 200 * MS
    w.change(a, MemberStep.REMOVE, c)
    yield 300 * MS
    w.drops = lambda x: isinstance(x.message, AppendRequest) and bool(x.message.entries) and x.target.id == c
    w.set_cuts([])
    yield 300 * MS


def takes_out_the_leader(w: Once) -> Iterator[int]:
    """A leader is asked to remove itself."""
    a, *_ = w.cast()
    w.change(a, MemberStep.REMOVE, a)
    yield SECOND


def takes_itself_out_and_crashes(w: Once) -> Iterator[int]:
    """The leader of two removes itself, and crashes before the other hears of it: the leader's log stays the
    freshest."""
    a, *_ = w.cast()
    w.drops = lambda x: (
        isinstance(x.message, AppendRequest) and bool(x.message.entries) and w.role(a, a) is Role.GONE
    )
    w.change(a, MemberStep.REMOVE, a)
    yield from w.waits(lambda: w.role(a, a) is Role.GONE, 100 * MS)
    leader = w.stage.hosts[a].replica
    yield from w.waits(lambda: leader is None or w.stage.hosts[a].disk_last_id >= leader.members.latest_id, 100 * MS)
    w.crash(a)
    w.drops = lambda x: False
    w.boot(a)
    yield from w.demands_leader()


def one_more(w: Once) -> Iterator[int]:
    """A server is added while much is appended."""
    a, *_ = w.cast()
    yield 500 * MS
    w.boot(spare(w))
    w.change(a, MemberStep.ADD, spare(w))
    yield 3 * SECOND


class _ToldLists(Watcher):
    """Checks that lists told to operators name server ``id`` by the disk that it has now. Raises `Broken`."""

    def __init__(self, world: World, id: int) -> None:
        self._host = world.stage.hosts[id]

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        runs = self._host.store.boot().me
        for reply in ready.replies:
            if isinstance(reply, MembersChanged):
                listed = MemberList.from_plain(reply.members).identity_of(runs.id)
                if listed != runs:
                    raise Broken("members", f"server {runs.id} is said to be replaced by a disk that is lost")


def lost_twice(w: Once) -> Iterator[int]:
    """A follower's disk is lost and replaced; the new one is lost too, and an operator asks at once to replace it."""
    a, s, _ = w.cast()
    w.wipe(s)
    w.boot(s)
    yield from w.waits(lambda: w.role(s, s) is Role.VOTER, 3 * SECOND)
    yield 300 * MS
    w.wipe(s)
    w.boot(s)
    w.stage.watchers.append(_ToldLists(w, s))
    w.change(a, MemberStep.REPLACE, s)
    yield SECOND


_CALM = planned(network=SOUND, load=BUSY, seconds=6)
_GROWING = planned(network=SOUND, load=BUSY, seconds=8, spares=1)
#: Options of worlds with cleaning. As ``wipes`` is set, all servers must be members in the end.
_CLEANING = planned(
    network=SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1, wipes=1, clean_every_us=20 * MS,
)

_HELD = "if self._first_start.started and (base.id < r.log.base_id or r.log.term_at(base.id) == base.term):"

MEMBERS = (
    Mutation(
        "M16", "R27", "a member list is appended before the one before it is guaranteed",
        "two disjoint majorities: two servers hold different entries guaranteed at one id",
        (edit(Changes, "may_change", (" >= r.members.latest_id", "")),),
        planned(network=SOUND, servers=5, load=BUSY, seconds=6), (*LOST, "one leader a term", "linearizable"),
        ("members",), makes=once(two_at_once),
    ),
    Mutation(
        "N1", "R30", "a new disk is made a voter in the same entry that retires the lost one",
        "a late vote of the lost disk completes a majority",
        (edit(Changes, "_replace_lost", ("role=Role.LEARNER", "role=Role.VOTER")),),
        planned(network=SOUND, load=BUSY, seconds=6, wipes=1), ("members",), makes=repeated(lost_disk),
    ),
    Mutation(
        "P85", "R30", "a server that was replaced before is said to be replaced whatever its disk is now",
        "an operator believes that a lost disk is made good",
        (edit(Changes, "_advance_pending", ("listed.identity == self._heard", "True")),),
        planned(network=SOUND, load=BUSY, seconds=6, wipes=2), ("members",), makes=once(lost_twice),
    ),
    Mutation(
        "N2", "R27", "a newcomer is promoted without the fresh round",
        "it dies, is promoted, and half of four are no majority: no leader for ever",
        (edit(Changes, "_promote", (
            "if peer.accepted_round < now.round:", "if False:"), (
            "if len(latest.voters) == 1 or self._answered(now.round, latest) >= need:", "if True:",
        )),),
        _GROWING, ("no progress",), makes=once(newcomer_dies),
    ),
    Mutation(
        "N3", "R27", "a member list is appended before an entry of the leader's own term is guaranteed",
        "two disjoint majorities: a leader that lacks what was guaranteed",
        (edit(Changes, "may_change", ("self._replication.first_id <= ", "")),),
        planned(network=SOUND, servers=4, spares=1, load=BUSY, seconds=8), LOST, ("members",),
        makes=once(list_of_another_reign),
    ),
    Mutation(
        "N6", "R18", "the fully replicated mark moves while a member list is not guaranteed",
        "a member that was to be taken out, and was not, can never be caught up",
        (edit(Replication, "count", (" and r.members.latest_id <= r.guaranteed_id", "")),),
        planned(network=SOUND, load=BUSY, seconds=6, clean_every_us=10 * MS), ("no progress", "alarm"),
        ("fully replicated", "cleaned too early"), makes=once(removed_in_vain),
    ),
    Mutation(
        "P60", "R27", "a newcomer is promoted before it has caught up",
        "a voter that holds nothing: every other failure stops the cluster until it has",
        (
            edit(Changes, "_begin_catch_up", ("p.matched and p.match_id >= r.members.latest_id", "True")),
            edit(Changes, "_promote", (
                "peer.match_id < now.upto_id or not peer.matched or peer.doubted_round", "False",
            )),
        ),
        planned(network=SOUND, load=BUSY, limits=ONE_BY_ONE, seconds=6, spares=1), ("members",),
        makes=once(one_more),
    ),
    Mutation(
        "P61", "R22", "a snapshot comes without its sessions",
        "what was remembered of clients is forgotten: their retries are appended twice",
        (edit(Newcomers, "on_snapshot", ("snapshot.table.changed, r", "[], r")),),
        planned(network=SOUND, load=BUSY, limits=SAVING, seconds=6, spares=1), ("equal tables", "alarm"),
        makes=once(one_more),
    ),
    Mutation(
        "P62", "R27", "a snapshot is taken by a voter",
        "what it had accepted, and what is guaranteed by that, is given up",
        (edit(Installing, "_install", (_HELD, "if False:"), (
            "if self._first_start.started and r.members.latest.is_voter(r.me):", "if False:",
        )),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=once(late_base_to_a_voter),
    ),
    Mutation(
        "P63", "R27", "a snapshot is taken though its last entry is held",
        "a learner gives up what it holds, and its marks go back",
        (edit(Installing, "_install", (_HELD, "if False:")),),
        _GROWING, ("nothing acknowledged given up", *LOST, "ready"), makes=once(late_base_to_a_learner),
    ),
    Mutation(
        "P81", "R27", "an id that comes back into the list has the priority that it had",
        "an operator's word is not heeded: another server leads than was wanted",
        (edit(Changes, "_advance_pending", (" and listed.role is not Role.GONE", "")),),
        world(network=SOUND, faults=("crash",), stewards=2, spares=2, servers=2, seconds=20), ("members",),
    ),
    Mutation(
        "P64", "R28", "a leader that was taken out goes on leading",
        "the cluster is led by a server that is none of it",
        (swap(Reign, "_leave", lambda reign: None),),
        _CALM, ("steps down",), makes=once(takes_out_the_leader),
    ),
    Mutation(
        "P65", "R27", "a voter is taken out without asking those who remain",
        "one of them is down: no leader until it returns",
        (edit(Changes, "_may_take_out", ("return self._answered(now[1], remain) >= remain.majority",
                                         "return True")),),
        _CALM, ("no progress",), ("steps down",), makes=once(remaining_majority),
    ),
    Mutation(
        "P66", "R27", "a leader goes on from a snapshot that it has cleaned beyond meanwhile",
        "it has nothing to send that follows on, and stops itself",
        (edit(Newcomers, "on_snapshot_answer", ("if answer.base_id < r.log.base_id:", "if False:")),),
        _CLEANING, ("alarm",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P67", "R14", "what rests on a snapshot leaves before the snapshot is on disk",
        "an acceptance vanishes when the learner restarts",
        (edit(Outbox, "install", ("self._hard_dirty, self.hard_durable = True, False", "self._needed = True")),),
        _CLEANING, ("durable before sent",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P68", "R27", "a snapshot that is held already is not answered",
        "its transfer never ends, and no other begins: the newcomer is never caught up",
        (
            edit(Installing, "_install", (
                "self._base_id = base.id\n        r.out.send_after_write(sender, answer)", "self._base_id = base.id",
            )),
            edit(Installing, "on_part", ("if self._base_id is not None:", "if False:")),
        ),
        _CLEANING, ("no progress",), makes=once(cleaned_meanwhile),
    ),
    Mutation(
        "P69", "R18, R31", "a server that was taken out is told the fully replicated mark, which counts it no more",
        "it takes its disk for one that has forgotten, and sets it aside",
        (edit(Replication, "_send", ("if peer.parting_until_s is None else 0", "")),),
        _CALM, ("alarm",), makes=once(taken_out_behind),
    ),
    Mutation(
        "N7", "R27", "only the latest list says who may stand",
        "a leader of two that removed itself and crashed: no leader for ever",
        (edit(Members, "_derive", ("any(members.is_voter(self.me) for _, members in self._stack)", "self.i_vote")),),
        planned(network=ORDERED, servers=2, load=replace(BUSY, writers=2), seconds=6), ("no progress",),
        makes=once(takes_itself_out_and_crashes),
    ),
    Mutation(
        "P30", "R27", "a member list is not undone by an expunge",
        "a server goes by a list that is not in the log: its majority is not the others'",
        (edit(Replica, "expunge", ("in self._made", "in (self.trims, self.cursors)")),),
        planned(network=ORDERED, load=BUSY, seconds=6), ("equal tables", *LOST), makes=once(expunged_list),
    ),
    Mutation(
        "P31", "R27", "the member list is saved as of the head of the log, not of the guaranteed mark",
        "a list that is expunged after a restart stays in force",
        (edit(replica, "table_save", ("r.members.at(r.guaranteed_id)", "r.members.at(r.log.last_id)")),),
        planned(network=ORDERED, load=BUSY, limits=(("table_save_entries", 1),), seconds=6), ("equal tables", *LOST),
        makes=once(restarted_in_vain),
    ),
    Mutation(
        "P37", "R28", "the heir is never told",
        "every leader that is stopped leaves the cluster without one for an election timeout",
        (edit(Handover, "_tell", ("r.out.send(target.who, HandOver(r.term))", "pass")),),
        planned(network=ORDERED), ("no progress",), makes=repeated(handed_over),
    ),
    Mutation(
        "P38", "R28", "a leader that has handed over leaves at once",
        "with one server down its successor lacks its vote: no leader",
        (edit(Handover, "advance", (
            "return not self._led_term or (\n"
            "            r.guaranteed_id > 0 and (r.log.term_at(r.guaranteed_id) or 0) > self._led_term\n"
            "        )",
            "return True",
        )),),
        planned(network=ORDERED, load=replace(BUSY, writers=2)), ("no progress",),
        makes=repeated(handed_over_with_one_down),
    ),
)
