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

#: How far from a guess is looked before all is halved: a bad guess costs as many looks more.
_REACHES = (1, 8, 64)


def first_id_where(
    head: Callable[[int], Head], first_id: int, last_id: int, holds: Callable[[Head], bool], guess_id: int = 0
) -> int:
    """The first id of ``first_id`` … ``last_id`` whose head ``holds``; ``last_id + 1`` if none does.

    A right ``guess_id`` costs two looks, a wrong one some more, none is out of bounds.
    """
    low, high = first_id, last_id + 1
    if low <= guess_id < high:
        low, high = _around(head, low, high, holds, guess_id)
    while low < high:
        middle = (low + high) // 2
        if holds(head(middle)):
            high = middle
        else:
            low = middle + 1
    return low


def _around(
    head: Callable[[int], Head], low: int, high: int, holds: Callable[[Head], bool], guess_id: int
) -> tuple[int, int]:
    """What is left of ``low`` … ``high`` after a few looks near ``guess_id``, which is below ``high``."""
    if holds(head(guess_id)):
        high = guess_id
        for id in (guess_id - reach for reach in _REACHES):
            if id < low:
                break
            if not holds(head(id)):
                return id + 1, high
            high = id
    else:
        low = guess_id + 1
        for id in (guess_id + reach for reach in _REACHES):
            if id >= high:
                break
            if holds(head(id)):
                return low, id
            low = id + 1
    return low, high


def holds_lsn(lsn: int) -> Callable[[Head], bool]:
    """Does the log up to this entry hold payload ``lsn``? First true of the DATA entry that does."""
    return lambda head: head.lsn + head.payloads > lsn


def is_since(time_ms: int) -> Callable[[Head], bool]:
    """Is this entry of ``time_ms`` or later?"""
    return lambda head: head.time_ms >= time_ms
