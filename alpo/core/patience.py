"""Which inputs need no step of their own: work is per group, and a step that moves nothing is work for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .inputs import Input, Persisted, Received
from .state import State

if TYPE_CHECKING:
    from .replica import Replica

_MAY_WAIT = frozenset((Persisted, Received))


def can_wait(r: Replica, item: Input) -> bool:
    """Would a step for this alone move nothing that anybody waits for? Then it may come with the next inputs.

    What may move the guaranteed mark together with something else that waits is never among it.
    """
    if type(item) not in _MAY_WAIT or r.handing is not None or r.reads.waiting or not r.out.hard_durable:
        return False
    if type(item) is Persisted:
        if r.log.writing_bytes > r.cfg.peer_inflight_bytes_max:
            return False  # clients may wait for our disk
        stable_id = r.log.stable_after(item.number)
        if r.leadership is not None:
            return r.leadership.mark_with(stable_id) <= r.guaranteed_id
        return r.state is State.PASSIVE and r.guaranteed_id <= r.log.stable_id
    if type(item) is Received and r.leadership is not None:
        return r.leadership.can_wait(item.envelope.sender, item.envelope.message)
    return False
