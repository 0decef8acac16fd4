"""Breadth-first search of all states of a space: the first failure found has a shortest way.

Laws:

* Actions and their order depend on the space alone: all numbers are the same in every process.
* States are remembered by a 64-bit hash. Among ``n`` states a collision has probability n² / 2^65: one in a hundred
  thousand for twenty million.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..checks import Broken

#: State of a space as a flat tuple of numbers.
State: TypeAlias = tuple[int, ...]


T = TypeVar("T")


class Numbered(Generic[T]):
    """Objects with numbers, in the order in which they were first found: the same numbers in every process."""

    def __init__(self) -> None:
        self.known: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, thing: T, key: Hashable = None) -> int:
        """The number of ``thing``, or of an earlier one with an equal ``key`` (None: the thing itself)."""
        number = self._numbers.setdefault(thing if key is None else key, len(self.known))
        if number == len(self.known):
            self.known.append(thing)
        return number


class Step(NamedTuple):
    """Step from a state: the number of an action, and the next state or the check that breaks."""

    action: int
    state: State | None
    broken: Broken | None = None


class Space(Protocol):
    """Space that can be searched. After the first ``fixed`` numbers of a state there follow messages on their way, in
    order.
    """

    fixed: int

    def first(self) -> State: ...

    def successors(self, state: State) -> Iterator[Step]: ...


class Found(NamedTuple):
    """Result of a search.

    ``depth``: all states up to so many actions from the first were visited, and the steps from each except the last
    ``frontier`` ones. ``seconds``: processor time. ``way``: numbers of the actions that lead to ``broken``.
    """

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
    """States found so far.

    A state that differs from another only by having fewer messages on their way is covered by the other: all that can
    follow from it can follow from the other, in as many steps, if the rest is never delivered. It is not counted.
    """

    def __init__(self, fixed: int) -> None:
        self.states = 0
        self._fixed = fixed
        self._nets: dict[int, list[int]] = {}  # hash of how things stand -> messages, a bit each

    def add(self, state: State) -> bool:
        """Add a state; False if it, or one that covers it, is there already."""
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
    """Visit all states of ``space``, or those nearest to its first, for at most ``limit_s`` of processor time.

    ``tell`` is called with the result so far every ``every_s`` of processor time.
    """
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
