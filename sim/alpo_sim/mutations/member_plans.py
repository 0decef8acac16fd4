"""Plans of member changes that meet trouble (R27, R30). Each world goes through its plan once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alpo.core.inputs import Input
from alpo.core.members import MemberList, Role
from alpo.core.messages import AppendRequest, SnapshotAnswer, SnapshotPart
from alpo.core.ready import Ready
from alpo.core.requests import MembersChanged, MemberStep

from ..checks import Broken
from ..host import Host
from ..options import MS, SECOND
from ..stage import Watcher
from ..world import World
from .planned import Once, spare


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
