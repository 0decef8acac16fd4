"""A session as it is saved and sent (R22)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SessionRow(NamedTuple):
    """One session as saved: ``slots`` are (serial, id, lsn, epoch, digest), oldest first. ``birth``: the epoch that the
    name's present life began with, when it was first opened or first after a drop; 0 of a random client."""

    client: str
    epoch: int
    nonce: bytes
    opened_last_serial: int
    last_serial: int
    last_id: int
    last_time_ms: int
    slots: list[tuple[int, int, int, int, bytes]]
    birth: int = 0


def birth_untold(epoch: int, slots: Iterable[tuple[int, int, int, int, bytes]]) -> int:
    """The birth of a row that was saved or sent without one: the oldest epoch that it tells of. The true one may be
    older; then some of its appends are told DROPPED, "nobody can tell", instead of "no"."""
    return min([epoch, *(slot[3] for slot in slots)])
