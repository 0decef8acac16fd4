"""Exactly once: along the log each client's serials go up (R21), until its session is dropped and begins anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from alpo.core.entries import Kind
from alpo.storage.columns import by_client, rise

_SESSION: Final = int(Kind.SESSION)


class Serials:
    """The last serial of every client so far."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def take(self, client: str, serial: int) -> int:
        """The next append of ``client``. 0 if it goes up, else the last serial before it."""
        last = self._last.get(client, 0)
        if serial > last:
            self._last[client] = serial
            return 0
        return last

    def take_all(self, clients: Sequence[str], serials: Sequence[int]) -> bool:
        """Appends whose serials all go up; else nothing is done, and it must be one by one."""
        groups = by_client(clients, serials)
        if not all(rise(of_one, self._last.get(client, 0)) for client, of_one in groups.items()):
            return False
        self._last |= {client: of_one[-1] for client, of_one in groups.items()}
        return True

    def begin_anew(self, client: str, serial: int = 0) -> None:
        """The session was dropped and opened again; it stands at ``serial``."""
        self._last[client] = serial


def begins_anew(kind: int, body: bytes | None) -> bool:
    """Is it a SESSION entry after which serials begin with 1?"""
    if kind != _SESSION or body is None:
        return False
    try:
        fields = json.loads(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and (fields.get("op") == "drop" or not fields.get("replaces"))
