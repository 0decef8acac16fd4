"""The operator's requests: status, sessions, first start, and appends retried by hand."""
from __future__ import annotations
from datetime import datetime
from typing import NamedTuple

class ByHand(NamedTuple):
    """How a retry by hand ended: appended at ``lsn`` …, now or (``duplicate``) before."""

    lsn: int
    count: int
    client: str
    serial: int
    epoch: int
    duplicate: bool


class SessionInfo(NamedTuple):
    """One client as the cluster knows it. ``epoch`` is 0 for random ids; ``last_time`` is UTC."""

    client: str
    epoch: int
    last_serial: int
    last_id: int
    last_time: datetime
