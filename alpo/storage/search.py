"""Finding an id by what grows along the log: no index is kept, ids are found by halving.

``time_ms`` never decreases along the log and neither does the LSN after an entry, so both finders are
"the first id for which something holds that then holds for every later one".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Head(NamedTuple):
    """What the finders look at of an entry."""

    time_ms: int
    lsn: int
    payloads: int


def first_id_where(head: Callable[[int], Head], first_id: int, last_id: int, holds: Callable[[Head], bool]) -> int:
    """The first id of ``first_id`` … ``last_id`` whose head ``holds``; ``last_id + 1`` if none does."""
    low, high = first_id, last_id + 1
    while low < high:
        middle = (low + high) // 2
        if holds(head(middle)):
            high = middle
        else:
            low = middle + 1
    return low


def holds_lsn(lsn: int) -> Callable[[Head], bool]:
    """Does the log up to this entry hold payload ``lsn``? First true of the DATA entry that does."""
    return lambda head: head.lsn + head.payloads > lsn


def is_since(time_ms: int) -> Callable[[Head], bool]:
    """Is this entry of ``time_ms`` or later?"""
    return lambda head: head.time_ms >= time_ms
