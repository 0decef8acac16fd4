"""Breadth first over all states of a space: the first thing found broken is reached by a shortest way.

Laws:

* What is done, and in which order, depends on the space alone: the same numbers in every process.
* States are remembered by a 64-bit hash. Two of ``n`` states fall together with a chance of n² / 2^65: one in a
  hundred thousand for twenty million.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from ..broken import Broken

#: All that a space needs to know of one state, flat.
State: TypeAlias = tuple[int, ...]


class Step(NamedTuple):
    """One way on: the number of an action, and where it leads or what it breaks."""

    action: int
    state: State | None
    broken: Broken | None = None


class Space(Protocol):
    """The first ``fixed`` numbers of a state say how things stand; the rest are messages on their way, in order."""

    fixed: int

    def first(self) -> State: ...

    def successors(self, state: State) -> Iterator[Step]: ...


class Found(NamedTuple):
    """``depth``: all states so many actions from the first were visited, and the ways on from each but the
    ``frontier`` last ones. ``way``: numbers of actions that lead to what is ``broken``."""

    states: int
    transitions: int
    depth: int
    frontier: int
    seconds: float
    broken: Broken | None = None
    way: tuple[int, ...] = ()

    @property
    def exhausted(self) -> bool:
        return self.broken is None and not self.frontier


class Seen:
    """The states so far. One that differs from another only by having fewer messages on their way is covered by it:
    whatever can come of it can come of the other, in as many steps, with the rest never delivered. It is not counted.
    """

    def __init__(self, fixed: int) -> None:
        self.states = 0
        self._fixed = fixed
        self._nets: dict[int, list[int]] = {}  # hash of how things stand -> messages, a bit each

    def add(self, state: State) -> bool:
        """Is it new?"""
        net = 0
        for message in state[self._fixed :]:
            net |= 1 << message
        known = self._nets.setdefault(hash(state[: self._fixed]), [])
        for other in known:
            if net & other == net:
                return False
        known.append(net)
        self.states += 1
        return True


def search(
    space: Space, limit_s: float = float("inf"), tell: Callable[[Found], None] = lambda found: None,
    every_s: float = 10.0, states_max: int = 1 << 62,
) -> Found:
    """All states that ``space`` has, or those nearest to its first within ``limit_s`` of processor time.

    ``tell`` hears every ``every_s`` how far it is."""
    began = told = time.process_time()
    first = space.first()
    seen = Seen(space.fixed)
    seen.add(first)
    parents, actions = array("I", [0]), array("I", [0])
    level, depth, transitions, base = [first], 0, 0, 0
    while level:
        following: list[State] = []
        for at, state in enumerate(level):
            if not at & 255:
                now = time.process_time()
                if now - told >= every_s:
                    told = now
                    tell(Found(seen.states, transitions, depth, len(level) - at, now - began))
                if now - began >= limit_s or seen.states >= states_max:
                    return Found(seen.states, transitions, depth, len(level) - at + len(following), now - began)
            for action, new, broken in space.successors(state):
                transitions += 1
                if new is None:
                    way = (*_way(parents, actions, base + at), action)
                    return Found(
                        seen.states, transitions, len(way), len(level) - at + len(following),
                        time.process_time() - began, broken, way,
                    )
                if seen.add(new):
                    parents.append(base + at)
                    actions.append(action)
                    following.append(new)
        base += len(level)
        level = following
        depth += bool(following)
    return Found(seen.states, transitions, depth, 0, time.process_time() - began)


def _way(parents: array[int], actions: array[int], at: int) -> tuple[int, ...]:
    way = []
    while at:
        way.append(actions[at])
        at = parents[at]
    return tuple(reversed(way))
