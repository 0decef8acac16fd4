"""Plans in which chosen messages get lost, and the mutations that show there. Each world goes through its plan once."""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core.acceptance import Acceptance
from alpo.core.messages import AppendRequest

from ..options import MS, SECOND, Load, Network
from .changing import Changing, changing
from .mutation import Mutation, edit
from .worlds import ONE_BY_ONE, planned


def a_tail_of_its_own(w: Changing) -> Iterator[int]:
    """A leader that was cut off holds entries that nobody else has. What the next one sends in their place is lost."""
    old, *others = w.cast()
    w.parted(*others)
    yield from w.waits(lambda: any(map(w.leads, others)), 5 * SECOND)
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.target.id == old and bool(x.message.entries)
    w.set_cuts([])
    yield SECOND  # all are connected again long before
    w.drops = lambda x: False
    yield 3 * SECOND


_CALM = planned(
    network=Network((100, 2000), 0.0, SECOND, 0.0, 0.0, False), load=Load(3, 0, 200 * MS), limits=ONE_BY_ONE, seconds=8
)

DROPPING = (
    Mutation(
        "P78", "R17", "a server with as long a log of its own is taken to have what was sent to it",
        "what was lost on its way is never sent again",
        (edit(Acceptance, "_acceptance", ("request.prev_id, self.matched_id,", "request.prev_id, r.log.last_id,")),),
        _CALM, ("no progress",), makes=changing(a_tail_of_its_own),
    ),
)
