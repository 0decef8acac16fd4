"""Exhaustive search: the spaces by name, with default bounds that are searched in a few minutes.

`search` visits the states of a space; `messages` and `reigns` have the spaces; `servers` runs the real core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .messages import Bounds, FirstStarts, Messages, Replacements
from .reigns import ReignBounds, Reigns


class Wanted(NamedTuple):
    """Bounds given on the command line; None: the space's default."""

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
    """The space of elections, with crashes."""
    bounds = Bounds(
        _or(w.terms, 2), _or(w.entries, 1), _or(w.timers, 2), 2, _or(w.crashes, 1), 0, _or(w.writes, 1), w.late
    )
    return Messages(bounds, w.servers)


def start(w: Wanted) -> FirstStarts:
    """The space of first starts with lost disks. Started servers do nothing more, unless given terms and timers."""
    bounds = Bounds(
        _or(w.terms, 0), 0, _or(w.timers, 0), 2, _or(w.crashes, 0), _or(w.wipes, 2), _or(w.writes, 0), w.late
    )
    return FirstStarts(bounds, w.servers)


def replacement(w: Wanted) -> Replacements:
    """The space of a cluster in which disks are lost and replaced."""
    bounds = Bounds(
        _or(w.terms, 2), _or(w.entries, 0), _or(w.timers, 2), 2, _or(w.crashes, 0), _or(w.wipes, 1), _or(w.writes, 0),
        w.late,
    )
    return Replacements(bounds, w.servers)


def sessions(w: Wanted) -> Reigns:
    """The space of clients' sessions over several reigns."""
    return Reigns(ReignBounds(_or(w.terms, 2), _or(w.requests, 4), 1, _or(w.crashes, 0)), w.servers)


def reigns(w: Wanted) -> Reigns:
    """The space of logs over many reigns, without clients; leaders send entries one at a time."""
    return Reigns(ReignBounds(_or(w.terms, 4), 0, 0, _or(w.crashes, 0), single_entries=True), w.servers)


SPACES: dict[str, Callable[[Wanted], Messages | Reigns]] = {
    "elections": elections, "start": start, "replacement": replacement, "sessions": sessions, "reigns": reigns,
}
