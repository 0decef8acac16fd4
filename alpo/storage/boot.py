"""Read what a replica starts from (`Boot`) out of a data file, each part checked by its checksum and against the
others."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from alpo.core.disk import Base, Boot, SessionRow, Snapshot, TableSave
from alpo.core.entries import DamagedEntry, Entry, verify
from alpo.core.members import Identity

from . import schema
from .interface import DamagedStore, StoreError
from .rows import DamagedRow, Hard, applied_from_json, run_checksum, session_from_blob, start_from_json
from .tables import COLUMNS


def read_boot(db: sqlite3.Connection, path: Path) -> Boot:
    """Read the `Boot` in one transaction. Raises `DamagedStore` and sqlite3.Error."""
    try:
        hard = schema.read_hard(db, path)
        base = schema.read_base(db, path)
        last = _last_entry(db)
        _check_front(db, base)
        runs = _runs(db, base, last)
        applied, sessions = read_applied(db)
        applied_id = applied.get("applied_id", 0)
        # the state came with a snapshot, and the entries up to there are still to come
        ahead = applied.get("ahead", False)
        known_id = max(hard.guaranteed_id, 0 if ahead else applied_id)
        if (last.id if last else base.id) < known_id:
            raise DamagedRow(f"the log ends below entry {known_id}, which it held")
        if base.id > min(hard.guaranteed_id, applied_id):
            raise DamagedRow(f"the log was cleaned up to {base.id}, beyond what was guaranteed or applied")
        applied.pop("ahead", None)
        return make_boot(hard, base, last, runs, applied, sessions)
    except (DamagedRow, DamagedEntry) as error:
        raise DamagedStore(f"{path}: {error}") from error


def require_caught_up(boot: Boot, path: Path) -> None:
    """Raise `StoreError` if the server was still receiving a snapshot's entries: its log ends below its saved state."""
    if boot.applied_id > boot.last_id:
        raise StoreError(
            f"{path}: this server was still being brought up: its log ends at entry {boot.last_id}, and the sessions "
            f"are those of entry {boot.applied_id}: take another server's"
        )


def read_snapshot(db: sqlite3.Connection, path: Path) -> Snapshot | None:
    """Read the snapshot to send to another server; None if no state was saved yet. Raises `DamagedStore` and
    sqlite3.Error."""
    try:
        applied, sessions = read_applied(db)
        if not applied:
            return None
        return make_image(schema.read_hard(db, path), schema.read_base(db, path), applied, sessions)
    except DamagedRow as error:
        raise DamagedStore(f"{path}: {error}") from error


def make_image(hard: Hard, base: Base, applied: dict[str, Any], sessions: list[SessionRow]) -> Snapshot:
    """Build a `Snapshot` from its stored parts."""
    fields = {name: value for name, value in applied.items() if name not in ("sessions", "ahead")}
    return Snapshot(base, TableSave(changed=sessions, ended=[], **fields), start_from_json(hard.start))


def make_boot(
    hard: Hard, base: Base, last: Entry | None, runs: list[tuple[int, int]], applied: dict[str, Any],
    sessions: list[SessionRow],
) -> Boot:
    """Build a `Boot` from its stored parts. ``last``: the last entry. ``applied``: fields of `applied_from_json`, {}
    before any save."""
    return Boot(
        me=Identity(hard.server_id, hard.incarnation),
        term=hard.term,
        vote=hard.vote,
        start=start_from_json(hard.start),
        guaranteed_id=hard.guaranteed_id,
        fully_replicated_id=hard.fully_replicated_id,
        last_id=last.id if last else base.id,
        last_term=last.term if last else base.term,
        next_lsn=last.lsn + last.count if last else base.next_lsn,
        last_time_ms=last.time_ms if last else base.time_ms,
        base=base,
        runs=runs,
        sessions=sessions,
        **applied,
    )


def _last_entry(db: sqlite3.Connection) -> Entry | None:
    return _entry(db, "ORDER BY id DESC LIMIT 1")


def _entry(db: sqlite3.Connection, which: str) -> Entry | None:
    row = db.execute(f"SELECT {COLUMNS} FROM log {which}").fetchone()
    if row is None:
        return None
    entry = Entry(*row)
    verify(entry)
    return entry


def _check_front(db: sqlite3.Connection, base: Base) -> None:
    """Check that the log begins right after the base, the last cleaned entry, or is empty."""
    first = _entry(db, "ORDER BY id LIMIT 1")
    if first is not None and first.id != base.id + 1:
        raise DamagedRow(f"the log begins at entry {first.id}, but was cleaned up to {base.id}")
    if first is not None and (
        first.lsn != base.next_lsn or first.term < base.term or first.time_ms < base.time_ms
    ):
        raise DamagedRow(f"entry {first.id} does not follow the base")


def _runs(db: sqlite3.Connection, base: Base, last: Entry | None) -> list[tuple[int, int]]:
    """Read the table of runs as (term, first id), ascending. Each run must end, in an entry of its term, where the next
    one begins; the first may end at the base if its entries above were expunged. Raises `DamagedRow`."""
    runs: list[tuple[int, int]] = []
    for first_id, term, checksum in db.execute("SELECT first_id, term, checksum FROM runs ORDER BY first_id"):
        if run_checksum(term, first_id) != checksum:
            raise DamagedRow(f"the run of term {term} at {first_id} does not match its checksum")
        runs.append((term, first_id))
    if sorted(runs) != runs:
        raise DamagedRow("the runs are out of order")
    if not runs and last is None:
        return runs
    ends = [first_id - 1 for _, first_id in runs[1:]] + [last.id if last else base.id]
    if not runs or runs[0][1] > base.id + 1 or any(
        _term_at(db, base, end) != term for (term, _), end in zip(runs, ends, strict=True)
    ):
        raise DamagedRow("the runs do not fit the log")
    return runs


def _term_at(db: sqlite3.Connection, base: Base, id: int) -> int | None:
    """The term of entry ``id`` or of the base; None if there is no such entry."""
    if id == base.id:
        return base.term
    row = db.execute("SELECT term FROM log WHERE id = ?", (id,)).fetchone()
    return row[0] if row else None


def read_applied(db: sqlite3.Connection) -> tuple[dict[str, Any], list[SessionRow]]:
    """Read the replicated state ({} before the first save) and its sessions. Raises `DamagedRow` and sqlite3.Error."""
    sessions = [
        session_from_blob(client, blob)
        for client, blob in db.execute("SELECT client, state FROM saved_sessions ORDER BY client")
    ]
    row = db.execute("SELECT state, checksum FROM applied WHERE only = 1").fetchone()
    if row is None:
        if sessions:
            raise DamagedRow("there are sessions, but no state that they are of")
        return {}, []
    fields = applied_from_json(*row)
    if fields.pop("sessions") != len(sessions):
        raise DamagedRow("a session is missing")
    return fields, sessions
