"""What a merged write does to the tables, within its transaction. The hard state is the store's own affair."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence
from itertools import chain

from alpo.core.disk import Base, TableSave
from alpo.core.entries import Entry

from . import schema
from .merge import Merged
from .rows import applied_to_json, base_checksum, run_checksum, session_columns, text_checksum

#: Rows an INSERT. Every execute hands the GIL over, and beside a busy event loop each hand-over may cost a switch
#: interval. In groups of 1,000, beside a thread that never pauses, `executemany` (a hand-over a row) did 1,000 rows/s,
#: chunks of 64 or 128 did 8,000 to 62,000; beside one with socket calls 62,000 against 136,000 to 252,000. 64 and 128
#: differ by less than the noise. A statement for every length up to this stays compiled (13 MiB if all are used), so
#: that a small group is one execute.
ROWS_A_STATEMENT = 128

_FIELDS = len(Entry._fields)
_flatten = chain.from_iterable
_REPLACE = f"INSERT OR REPLACE INTO log ({schema.COLUMNS}) VALUES (" + ", ".join("?" * _FIELDS) + ")"
#: What a base takes the place of.
_REPLACED = ("log", "runs", "saved_sessions", "applied")


def apply(db: sqlite3.Connection, cursor: sqlite3.Cursor, merged: Merged, sessions: int) -> int:
    """Do all of ``merged`` to a store whose table has ``sessions`` rows; how many it has then."""
    rows = merged.entries
    if merged.install is not None:
        for name in _REPLACED:
            db.execute(f"DELETE FROM {name}")
        sessions = 0
        _set_base(db, merged.install)
    for entry in merged.mended:
        db.execute(_REPLACE, entry)
    if merged.expunge_from is not None:
        db.execute("DELETE FROM log WHERE id >= ?", (merged.expunge_from,))
        db.execute("DELETE FROM runs WHERE first_id >= ?", (merged.expunge_from,))
    for at in range(0, len(rows), ROWS_A_STATEMENT):
        insert(cursor, rows[at : at + ROWS_A_STATEMENT])
    for term, first_id in merged.runs:
        db.execute("INSERT INTO runs VALUES (?, ?, ?)", (first_id, term, run_checksum(term, first_id)))
    for table in merged.tables:
        sessions = _save_table(db, table, sessions)
    if merged.base is not None:
        _clean(db, merged.base, merged.last_id)
    return sessions


def insert(cursor: sqlite3.Cursor, rows: Sequence[Entry]) -> None:
    """Add ``rows``, 1 to `ROWS_A_STATEMENT`, by one statement."""
    cursor.execute(_insert(len(rows)), rows[0] if len(rows) == 1 else tuple(_flatten(rows)))


@functools.cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _FIELDS) + ")"
    return f"INSERT INTO log ({schema.COLUMNS}) VALUES " + ", ".join([row] * rows)


def _clean(db: sqlite3.Connection, base: Base, last_id: int) -> None:
    """Delete what the base stands for; of the runs, all that end there."""
    db.execute("DELETE FROM log WHERE id <= ?", (base.id,))
    if last_id == base.id:
        db.execute("DELETE FROM runs")
    else:
        first_run = "SELECT max(first_id) FROM runs WHERE first_id <= ?"
        db.execute(f"DELETE FROM runs WHERE first_id < ({first_run})", (base.id + 1,))
    _set_base(db, base)


def _set_base(db: sqlite3.Connection, base: Base) -> None:
    db.execute(
        "UPDATE base SET id = ?, term = ?, time_ms = ?, next_lsn = ?, checksum = ? WHERE only = 1",
        (*base, base_checksum(base)),
    )


def _save_table(db: sqlite3.Connection, table: TableSave, sessions: int) -> int:
    """Bring the table, of ``sessions`` rows, up to date; how many it has then."""
    gone = [(row.client,) for row in table.changed] + [(client,) for client in table.ended]
    if gone:
        sessions -= db.executemany("DELETE FROM saved_sessions WHERE client = ?", gone).rowcount
    if table.changed:
        db.executemany(
            "INSERT INTO saved_sessions VALUES (?, ?, ?, ?, ?, ?)", map(session_columns, table.changed)
        )
        sessions += len(table.changed)
    state = applied_to_json(table, sessions)
    db.execute("INSERT OR REPLACE INTO applied VALUES (1, ?, ?)", (state, text_checksum(state)))
    return sessions
