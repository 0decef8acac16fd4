"""A way that the search found, as what happens to one server after the other.

Law: a message that leaves its target as it is was delivered without a word by the search (`messages`). Where what
follows needs the answer to one, it is said here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from alpo.core.inputs import Input

from .messages import Messages, request
from .reigns import Reign, Reigns, Teller
from .search import State
from .timeless import Timer


class Deliver(NamedTuple):
    """``forgets``: after the leader that the target heard is no longer live to it. ``sends``: what leaves then."""

    server: int
    message: int
    forgets: bool = False


class Forget(NamedTuple):
    """The leader that it heard is no longer live to it."""

    server: int


class RunOut(NamedTuple):
    server: int
    timer: Timer


class Miss(NamedTuple):
    """A leader has not heard ``peer`` for 2h."""

    server: int
    peer: int


class Persist(NamedTuple):
    """Its oldest write under way is on disk."""

    server: int


class Serve(NamedTuple):
    server: int


class Restart(NamedTuple):
    server: int
    kept: int
    wiped: bool = False


class Ask(NamedTuple):
    server: int
    request: Input


Deed: TypeAlias = Deliver | Forget | RunOut | Miss | Persist | Serve | Restart | Ask


def deeds_of(space: Messages | Reigns, way: tuple[int, ...]) -> list[Deed]:
    """What the actions ``way`` do, from the first state on, and before that those that lead there from a start."""
    states = [space.first()]
    for number in way[:-1]:
        found = next(step.state for step in space.successors(states[-1]) if step.action == number)
        assert found is not None
        states.append(found)
    if isinstance(space, Reigns):
        return [deed for state, number in zip(states, way, strict=True) for deed in _of_reign(space, state, number)]
    done = [_of_action(space, number) for number in way]
    prelude = [deed for number in space.prelude for deed in _of_action(space, number)]
    return prelude + _with_answers(space, states, done)


# -- every message on its own ---------------------------------------------------------------------------------


def _of_action(space: Messages, number: int) -> list[Deed]:
    kind, id, what = space.actions[number]
    made: dict[str, Any] = {
        "hear": lambda: [Deliver(id, each) for each in space.combined(what)],
        "deliver": lambda: [Deliver(id, what)],
        "forget": lambda: [Deliver(id, what, forgets=True)],
        "persist": lambda: [Persist(id)],
        "serve": lambda: [Serve(id)],
        "timer": lambda: [RunOut(id, Timer(what))],
        "miss": lambda: [Miss(id, what)],
        "crash": lambda: [Restart(id, what)],
        "wipe": lambda: [Restart(id, 0, wiped=True)],
        "append": lambda: [Ask(id, request(what))],
    }
    deeds: list[Deed] = made[kind]()
    return deeds


def _with_answers(space: Messages, states: list[State], done: list[list[Deed]]) -> list[Deed]:
    """From the last action back: a message that it needs was on its way before, or left with the action before, or is
    an answer to one that was delivered without a word."""
    needed: dict[int, None] = {}
    parts: list[list[Deed]] = []
    for at in range(len(states) - 1, -1, -1):
        parts.append(done[at])
        needed |= {deed.message: None for deed in done[at] if isinstance(deed, Deliver)}
        before = states[at - 1][space.fixed :] if at else ()
        silent: list[Deed] = []
        todo = [message for message in needed if message not in before]
        while todo:
            message = todo.pop()
            needed.pop(message, None)
            asked = _asked_by(space, states[at], message)
            if asked is None:
                continue  # it left with the action before
            silent.insert(0, Deliver(space.servers.messages[asked].target, asked))
            if asked in before:
                needed[asked] = None
            else:
                todo.append(asked)
        parts.append(silent)
    return [deed for part in reversed(parts) for deed in part]


def _asked_by(space: Messages, state: State, message: int) -> int | None:
    """The message on its way of which this one is an answer that its sender gives and stays as it is."""
    source = space.servers.messages[message].source
    for each in state[space.fixed :]:
        if space.servers.messages[each].target == source and message in space.arrival(state[source - 1], each).answers:
            return each
    return None


# -- an exchange at a time ------------------------------------------------------------------------------------


def _of_reign(space: Reigns, state: State, number: int) -> list[Deed]:
    action: Reign = space.actions[number]
    if action.kind == "ask":
        assert action.request is not None
        return [Ask(action.server, action.request)]
    if action.kind == "crash":
        return [Restart(action.server, 0)]
    deeds: list[Deed] = []
    id, other = action.server, action.other
    talks = space.exchange(action.kind, id, state[id - 1], other, state[other - 1], _Teller(deeds))
    for delivered, _ in enumerate(talks, 1):
        if action.kind == "talk" and delivered == action.messages:
            break
    return deeds


class _Teller(Teller):
    """Writes down what an exchange does."""

    def __init__(self, deeds: list[Deed]) -> None:
        self._deeds = deeds

    def ran_out(self, id: int, timer: Timer) -> None:
        self._deeds.append(RunOut(id, timer))

    def forgot(self, id: int) -> None:
        self._deeds.append(Forget(id))

    def delivered(self, id: int, message: int) -> None:
        self._deeds.append(Deliver(id, message))
