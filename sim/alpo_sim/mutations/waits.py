"""Mutations by which nothing is lost, but somebody waits who need not wait, and the plans that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from alpo.core.messages import CopyAnswer
from alpo.core.replica import Replica
from alpo.core.requests import AppendRun, Reply

from ..broken import Broken
from ..clients import Actor
from ..host import WALL_ZERO_MS
from ..options import MS, SECOND
from ..writers import random_client
from .mutation import Mutation, edit
from .planned import Once, once
from .worlds import IDLE, ORDERED, planned


class _Steady(Actor):
    """Client that appends at one server every ``every_us``, whatever it is answered, while that server leads."""

    def __init__(self, w: Once, server: int, every_us: int) -> None:
        super().__init__(w.clients)
        self._w, self.server, self._every_us, self._serial = w, server, every_us, 0
        w.clients.ids_created += 1
        self._client = random_client(WALL_ZERO_MS, w.clients.ids_created)
        self._append()

    def _append(self) -> None:
        w = self._w
        if w.leads(self.server) and not w.clients.closing:
            self._serial += 1
            run = AppendRun(self.origin(), self._client, 0, self._serial, [(1, w.clients.payload())])
            w.history.asked(run)
            w.ask(self.server, run)
            w.after(self._every_us, self._append)

    def heard(self, server: int, reply: Reply) -> None:
        return


def _demand(w: Once, met: Callable[[], bool], within_us: int, what: str) -> Iterator[int]:
    """Demand that ``met()`` comes true within ``within_us``; ``what``: the violation in words. Yields waits. Raises
    `Broken`."""
    yield from w.waits(met, within_us)
    if not met():
        raise Broken("no progress", f"{what}, {within_us / SECOND:.1f} s long")


def _damaged_under_load(w: Once) -> Iterator[int]:
    """An entry of the leader's is damaged, no copy mends it, and appends keep coming."""
    leader, *_ = w.cast()
    yield w.some_us(200, 400)
    w.drops = lambda x: isinstance(x.message, CopyAnswer)
    _Steady(w, leader, MS)
    yield 100 * MS
    w.damage(leader, (1,))
    yield from _demand(w, lambda: not w.leads(leader), 8 * w.options.election_timeout_us, "a damaged leader leads on")


WAITS = (
    Mutation(
        "W1", "R31, full disks", "a leader that hands over by itself goes on taking appends",
        "something is always in flight: it leads on while appends come",
        (edit(Replica, "serves", ("self.handover is None", "(self.handover is None or self.handover._why)")),),
        planned(network=ORDERED, load=IDLE, seconds=3), ("no progress",), makes=once(_damaged_under_load),
    ),
)
