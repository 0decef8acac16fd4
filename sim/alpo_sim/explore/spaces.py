"""The spaces by name, each with the bounds that it has when none are given: as much as fits in a few minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .first_starts import FirstStarts
from .messages import Bounds, Messages
from .reigns import ReignBounds, Reigns
from .replacements import Replacements


class Wanted(NamedTuple):
    """Bounds as the command line has them; None: the space's own."""

    servers: int = 3
    terms: int | None = None
    entries: int | None = None
    timers: int | None = None
    crashes: int | None = None
    wipes: int | None = None
    writes: int | None = None
    requests: int | None = None
    late: bool = False


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def elections(w: Wanted) -> Messages:
    bounds = Bounds(
        _or(w.terms, 2), _or(w.entries, 1), _or(w.timers, 2), 2, _or(w.crashes, 1), 0, _or(w.writes, 1), w.late
    )
    return Messages(bounds, w.servers)


def start(w: Wanted) -> FirstStarts:
    """Terms stay 0: started servers do nothing, unless they are given terms and timers."""
    bounds = Bounds(
        _or(w.terms, 0), 0, _or(w.timers, 0), 2, _or(w.crashes, 0), _or(w.wipes, 2), _or(w.writes, 0), w.late
    )
    return FirstStarts(bounds, w.servers, started=False)


def replacement(w: Wanted) -> Replacements:
    bounds = Bounds(
        _or(w.terms, 2), _or(w.entries, 0), _or(w.timers, 2), 2, _or(w.crashes, 0), _or(w.wipes, 1), _or(w.writes, 0),
        w.late,
    )
    return Replacements(bounds, w.servers)


def sessions(w: Wanted) -> Reigns:
    return Reigns(ReignBounds(_or(w.terms, 2), _or(w.requests, 4), 1, _or(w.crashes, 0)), w.servers)


def reigns(w: Wanted) -> Reigns:
    """Logs alone, entries sent one at a time."""
    return Reigns(ReignBounds(_or(w.terms, 4), 0, 0, _or(w.crashes, 0), single_entries=True), w.servers)


SPACES: dict[str, Callable[[Wanted], Messages | Reigns]] = {
    "elections": elections, "start": start, "replacement": replacement, "sessions": sessions, "reigns": reigns,
}
