"""Links between servers: they decide whether, when and how often a message arrives."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .options import Network


class Links:
    """All links of a cluster, by (source, target). A cut link loses all messages."""

    def __init__(self, options: Network, rng: random.Random, ids: Sequence[int]) -> None:
        self.options = options
        self._rng = rng
        self.ids = tuple(ids)
        self.cut: dict[tuple[int, int], bool] = {}
        self.lossy: dict[int, float] = {}  # server -> part of the messages that its links lose for a while
        self.quiet = False  # True: nothing is lost, copied or late from now on
        self._last_us: dict[tuple[int, int], int] = {}  # the latest arrival so far, where order is kept

    def arrivals_us(self, now_us: int, source: int, target: int, *, seldom: bool = False) -> list[int]:
        """The times at which copies of a message that leaves now arrive, in order; [] if it is lost.

        ``seldom``: the message is of a kind of which a late copy may come (`Network.again`).
        """
        rng, o = self._rng, self.options
        arrivals = self._arrivals_us(now_us, source, target)
        if seldom and o.again and not self.quiet and (source, target) not in self.cut and rng.random() < o.again:
            arrivals.append(now_us + 1 + int(o.again_us * 0.02 ** rng.random()))  # soon as likely as late
            arrivals.sort()
        return arrivals

    def _arrivals_us(self, now_us: int, source: int, target: int) -> list[int]:
        rng, o = self._rng, self.options
        low, high = o.delay_us
        at_us = now_us + low + int(rng.random() * (high - low))
        if self.quiet:
            return [] if (source, target) in self.cut else [self._in_order(source, target, at_us)]
        chance = rng.random()
        if (source, target) in self.cut:
            return []
        if self.lossy and rng.random() < max(self.lossy.get(source, 0.0), self.lossy.get(target, 0.0)):
            return []
        if chance < o.loss:
            return []
        if chance < o.loss + o.late:
            return [at_us + int(rng.random() * o.late_us)]
        if chance < o.loss + o.late + o.duplication:
            return [at_us, at_us + int(rng.random() * 20 * high)]
        return [self._in_order(source, target, at_us)]

    def heal_lossy(self, id: int, loss: float) -> None:
        """End that loss on a server's links, if no later one has begun."""
        if self.lossy.get(id) == loss:
            del self.lossy[id]

    def damages(self) -> bool:
        """Draw whether a message is damaged on the way."""
        return not self.quiet and self._rng.random() < self.options.damage

    def _in_order(self, source: int, target: int, at_us: int) -> int:
        if self.options.ordered:
            at_us = max(at_us, self._last_us.get((source, target), 0))
            self._last_us[source, target] = at_us
        return at_us

    def connected(self, a: int, b: int) -> bool:
        """True if the links between two servers are whole in both directions."""
        return (a, b) not in self.cut and (b, a) not in self.cut

    def set_cuts(self, cut: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Cut exactly these links. Returns the pairs, lower id first, that are connected again."""
        before = self.cut
        self.cut = dict.fromkeys(cut, True)
        return [
            (a, b) for a in self.ids for b in self.ids
            if a < b and ((a, b) in before or (b, a) in before) and self.connected(a, b)
        ]

    def topology(self, name: str) -> list[tuple[int, int]]:
        """The links to cut for the topology ``name``, a key of `_KEPT`; the places of the servers in it are random."""
        order = list(self.ids)
        self._rng.shuffle(order)
        return [
            (a, b) for i, a in enumerate(order) for j, b in enumerate(order)
            if i != j and not _KEPT[name](i, j, len(order))
        ]


def _side(i: int, n: int) -> int:
    """The side of a bridge, 1 or 2, on which position ``i`` is; 0 for the position between them."""
    return 0 if i == 0 else 1 + (i > n // 2)


#: Topology -> function of (i, j, n): true if the link from position i to position j, of n, is whole.
_KEPT: dict[str, Callable[[int, int, int], bool]] = {
    "whole": lambda i, j, n: True,
    "star": lambda i, j, n: i == 0 or j == 0,
    "chain": lambda i, j, n: abs(i - j) == 1,
    "bridge": lambda i, j, n: _side(i, n) == _side(j, n) or 0 in (_side(i, n), _side(j, n)),
    "halves": lambda i, j, n: (i < n // 2) == (j < n // 2),
    "isolate": lambda i, j, n: i != 0 and j != 0,
    "mute": lambda i, j, n: i != 0,  # the first hears, and is not heard
    "deaf": lambda i, j, n: j != 0,
}
