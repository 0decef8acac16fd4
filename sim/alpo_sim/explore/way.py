"""A way that the search found, as lines to read: what was done, and how the server stands after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..shapes import main_fields
from .messages import Action, Messages
from .reigns import Reign, Reigns
from .search import State
from .timeless import Timer


def lines(space: Messages | Reigns, way: tuple[int, ...]) -> Iterator[str]:
    """From the first state on; the last action is the one that broke something."""
    state: State | None = space.first()
    for count, number in enumerate(way, 1):
        assert state is not None
        action: Any = space.actions[number]
        said = _reign(action) if isinstance(space, Reigns) else _action(space, action)
        yield f"{count:3}  {said}"
        state = next(step.state for step in space.successors(state) if step.action == number)
        if state is not None:
            for id in [id for id in (action.server, getattr(action, "other", 0)) if id]:
                yield f"       {id}: {space.servers.line(id, state[id - 1])}"


def _message(space: Messages, number: int) -> str:
    envelope, source, _ = space.servers.messages[number]
    fields = " ".join(f"{name} {value}" for name, value in dict(main_fields(envelope.message)).items())
    return f"{type(envelope.message).__name__} of {source} ({fields})"


def _action(space: Messages, action: Action) -> str:
    id, what = action.server, action.what
    if action.kind == "hear":
        return f"{id} hears " + " and ".join(_message(space, each) for each in space.combined(what))
    if action.kind in ("deliver", "forget"):
        forgot = ", its leader being silent," if action.kind == "forget" else ""
        return f"{id}{forgot} takes {_message(space, what)}"
    return {
        "persist": f"{id}: a write is on disk",
        "serve": f"{id}: entries are read from disk",
        "timer": f"{id}: {Timer(what).name.lower() if action.kind == 'timer' else ''} is due",
        "miss": f"{id} has not heard {what} for 2h, and asks who is there",
        "crash": f"{id} restarts, {what} of its writes under way kept",
        "wipe": f"{id} restarts on an empty disk",
        "append": f"{id} is asked for append {what}",
    }[action.kind]


def _reign(action: Reign) -> str:
    if action.kind == "ask":
        return f"{action.server} is asked {action.request!r}"
    if action.kind == "crash":
        return f"{action.server} restarts"
    if action.kind == "elect":
        return f"{action.server} is elected by {action.other}"
    return f"leader {action.server} and {action.other} exchange {action.messages} messages"
