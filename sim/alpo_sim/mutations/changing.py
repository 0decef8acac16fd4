"""Plans for worlds in which members change (R27, R30). Each world goes through its plan once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from alpo.core.inputs import ChangeMember, Input, MemberStep
from alpo.core.members import MemberList, Role
from alpo.core.messages import AppendRequest, BaseAnswer, BasePart, Envelope
from alpo.core.ready import MembersChanged, Ready, Reply

from ..broken import Broken
from ..host import Host
from ..options import MS, SECOND, Options
from ..party import Party
from ..stage import Watcher
from ..world import World
from .directed import Directed, Plan


class Hands(Party):
    """An operator's; what becomes of it is seen in the list."""

    def heard(self, server: int, reply: Reply) -> None:
        return


class Changing(Directed):
    """A world that goes through its plan once. ``drops``: messages that get lost on their way; ``kept`` holds copies of
    those that ``keeps`` says."""

    def __init__(self, options: Options, plan: Plan) -> None:
        super().__init__(options, plan)
        self.drops: Callable[[Envelope], bool] = lambda envelope: False
        self.keeps: Callable[[Envelope], bool] = lambda envelope: False
        self.kept: list[Envelope] = []
        self._hands: Hands | None = None

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
        """An operator asks server ``at`` for it."""
        if self._hands is None:
            self._hands = Hands(self.clients)
        address = "" if step is MemberStep.REMOVE else self.stage.hosts[id].address
        if self.up(at):
            self.ask(at, ChangeMember(self._hands.origin(), step, id, address, 0))

    def role(self, at: int, id: int) -> Role:
        """Of ``id`` in the latest list of server ``at``."""
        replica = self.stage.hosts[at].replica
        member = replica.members.latest.get(id) if replica is not None else None
        return member.role if member is not None else Role.GONE

    def parted(self, *group: int) -> None:
        """Nothing passes between these and the others."""
        ids = self.links.ids
        self.set_cuts([(a, b) for a in ids for b in ids if (a in group) != (b in group)])


def changing(plan: Callable[[Changing], Iterator[int]]) -> Callable[[Options], World]:
    """What makes the worlds of that plan."""
    return lambda options: Changing(options, plan)  # type: ignore[arg-type]


def _spare(w: Changing) -> int:
    return len(w.stage.hosts)


def two_at_once(w: Changing) -> Iterator[int]:
    """Of five, a leader takes out one and then another while nothing is guaranteed; the other three go by the first
    list."""
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


def list_of_another_reign(w: Changing) -> Iterator[int]:
    """Of four, the leader adds a fifth, alone; the next one takes it out before its own reign has begun (the error that
    Raft's one-server changes had until 2015)."""
    a, *others = w.cast()
    e = _spare(w)
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


def newcomer_dies(w: Changing) -> Iterator[int]:
    """One of three is down while a fourth catches up, and dies: the other two are a majority of three, not of four."""
    a, _, c, *_ = (id for id in w.cast() if id != _spare(w))
    d = _spare(w)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.LEARNER, 3 * SECOND)
    w.crash(c)
    yield from w.waits(lambda: w.role(a, d) is Role.VOTER, 500 * MS)
    w.crash(d)
    yield SECOND
    yield from w.demands_leader()


def remaining_majority(w: Changing) -> Iterator[int]:
    """One of three is down, and an operator takes out another one: of the two that would remain one answers."""
    a, b, c = w.cast()
    w.crash(c)
    yield 300 * MS
    w.change(a, MemberStep.REMOVE, b)
    yield SECOND
    yield from w.demands_leader()


def _removed_in_secret(w: Changing, leader: int, follower: int) -> Iterator[int]:
    """The leader takes a follower out, and from then on no entry of its gets through to anybody."""
    w.drops = lambda x: (
        isinstance(x.message, AppendRequest) and bool(x.message.entries) and w.role(leader, follower) is Role.GONE
    )
    w.change(leader, MemberStep.REMOVE, follower)
    yield from w.waits(lambda: w.role(leader, follower) is Role.GONE, 100 * MS)


def removed_in_vain(w: Changing) -> Iterator[int]:
    """A follower is behind, and being taken out; nobody gets to know, and what it lacks is cleaned by the others."""
    a, _, c = w.cast()
    w.alone(c)
    yield 100 * MS
    yield from _removed_in_secret(w, a, c)
    yield 130 * MS
    w.alone(a)
    w.drops = lambda x: False
    yield SECOND


def restarted_in_vain(w: Changing) -> Iterator[int]:
    """A leader takes a follower out, and crashes before anybody gets to know; it starts again under another leader."""
    a, _, c = w.cast()
    yield w.some_us(50, 200)
    yield from _removed_in_secret(w, a, c)
    yield 30 * MS
    w.crash(a)
    yield 500 * MS
    w.drops = lambda x: False
    w.boot(a)
    yield SECOND


