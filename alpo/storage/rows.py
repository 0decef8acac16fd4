"""Rows of the data file: the encodings of hard state, runs, sessions and the applied state, each with a checksum of its
own, and the merging of several writes into one transaction.

Log entries are not encoded here: they carry their own checksum, and each field is a column. Every decoder raises
`DamagedRow` if the data was not encoded here.

Law of a transaction: all deletions come before all insertions, so an entry that one write appends and a later one
expunges never reaches the disk.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import struct
import zlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]

from alpo.core.disk import Base, SessionRow, StartState, TableSave, Write
from alpo.core.entries import Entry, is_digest
from alpo.core.members import Identity, StartStatus

from .interface import StoreError
from .tables import COLUMNS

#: Marks are written with whatever else rewrites the hard row, or once one has moved this many ids, or after this many
#: payloads. Rewriting that row in every commit would double what a commit of one entry writes, and marks may be late.
MARKS_LAG_MAX = 1024

_HARD = struct.Struct("<QQQQQ")
_RUN = struct.Struct("<QQ")
_BASE = struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")


class DamagedRow(ValueError):
    """A stored row differs from what was written."""


class Hard(NamedTuple):
    """The hard row; ``start`` as JSON text, so that the checksum covers the stored bytes."""

    server_id: int
    incarnation: bytes
    term: int
    vote: int
    guaranteed_id: int
    fully_replicated_id: int
    cluster: bytes
    start: str

    def checksum(self) -> int:
        """CRC-32 of all fields. Raises `DamagedRow` if a column has a wrong type."""
        try:
            numbers = _HARD.pack(
                self.server_id, self.term, self.vote, self.guaranteed_id, self.fully_replicated_id
            )
            return zlib.crc32(numbers + self.incarnation + self.cluster + self.start.encode())
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise DamagedRow(f"the hard state is not of its types: {error}") from error

    def after(self, write: Write, start: StartState | None) -> Hard:
        """The row after ``write``; ``start`` None leaves the start state unchanged."""
        cluster, text = (self.cluster, self.start) if start is None else (start.cluster, start_to_json(start))
        return Hard(
            self.server_id, self.incarnation, write.term, write.vote, write.guaranteed_id, write.fully_replicated_id,
            cluster, text,
        )

    def is_due(self, new: Write, payloads: int) -> bool:
        """True if the row must be written anew with ``new``, apart from a start state; False if only marks have moved,
        and not far. ``payloads``: how many were written since this row was."""
        return (
            self.term != new.term
            or self.vote != new.vote
            or new.guaranteed_id - self.guaranteed_id >= MARKS_LAG_MAX
            or new.fully_replicated_id - self.fully_replicated_id >= MARKS_LAG_MAX
            or (payloads >= MARKS_LAG_MAX and new.guaranteed_id > self.guaranteed_id)
        )


EMPTY_START = StartState(StartStatus.EMPTY)


def start_to_json(start: StartState) -> str:
    """Encode a `StartState` as JSON, bytes in hex."""
    fields = {
        "status": int(start.status),
        "incarnations": [[who.id, who.incarnation.hex()] for who in start.incarnations],
        "configured_digest": start.configured_digest.hex(),
        "cluster": start.cluster.hex(),
        "first_list": start.first_list,
        "settings": start.settings,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def start_from_json(text: str) -> StartState:
    """Decode what `start_to_json` encoded. Raises `DamagedRow`."""
    try:
        fields = json.loads(text)
        return StartState(
            StartStatus(fields["status"]),
            tuple(Identity(id, bytes.fromhex(incarnation)) for id, incarnation in fields["incarnations"]),
            bytes.fromhex(fields["configured_digest"]),
            bytes.fromhex(fields["cluster"]),
            fields["first_list"],
            fields["settings"],
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRow(f"the start state cannot be read: {error}") from error


def text_checksum(text: str) -> int:
    """CRC-32 of a text."""
    return zlib.crc32(text.encode())


def run_checksum(term: int, first_id: int) -> int:
    """CRC-32 of a run. Raises `DamagedRow` if a value is not a number."""
    try:
        return zlib.crc32(_RUN.pack(term, first_id))
    except struct.error as error:
        raise DamagedRow(f"a run is not of its types: {error}") from error


def base_checksum(base: Base) -> int:
    """CRC-32 of the base (the last cleaned entry). Raises `DamagedRow` if a value is not a number."""
    try:
        return zlib.crc32(_BASE.pack(*base))
    except struct.error as error:
        raise DamagedRow(f"the base is not of its types: {error}") from error


def session_to_blob(row: SessionRow) -> bytes:
    """Encode a session: CRC-32 (u32, little endian), then msgpack of every field, the client included."""
    packed: bytes = msgpack.packb(tuple(row), use_bin_type=True)
    return _CRC.pack(zlib.crc32(packed)) + packed


def session_columns(row: SessionRow) -> tuple[str, int, int, int, int, bytes]:
    """Columns of a `saved_sessions` row: some for people (view `sessions`), and the encoded state, the only one read
    back."""
    return row.client, row.epoch, row.last_serial, row.last_id, row.last_time_ms, session_to_blob(row)


def session_from_blob(client: str, blob: bytes) -> SessionRow:
    """Decode what `session_to_blob` encoded; ``client``: the key of its row. Raises `DamagedRow`."""
    if type(blob) is not bytes or len(blob) < _CRC.size or _CRC.unpack_from(blob)[0] != zlib.crc32(blob[_CRC.size :]):
        raise DamagedRow(f"the session of {client!r} does not match its checksum")
    try:
        fields = msgpack.unpackb(blob[_CRC.size :], raw=False)
        slots = [(s, i, lsn, e, d) for s, i, lsn, e, d in fields[7]]
        if not all(is_digest(slot[4]) for slot in slots):
            raise ValueError("an entry's digest of another form")
        row = SessionRow._make([*fields[:7], slots, fields[8]])
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedRow(f"the session of {client!r} cannot be read: {error}") from error
    if row.client != client:
        raise DamagedRow(f"the session of {row.client!r} stands under {client!r}")
    return row


def applied_to_json(table: TableSave, sessions: int) -> str:
    """Encode a `TableSave` without its session rows but with their number, so that a missing row is noticed."""
    fields = {
        "applied_id": table.applied_id,
        "horizon_ms": table.horizon_ms,
        "members": table.members,
        "members_id": table.members_id,
        "settings": table.settings,
        "trim_lsn": table.trim_lsn,
        "cursors": table.cursors,
        "ahead": table.ahead,
        "sessions": sessions,
    }
    if table.directory is not None:
        fields["directory"] = table.directory
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def applied_from_json(text: str, checksum: int) -> dict[str, Any]:
    """Decode what `applied_to_json` encoded. Raises `DamagedRow`."""
    if type(text) is not str or text_checksum(text) != checksum:
        raise DamagedRow("the applied state does not match its checksum")
    fields: dict[str, Any] = json.loads(text)
    fields["cursors"] = tuple((name, lsn) for name, lsn in fields["cursors"])
    return fields


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
    def only_rows(self) -> bool:
        """True if there is nothing to do but to add ``entries`` (and perhaps the hard state)."""
        return not (
            self.expunge_from is not None or self.runs or self.tables or self.base or self.install or self.mended
        )


def adds_only(write: Write) -> bool:
    """True if there is nothing to do but to add entries (and perhaps the hard state)."""
    return (
        write.expunge_from is None and not write.runs and write.start is None and write.table is None
        and write.base is None and write.install is None and not write.mended
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
