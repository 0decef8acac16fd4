"""Exhaustive search: the spaces by name, with default bounds that are searched in a few minutes.

`search` visits the states of a space; `messages` and `reigns` have the spaces; `servers` runs the real core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


def _given(w: Wanted, **defaults: int) -> dict[str, Any]:
    """``defaults``, with what is wanted in their places."""
    wanted = {name: getattr(w, name) for name in defaults}
    return {name: default if wanted[name] is None else wanted[name] for name, default in defaults.items()}


def _bounds(w: Wanted, **defaults: int) -> Bounds:
    return Bounds(**_given(w, **defaults))._replace(late_arrivals=w.late)


#: Name -> the space: elections, with crashes; first starts with lost disks, where started servers do nothing more
#: unless given terms and timers; a cluster in which disks are lost and replaced; clients' sessions over several reigns;
#: logs over many reigns, without clients, where leaders send entries one at a time.
SPACES: dict[str, Callable[[Wanted], Messages | Reigns]] = {
    "elections": lambda w: Messages(_bounds(w, terms=2, entries=1, timers=2, crashes=1, writes=1), w.servers),
    "start": lambda w: FirstStarts(
        _bounds(w, terms=0, timers=0, crashes=0, wipes=2, writes=0)._replace(entries=0), w.servers
    ),
    "replacement": lambda w: Replacements(
        _bounds(w, terms=2, entries=0, timers=2, crashes=0, wipes=1, writes=0), w.servers
    ),
    "sessions": lambda w: Reigns(ReignBounds(**_given(w, terms=2, requests=4, crashes=0)), w.servers),
    "reigns": lambda w: Reigns(
        ReignBounds(requests=0, serials=0, **_given(w, terms=4, crashes=0))._replace(single_entries=True), w.servers
    ),
}
