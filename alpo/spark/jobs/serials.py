"""Check of exactly-once: each client's serials ascend along the log (R21), until its session is dropped and begins
again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from alpo.core.entries import Kind
from alpo.storage.columns import by_client, rise

_SESSION: Final = int(Kind.SESSION)


class Serials:
    """The last serial of each client."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def take(self, client: str, serial: int, number: int = 1) -> int:
        """Take the next ``number`` appends of ``client``, of which ``serial`` is the first. Returns 0 if that ascends,
        else the last serial."""
        last = self._last.get(client, 0)
        self._last[client] = max(last, serial + number - 1)
        return 0 if serial > last else last

    def take_all(self, clients: Sequence[str], serials: Sequence[int]) -> bool:
        """Take many single appends if all their serials ascend; otherwise change nothing and return False: use `take`
        for each."""
        groups = by_client(clients, serials)
        if not all(rise(of_one, self._last.get(client, 0)) for client, of_one in groups.items()):
            return False
        self._last |= {client: of_one[-1] for client, of_one in groups.items()}
        return True

    def begin_anew(self, client: str, serial: int = 0) -> None:
        """Note that the session was dropped and opened again; its last serial is now ``serial``."""
        self._last[client] = serial


def begins_anew(kind: int, body: bytes | None) -> bool:
    """True for a SESSION entry after which serials begin at 1."""
    if kind != _SESSION or body is None:
        return False
    try:
        fields = json.loads(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and (fields.get("op") == "drop" or not fields.get("replaces"))
