"""Events on disk: what happened to this server, for whoever looks after it (`alpo explain`).

Laws:

* Rows ride along: they are written with the next commit, or once the writer rests. No write ever waits for them.
* What was noted in the last moments before a crash is lost: nothing but explanations depends on it.
* At most `ROWS_MAX` rows are kept and `PENDING_MAX` wait; the oldest make room.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ROWS_MAX = 10_000
PENDING_MAX = 1_000
#: Of `EventRow.fields`.
FIELDS_CHARS_MAX = 4_000


class EventRow(NamedTuple):
    """``time_ms`` by this server's clock; ``fields``: a JSON object."""

    time_ms: int
    name: str
    fields: str


class KeptEvent(NamedTuple):
    """One as read back; ``number`` goes up by one, over restarts too."""

    number: int
    time_ms: int
    name: str
    fields: str


def event_row(time_ms: int, name: str, fields: Mapping[str, Any]) -> EventRow:
    """A row of an event; what JSON does not know becomes text, what is very long is left out."""
    text = json.dumps(fields, default=_plain)
    if len(text) > FIELDS_CHARS_MAX:
        text = json.dumps({key: value for key, value in fields.items() if type(value) in (int, float, bool)})
    return EventRow(time_ms, name, text if len(text) <= FIELDS_CHARS_MAX else "{}")


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class EventKeeper:
    """What waits to be written. For the writer's thread."""

    def __init__(self) -> None:
        self._waiting: deque[EventRow] = deque(maxlen=PENDING_MAX)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def note(self, rows: Iterable[EventRow]) -> None:
        self._waiting.extend(rows)

    def write(self, db: sqlite3.Connection) -> int:
        """Within a transaction; how many. Follow with `written` once it is committed. Raises sqlite3.Error."""
        if self._waiting:
            db.executemany("INSERT INTO event_log (time_ms, name, fields) VALUES (?, ?, ?)", self._waiting)
            db.execute("DELETE FROM event_log WHERE number <= (SELECT max(number) FROM event_log) - ?", (ROWS_MAX,))
        return len(self._waiting)

    def written(self) -> None:
        self._waiting.clear()


def read_events(db: sqlite3.Connection, before: int, count: int) -> list[KeptEvent]:
    """The newest ``count`` events with a number below ``before`` (0: of all), oldest first. Raises sqlite3.Error."""
    rows = db.execute(
        "SELECT number, time_ms, name, fields FROM event_log WHERE number < ? ORDER BY number DESC LIMIT ?",
        (before or 1 << 62, count),
    ).fetchall()
    return [KeptEvent(*row) for row in reversed(rows)]
