"""What became of appends, as it was told, held against the one log (R21, R25).

Laws:

* "Appended" is true for ever. "Not appended" was true when it was asked: nothing that had been answered before says
  otherwise. "Too old" is never said of what is remembered.
* What an operator dropped is forgotten: of its earlier life nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping

from alpo.core.client_ids import created_ms
from alpo.core.entries import Entry
from alpo.core.inputs import Origin, Outcome
from alpo.core.ready import Fate, Told

from ..broken import Broken
from .plain import PlainTable


class Outcomes:
    """Fed by `History`, of which it is a part."""

    def __init__(self) -> None:
        self.told = 0
        self._asked: dict[Origin, tuple[str, int, int]] = {}  # -> client, serial, all answered by then
        self._places: dict[tuple[str, int], list[Entry]] = {}

    def guaranteed(self, entry: Entry) -> None:
        """The next payloads of the one log."""
        self._places.setdefault((entry.client, entry.serial), []).append(entry)

    def asked(self, request: Outcome, floor_id: int) -> None:
        """All that has been answered so far lies at or below ``floor_id``."""
        self._asked[request.origin] = (request.client, request.serial, floor_id)

    def replied(self, reply: Told, table: PlainTable | None, dropped: Mapping[str, bool]) -> int:
        """An answer leaves a server; it tells of the log up to the entry returned (0: of none). Raises `Broken`."""
        client, serial, floor_id = self._asked[reply.origin]
        self.told += 1
        places = self._places.get((client, serial), [])
        what = f"{client} serial {serial} was told {reply.fate.name}"
        if reply.fate is Fate.APPENDED:
            if reply.lsn not in [entry.lsn for entry in places]:
                raise Broken("outcome", f"{what} at LSN {reply.lsn}; guaranteed at {[e.lsn for e in places]}")
            return max(entry.id for entry in places if entry.lsn == reply.lsn)
        if reply.fate is Fate.NOT_APPENDED:
            if client not in dropped and any(entry.id <= floor_id for entry in places):
                raise Broken("outcome", f"{what}, and it was known to be at entry {places[0].id}")
        elif table is not None and created_ms(client) >= 0 and table.remembers(client, serial):
            raise Broken("outcome", f"{what}, and is remembered")
        return 0
