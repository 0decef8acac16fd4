"""Plans for deferrals that are refused (R6), and the mutations that show there. Each world goes through its plan once.

Two servers canvass a third at the same time, hear yes, and stand in the same term; it votes for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core.election import Election
from alpo.core.messages import (
    CanvassAnswer,
    CanvassRequest,
    DeferAnswer,
    DeferRequest,
    Envelope,
    VoteAnswer,
    VoteRequest,
)

from ..options import MS, SECOND, Network
from .changing import Changing, changing
from .mutation import Mutation, edit
from .worlds import IDLE, planned


def _two_stand(w: Changing) -> Iterator[int]:
    """Afterwards the two stand in one term, their votes on disk, and nobody has been asked for his."""
    voter, *others = w.cast()
    term = w.term(voter)
    yield from w.waits(lambda: len({r.last_id for r in w.replicas()}) == 1)
    w.alone(*w.links.ids)
    yield from w.waits(lambda: not w.leads(voter))

    def passes(x: Envelope) -> bool:
        asks = isinstance(x.message, CanvassRequest) and x.sender.id in others and x.target.id == voter
        return asks or isinstance(x.message, CanvassAnswer)

    w.drops = lambda x: not passes(x)
    w.set_cuts([])
    yield from w.waits(lambda: all(w.stands(id) and w.stage.hosts[id].disk_vote == id for id in others))
    if len({w.term(id) for id in others}) > 1 or w.term(voter) > term:
        w.drops = lambda x: False


def _roles(w: Changing) -> tuple[int, int, int] | None:
    """The two that stand, the one of lower rank first, and the voter; None if it did not come to that."""
    standing = sorted((r.rank, r.me.id) for r in w.replicas() if w.stands(r.me.id))
    if len(standing) != 2 or len({w.term(id) for _, id in standing}) > 1:
        return None
    (_, low), (_, high) = standing
    return low, high, next(id for id in w.links.ids if id not in (low, high))


def refused_by_the_winner(w: Changing) -> Iterator[int]:
    """The one of higher rank asks the other to make way, which has won meanwhile, and hears both at once."""
    yield from _two_stand(w)
    roles = _roles(w)
    if roles is None:
        return
    low, _, voter = roles
    w.drops = lambda x: not (isinstance(x.message, VoteRequest) and x.sender.id == low and x.target.id == voter)
    yield from w.waits(lambda: w.vote(voter) == low, 100 * MS)
    w.paused_until[low] = w.now_us + 60 * MS
    w.drops = lambda x: isinstance(x.message, VoteRequest) and voter not in (x.sender.id, x.target.id)
    yield 100 * MS


def refused_by_a_better_one(w: Changing) -> Iterator[int]:
    """The voter starts again and no longer knows the rank of the one it has voted for, which has not heard of that;
    the other one asks it to make way. What it asked comes once more, two terms later."""
    yield from _two_stand(w)
    roles = _roles(w)
    if roles is None:
        return
    low, high, voter = roles
    term = w.term(low)
    w.set_clock(low, 0.5, 0)
    w.set_clock(high, 0.3, 0)
    w.drops = lambda x: not (isinstance(x.message, VoteRequest) and x.sender.id == high and x.target.id == voter)
    yield from w.waits(lambda: w.stage.hosts[voter].disk_vote == high, 100 * MS)
    w.crash(voter)
    w.set_clock(voter, 10.0, 0)  # it takes no leader for alive that it has not heard
    w.keeps = lambda x: isinstance(x.message, DeferRequest)
    w.drops = lambda x: not (
        (isinstance(x.message, VoteRequest | DeferRequest) and x.sender.id == low)
        or (isinstance(x.message, VoteAnswer | DeferAnswer) and x.target.id == low)
    )
    w.boot(voter)
    yield from w.waits(lambda: not w.stands(low), 300 * MS)
    for id in w.links.ids:
        w.set_clock(id, 1.0, 0)
    w.alone(low)
    w.drops = lambda x: False
    yield from w.waits(lambda: w.term(high) > term)
    w.only((high, low))
    w.drops = lambda x: not isinstance(x.message, DeferAnswer)
    for envelope in w.kept:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[high])
    yield 20 * MS
    w.drops = lambda x: False
    w.set_cuts([])
    yield SECOND


_CALM = planned(network=Network((100, 2000), 0.0, SECOND, 0.0, 0.0, False), load=IDLE, seconds=4)

DEFERRING = (
    Mutation(
        "P76", "R6", "a leader that is asked to defer steps down",
        "an election is over, and there is no leader",
        (edit(Election, "on_defer_request", ("elif r.state is State.LEADER:", "elif False:")),),
        _CALM, ("disturbed",), makes=changing(refused_by_the_winner),
    ),
    Mutation(
        "P77", "R6", "a candidate defers to one of lower rank",
        "a candidacy that could have won is given up",
        (edit(Election, "on_defer_request", (
            "elif r.state is State.CANDIDATE and r.rank > request.rank:", "elif False:",
        )),),
        _CALM, ("disturbed",), makes=changing(refused_by_a_better_one),
    ),
)
