"""Mutations of marks, and of doubts: conclusions from answers that say less, or more, than is true (R16, R31).

Each world goes through its plan once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alpo.core.acceptance import Acceptance
from alpo.core.inputs import Input
from alpo.core.messages import AppendRequest, CanvassRequest, CopyAnswer
from alpo.core.ready import Ready
from alpo.core.replication import Replication

from ..checks import Broken
from ..host import Host
from ..options import MS, SECOND, Load, Network
from ..stage import Watcher
from ..world import World
from .mutation import Mutation, edit
from .planned import Once, once
from .worlds import BUSY, SOUND, planned


def marks_of_a_damaged_follower(w: Once) -> Iterator[int]:
    """A follower does not know yet that its last entry is guaranteed. The entry before that is found damaged, so
    that the leader counts only what lies before; the follower starts again, hears one heartbeat, and the leader
    dies."""
    a, s, c = w.cast()
    yield from w.waits(lambda: all(r.guaranteed_id > 4 for r in w.replicas()), 4 * SECOND)
    yield from w.waits(lambda: len({id for r in w.replicas() for id in (r.fully_replicated_id, r.last_id)}) == 1)
    w.crash(s)
    w.boot(s)  # the server begins with the marks of its last write
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.target.id == s
    w.set_clock(s, 0.5, 0)
    term = w.term(a)
    w.crash(a)
    yield from w.waits(lambda: w.leads(c, term))
    leader, follower = w.stage.hosts[c].replica, w.stage.hosts[s].replica
    if leader is None or leader.leadership is None or follower is None or follower.last_id < 3:
        w.drops = lambda x: False
        return
    w.drops = lambda x: isinstance(x.message, AppendRequest) and (x.target.id == s or bool(x.message.entries))
    w.set_clock(a, 0.2, 0)
    w.boot(a)
    w.damage(s, (follower.last_id - 1,))
    w.drops = lambda x: isinstance(x.message, CopyAnswer) or (
        isinstance(x.message, AppendRequest) and bool(x.message.entries)
    )
    peer = leader.leadership.peers[s]
    yield from w.waits(lambda: peer.match_id > 0)
    w.crash(s)
    w.boot(s)
    yield from w.waits(lambda: _heard(w, s))
    w.crash(c)
    w.drops = lambda x: isinstance(x.message, CanvassRequest) and x.sender.id == a
    w.set_clock(s, 1.0, 0)
    yield 2 * SECOND


class _FalseDoubts(Watcher):
    """Watcher that counts how often leaders say wrongly that a disk has forgotten entries that it acknowledged."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.false = 0

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for event in ready.events:
            if event.name in ("store_went_back", "learner_went_back"):
                other = self._w.stage.hosts[event.fields["member"]]
                self.false += other.disk_last_id >= event.fields["held_id"]


def overtaking(w: Once) -> Iterator[int]:
    """Requests and answers overtake each other for seconds: a leader often hears a refusal after a later acceptance,
    and must take it for the old answer that it is. Raises `Broken`."""
    words = _FalseDoubts(w)
    w.stage.watchers.append(words)
    yield 4 * SECOND
    if words.false:
        raise Broken("damage", f"{words.false} times a leader said of a sound disk that it has forgotten")


def _heard(w: Once, id: int) -> bool:
    replica = w.stage.hosts[id].replica
    return replica is not None and replica.acceptance.matched_id > 0



MARKS = (
    Mutation(
        "N10", "R16", "a passive server takes the carried fully replicated mark as it comes",
        "it is beyond the guaranteed one: a sound server stops itself on winning",
        (edit(Acceptance, "_take", (
            "r.set_fully_replicated(request.fully_replicated_id)",
            "r.fully_replicated_id = max(r.fully_replicated_id, request.fully_replicated_id)",
        )),),
        planned(network=SOUND, load=Load(1, 0, 300 * MS), seconds=8), ("alarm", "fully replicated"),
        makes=once(marks_of_a_damaged_follower),
    ),
    Mutation(
        "P80", "R31", "a doubt that newer acknowledgements have settled goes on",
        "operators are told of lost disks, again and again, where there are none",
        (edit(Replication, "on_answer", ("if answer.round >= peer.doubted_round:", "if False:")),
         edit(Replication, "_doubt", ("answer.last_id >= peer.doubted_id", "False"))),
        planned(
            network=Network((100, 9000), 0.0, SECOND, 0.0, 0.0, False), load=BUSY, seconds=8,
            limits=(("request_bytes_max", 1),),
        ), ("damage",), makes=once(overtaking),
    ),
)
