"""Finding an id by what grows along the log: no index is kept, ids are found by halving, or where they are guessed.

``time_ms`` never decreases along the log and neither does the LSN after an entry, so both finders are
"the first id for which something holds that then holds for every later one".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from .interface import DamagedStore


class Head(NamedTuple):
    """What the finders look at of an entry."""

    time_ms: int
    lsn: int
    payloads: int


def first_id_where(
    head: Callable[[int], Head], first_id: int, last_id: int, holds: Callable[[Head], bool], guess_id: int = 0
) -> int:
    """The first id of ``first_id`` … ``last_id`` whose head ``holds``; ``last_id + 1`` if none does.

    If that is ``guess_id`` it takes two looks. A wrong guess takes two more than none; one that cannot be looked at for
    damage, or is not among those ids, is as none.
    """
    def halve(low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if holds(head(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    if first_id <= guess_id <= last_id:
        with suppress(DamagedStore):  # met because of the guess, perhaps
            if not holds(head(guess_id)):
                return halve(guess_id + 1, last_id + 1)
            if guess_id > first_id and holds(head(guess_id - 1)):
                return halve(first_id, guess_id - 1)
            return guess_id
    return halve(first_id, last_id + 1)


def holds_lsn(lsn: int) -> Callable[[Head], bool]:
    """Does the log up to this entry hold payload ``lsn``? First true of the DATA entry that does."""
    return lambda head: head.lsn + head.payloads > lsn


def is_since(time_ms: int) -> Callable[[Head], bool]:
    """Is this entry of ``time_ms`` or later?"""
    return lambda head: head.time_ms >= time_ms


class Places:
    """Where LSNs were found lately, to guess where they are: who reads on asks for what follows on what it has got, and
    up to the same end as before. Any thread; what is forgotten or wrong costs looks, nothing else."""

    _COUNT = 32

    def __init__(self) -> None:
        self._found = [(0, 0)] * self._COUNT
        self._next = 0

    def add(self, lsn: int, id: int) -> None:
        """Payload ``lsn`` is in entry ``id``, or will be."""
        self._found[self._next % self._COUNT] = (lsn, id)
        self._next += 1

    def id_of(self, lsn: int) -> int:
        """The entry; 0: not known."""
        return dict(self._found).get(lsn, 0)