def expunged_list(w: Changing) -> Iterator[int]:
    """A leader takes a follower out, and is cut off before anybody gets to know; its entry is expunged as it comes
    back."""
    a, b, c = w.cast()
    yield w.some_us(50, 200)
    yield from _removed_in_secret(w, a, c)
    w.parted(b, c)
    yield from w.waits(lambda: (led := w.leader()) is not None and led.me.id != a, 3 * SECOND)
    w.drops = lambda x: False
    w.parted(a, b, c)
    yield SECOND


def _late_base(w: Changing, *, voter: bool) -> Iterator[int]:
    a, _, c, *_ = (id for id in w.cast() if id != _spare(w))
    d = _spare(w)
    w.keeps = lambda e: isinstance(e.message, BasePart)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.LEARNER, 3 * SECOND)
    if not voter:
        w.crash(c)  # now there are not as many as a promotion needs
    yield from w.waits(lambda: w.role(d, d) is Role.VOTER, SECOND)
    yield 300 * MS
    w.crash(d)
    w.boot(d)
    yield 50 * MS
    for envelope in w.kept:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[d])
    yield 300 * MS


def late_base_to_a_learner(w: Changing) -> Iterator[int]:
    """A base comes once more, long after, to a learner that has started again since."""
    return _late_base(w, voter=False)


def late_base_to_a_voter(w: Changing) -> Iterator[int]:
    """As `late_base_to_a_learner`, to one that has become a voter."""
    return _late_base(w, voter=True)


def cleaned_meanwhile(w: Changing) -> Iterator[int]:
    """A base is on its way to a newcomer while its sender cleans beyond it; the newcomer starts again before its answer
    has come, and has a slow disk when the next base comes."""
    a, d = w.cast()[0], _spare(w)
    leader = w.stage.hosts[a].replica
    assert leader is not None
    yield 300 * MS
    w.keeps = lambda x: isinstance(x.message, BasePart)
    w.drops = lambda x: isinstance(x.message, BasePart | BaseAnswer)
    w.boot(d)
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: bool(w.kept), 3 * SECOND)
    before_id = leader.log.base_id
    yield from w.waits(lambda: leader.log.base_id > before_id, SECOND)
    w.drops = lambda x: isinstance(x.message, BaseAnswer)
    yield from w.waits(lambda: w.role(d, d) is Role.LEARNER, SECOND)
    yield 20 * MS
    w.crash(d)
    w.boot(d)
    w.drops = lambda x: False
    numbers = {x.message.number for x in w.kept if isinstance(x.message, BasePart)}
    yield from w.waits(
        lambda: any(isinstance(x.message, BasePart) and x.message.number not in numbers for x in w.kept), SECOND
    )
    w.stall(d, 300 * MS)
    yield 400 * MS


def taken_out_behind(w: Changing) -> Iterator[int]:
    """A follower that was away for a while is taken out, and hears of it."""
    a, _, c = w.cast()
    w.alone(c)
    yield 200 * MS
    w.change(a, MemberStep.REMOVE, c)
    yield 300 * MS
    w.drops = lambda x: isinstance(x.message, AppendRequest) and bool(x.message.entries) and x.target.id == c
    w.set_cuts([])
    yield 300 * MS


def takes_out_the_leader(w: Changing) -> Iterator[int]:
    """A leader is asked to take itself out."""
    a, *_ = w.cast()
    w.change(a, MemberStep.REMOVE, a)
    yield SECOND


def takes_itself_out_and_crashes(w: Changing) -> Iterator[int]:
    """One of two leads, takes itself out, and crashes before the other one knows: nobody else's log is as fresh."""
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


def one_more(w: Changing) -> Iterator[int]:
    """A server is added while much is appended."""
    a, *_ = w.cast()
    yield 500 * MS
    w.boot(_spare(w))
    w.change(a, MemberStep.ADD, _spare(w))
    yield 3 * SECOND


class Told(Watcher):
    """Compares the lists that are told to operators with a server's disk. Raises `Broken`."""

    def __init__(self, world: World, id: int) -> None:
        self._host = world.stage.hosts[id]

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        runs = self._host.store.boot().me
        for reply in ready.replies:
            if isinstance(reply, MembersChanged):
                listed = MemberList.from_plain(reply.members).identity_of(runs.id)
                if listed != runs:
                    raise Broken("members", f"server {runs.id} is said to be replaced by a disk that is lost")


def lost_twice(w: Changing) -> Iterator[int]:
    """A follower's disk was lost and replaced; that one is lost too, and an operator asks at once to replace it."""
    a, s, _ = w.cast()
    w.wipe(s)
    w.boot(s)
    yield from w.waits(lambda: w.role(s, s) is Role.VOTER, 3 * SECOND)
    yield 300 * MS
    w.wipe(s)
    w.boot(s)
    w.stage.watchers.append(Told(w, s))
    w.change(a, MemberStep.REPLACE, s)
    yield SECOND
