"""Events on disk: what happened to this server, for its operator (`alpo explain`).

Laws:

* Events are written with the next commit, or when the writer is idle. No write ever waits for them.
* Events of the last moments before a crash are lost: only explanations depend on them.
* At most `ROWS_MAX` rows are kept and `PENDING_MAX` wait to be written; the oldest are dropped.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ROWS_MAX = 10_000
PENDING_MAX = 1_000
#: Longest text of `EventRow.fields`.
FIELDS_CHARS_MAX = 4_000


class EventRow(NamedTuple):
    """An event to be kept. ``time_ms``: this server's clock; ``fields``: a JSON object."""

    time_ms: int
    name: str
    fields: str


class KeptEvent(NamedTuple):
    """An event read back; ``number`` increases by one, across restarts too."""

    number: int
    time_ms: int
    name: str
    fields: str


def event_row(time_ms: int, name: str, fields: Mapping[str, Any]) -> EventRow:
    """Build the row of an event. Values that JSON cannot hold become text; if the row is too long, only numbers
    stay."""
    text = json.dumps(fields, default=_plain)
    if len(text) > FIELDS_CHARS_MAX:
        text = json.dumps({key: value for key, value in fields.items() if type(value) in (int, float, bool)})
    return EventRow(time_ms, name, text if len(text) <= FIELDS_CHARS_MAX else "{}")


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class EventKeeper:
    """Queue of events to be written; used by whoever has the writer's turn."""

    def __init__(self) -> None:
        self._waiting: deque[EventRow] = deque(maxlen=PENDING_MAX)

    @property
    def waiting(self) -> bool:
        """True if events wait to be written."""
        return bool(self._waiting)

    def note(self, rows: Iterable[EventRow]) -> None:
        """Queue events; the oldest are dropped beyond `PENDING_MAX`."""
        self._waiting.extend(rows)

    def write(self, db: sqlite3.Connection) -> int:
        """Insert the waiting events in the caller's transaction, and return how many. Call `written` after the commit.
        Raises sqlite3.Error."""
        if self._waiting:
            db.executemany("INSERT INTO event_log (time_ms, name, fields) VALUES (?, ?, ?)", self._waiting)
            db.execute("DELETE FROM event_log WHERE number <= (SELECT max(number) FROM event_log) - ?", (ROWS_MAX,))
        return len(self._waiting)

    def written(self) -> None:
        """Forget the waiting events: they are committed."""
        self._waiting.clear()


def read_events(db: sqlite3.Connection, before: int, count: int) -> list[KeptEvent]:
    """The newest ``count`` events with a number below ``before`` (0: no limit), oldest first. Raises sqlite3.Error."""
    rows = db.execute(
        "SELECT number, time_ms, name, fields FROM event_log WHERE number < ? ORDER BY number DESC LIMIT ?",
        (before or 1 << 62, count),
    ).fetchall()
    return [KeptEvent(*row) for row in reversed(rows)]
