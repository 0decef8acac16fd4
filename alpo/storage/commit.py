"""Merge several writes into one transaction and apply it to the tables, except for the hard state (the store's).

Law: all deletions come before all insertions, so an entry that one write appends and a later one expunges never reaches
the disk.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from alpo.core.disk import Base, StartState, TableSave, Write
from alpo.core.entries import Entry

from .interface import StoreError
from .rows import applied_to_json, base_checksum, run_checksum, session_columns, text_checksum
from .tables import COLUMNS

#: Rows in one INSERT. Every execute releases the GIL, and beside a busy event loop each release may cost a switch
#: interval. In groups of 1,000, beside a thread that never pauses, `executemany` (a release per row) did 1,000 rows/s,
#: chunks of 64 or 128 did 8,000 to 62,000; beside a thread with socket calls 62,000 against 136,000 to 252,000. 64 and
#: 128 differ by less than the noise. SQLite keeps a compiled statement for every length up to this (13 MiB if all are
#: used), so a small group is one execute.
ROWS_A_STATEMENT = 128

_FIELDS = len(Entry._fields)
_flatten = chain.from_iterable
_REPLACE = f"INSERT OR REPLACE INTO log ({COLUMNS}) VALUES (" + ", ".join("?" * _FIELDS) + ")"

#: Tables emptied when a snapshot is installed.
_REPLACED = ("log", "runs", "saved_sessions", "applied")


def apply(db: sqlite3.Connection, cursor: sqlite3.Cursor, merged: Merged, sessions: int) -> int:
    """Apply ``merged`` within the caller's transaction. ``sessions``: number of rows in the session table.
    Returns their number afterwards."""
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
    """Insert 1 to `ROWS_A_STATEMENT` rows in one statement."""
    cursor.execute(_insert(len(rows)), rows[0] if len(rows) == 1 else tuple(_flatten(rows)))


@functools.cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _FIELDS) + ")"
    return f"INSERT INTO log ({COLUMNS}) VALUES " + ", ".join([row] * rows)


def _clean(db: sqlite3.Connection, base: Base, last_id: int) -> None:
    """Delete the entries up to the base, and the runs that end there."""
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
    """Save the session table's changes. ``sessions``: its rows before; returns them after."""
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


class Merged(NamedTuple):
    """Several writes as one. Carried out in this order: ``mended`` entries replace those on disk with their ids; the
    base ``install`` replaces the whole log (None: no); entries from ``expunge_from`` on are deleted (None: no);
    ``entries`` and ``runs`` are added; the log is cleaned up to ``base`` (None: no), which covers only entries that
    were already on disk.

    Term, vote and marks are those of the last write; ``start`` is the last one given; ``tables`` are all, in order.
    """

    expunge_from: int | None
    entries: list[Entry]
    runs: list[tuple[int, int]]
    last: Write
    start: StartState | None
    tables: list[TableSave]
    last_id: int
    bodies_bytes: int
    base: Base | None
    install: Base | None
    mended: list[Entry]

    @property
    def payloads(self) -> int:
        """The number of payloads in ``entries``."""
        return sum([entry[8] for entry in self.entries])

    @property
    def only_rows(self) -> bool:
        """True if there is nothing to do but to add ``entries`` (and perhaps the hard state)."""
        return not (
            self.expunge_from is not None or self.runs or self.tables or self.base or self.install or self.mended
        )


def merge(writes: Sequence[Write], base_id: int, last_id: int) -> Merged:
    """Merge ``writes``, at least one, into one for a log that was cleaned up to ``base_id`` and ends at ``last_id``.

    Raises `StoreError` if ids would have a gap, which must never reach the disk, if an entry to expunge was cleaned, or
    if a new base is not an entry of the log.
    """
    first = next((at for at in range(len(writes) - 1, -1, -1) if writes[at].install is not None), None)
    install = None
    starts = [w.start for w in writes if w.start is not None]
    if first is not None:  # the snapshot replaces everything written before it
        writes = writes[first:]
        install = writes[0].install
        assert install is not None
        base_id = last_id = install.id
    if len(writes) == 1:
        write = writes[0]
        expunge, entries, runs = write.expunge_from, write.entries, write.runs
        tables, bodies_bytes = [write.table] if write.table is not None else [], write.bodies_bytes
    else:
        expunge, entries, runs = None, [], []
        for write in writes:
            x = write.expunge_from
            if x is not None:
                expunge = x if expunge is None else min(expunge, x)
                if entries:
                    del entries[max(0, x - entries[0].id) :]
                runs = [run for run in runs if run[1] < x]
            entries.extend(write.entries)
            runs.extend(write.runs)
        tables = [w.table for w in writes if w.table is not None]
        bodies_bytes = sum([w.bodies_bytes for w in writes])
    if expunge is not None and expunge <= base_id:
        raise StoreError(f"entry {expunge} was cleaned (up to {base_id}) and cannot be expunged")
    kept = last_id if expunge is None else min(last_id, expunge - 1)
    if entries:
        begin, last = entries[0].id, entries[-1].id
        if begin != kept + 1 or last - begin + 1 != len(entries):
            raise StoreError(f"entries {begin} … {last} ({len(entries)}) do not follow entry {kept}")
        kept = last
    base = next((w.base for w in reversed(writes) if w.base is not None), None)
    if base is not None and not base_id < base.id <= kept:
        raise StoreError(f"a base at {base.id} is not of the log from {base_id + 1} to {kept}")
    start = starts[-1] if starts else None
    mended = [entry for write in writes for entry in write.mended if base_id < entry.id <= last_id]
    return Merged(expunge, entries, runs, writes[-1], start, tables, kept, bodies_bytes, base, install, mended)
