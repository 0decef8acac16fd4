"""Plans for marks and answers that say less, or more, than there is, and the mutations that show there (R16, R31).

Each world goes through its plan once.
"""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core.acceptance import Acceptance
from alpo.core.messages import AppendAnswer, AppendRequest, CanvassRequest, CopyAnswer
from alpo.core.replication import Progress, Replication

from ..broken import Broken
from ..options import MS, SECOND, Network
from .changing import Changing, changing
from .mutation import Mutation, edit
from .worlds import BUSY, IDLE, planned


def marks_of_a_damaged_follower(w: Changing) -> Iterator[int]:
    """A follower that does not know yet that its last entry is guaranteed is found damaged, and its leader counts only
    what lies before; it starts again, hears one heartbeat that begins there, and the leader dies."""
    a, s, c = w.cast()
    yield from w.waits(lambda: len({r.fully_replicated_id for r in w.replicas()} | {r.last_id for r in w.replicas()}) == 1)
    w.crash(s)
    w.boot(s)  # its marks are as of its last write
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
    yield from w.waits(lambda: 0 < peer.match_id)
    w.crash(s)
    heard: list[bool] = []

    def lost(x: object) -> bool:
        return False

    w.boot(s)
    yield SECOND


_SOUND = Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)

DOUBTS = ()
