"""Conversion of the record of a run into a scenario that can be replayed."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.ready import Input

from .actions import Action, Ask, Boot, Crash, Deliver, Link, Persist, Serve, Step
from .scenario import Line, Scenario, Seen, Tick, Times, with_origin
from .shapes import main_fields, more_fields
from .stage import Stage

_WAIT = (Deliver, Persist, Serve, Link, Ask)


def recorded(stage: Stage, mutation: str = "") -> Scenario:
    """The scenario of all actions on ``stage``. Its deliveries are `Seen`, so it can be replayed, but not written."""
    assert stage.record is not None, "the world was made without record=True"
    return Scenario(
        len(stage.configured), stage.seed, Times.of(stage.timers), stage.settings,
        tuple(c.priority for c in stage.configured) if any(c.priority for c in stage.configured) else (),
        tuple(stage.limits.items()), stage.auto_init, mutation=mutation, lines=tuple(_lines(stage.record)),
        spares=len(stage.hosts) - len(stage.configured),
    )


def _lines(record: Sequence[Action]) -> list[Line]:
    lines: list[Line] = []
    waits: dict[int, int] = {}  # server -> how many inputs wait
    last: tuple[int, int] | None = None  # (server, time) of the input just before
    for action in record:
        if isinstance(action, Step):
            if not waits.get(action.id):
                lines.append(Line(Tick(action.at_us, action.id)))
            elif last == (action.id, action.at_us):
                lines[-1] = lines[-1]._replace(more=False)
            else:
                lines.append(Line(action))
            waits[action.id] = 0
            last = None
            continue
        id = action.envelope.target.id if isinstance(action, Deliver) else action.id
        last = None
        if isinstance(action, _WAIT):
            waits[id] = waits.get(id, 0) + 1
            last = (id, action.at_us)
        elif isinstance(action, (Boot, Crash)):
            waits[id] = 0
        lines.append(_line(action))
    return lines


def _line(action: Action) -> Line:
    if isinstance(action, Deliver):
        x = action.envelope
        kind = type(x.message).__name__
        main, more = main_fields(x.message), more_fields(x.message)
        seen = Seen(action.at_us, x.sender.id, x.target.id, kind, main, more, 0, action.again)
        return Line(seen, True)
    if isinstance(action, Ask):
        return Line(action._replace(request=_by_party(action.request)), True)
    return Line(action, isinstance(action, _WAIT))


def _by_party(request: Input) -> Input:
    """``request`` with its actor's number as the origin, where a world has (actor, number of the request)."""
    origin = getattr(request, "origin", "")
    return with_origin(request, str(origin[0]) if isinstance(origin, tuple) else "")
