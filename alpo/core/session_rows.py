"""A session as it is saved and sent (R22)."""

from __future__ import annotations

from typing import NamedTuple


class SessionRow(NamedTuple):
    """One session as saved: ``slots`` are (serial, id, lsn, epoch, digest), oldest first."""

    client: str
    epoch: int
    nonce: bytes
    opened_last_serial: int
    last_serial: int
    last_id: int
    last_time_ms: int
    slots: list[tuple[int, int, int, int, bytes]]
