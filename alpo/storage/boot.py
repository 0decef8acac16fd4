"""Reading back all that a replica starts from, every part checked against its checksum and the others."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from alpo.core.entries import DamagedEntry, Entry, verify
from alpo.core.members import Identity
from alpo.core.ready import SessionRow

from . import schema
from .interface import Boot, DamagedStore
from .rows import DamagedRow, Hard, applied_from_json, run_checksum, session_from_blob, start_from_json


def read_boot(db: sqlite3.Connection, path: Path) -> Boot:
    """The `Boot` of one snapshot. Raises `DamagedStore`, and what SQLite raises."""
    try:
        hard = schema.read_hard(db, path)
        last = _last_entry(db)
        runs = _runs(db, last)
        applied, sessions = _applied(db)
        known_id = max(hard.guaranteed_id, applied.get("applied_id", 0))
        if (last.id if last else 0) < known_id:
            raise DamagedRow(f"the log ends below entry {known_id}, which it held")
        return make_boot(hard, last, runs, applied, sessions)
    except (DamagedRow, DamagedEntry) as error:
        raise DamagedStore(f"{path}: {error}") from error


def make_boot(
    hard: Hard, last: Entry | None, runs: list[tuple[int, int]], applied: dict[str, Any], sessions: list[SessionRow]
) -> Boot:
    """A `Boot` of its parts; ``last``: the last entry; ``applied``: of `applied_from_json`, {} before any save."""
    return Boot(
        me=Identity(hard.server_id, hard.incarnation),
        term=hard.term,
        vote=hard.vote,
        start=start_from_json(hard.start),
        guaranteed_id=hard.guaranteed_id,
        fully_replicated_id=hard.fully_replicated_id,
        last_id=last.id if last else 0,
        last_term=last.term if last else 0,
        next_lsn=last.lsn + last.count if last else 1,
        last_time_ms=last.time_ms if last else 0,
        runs=runs,
        sessions=sessions,
        **applied,
    )


def _last_entry(db: sqlite3.Connection) -> Entry | None:
    row = db.execute(f"SELECT {schema.COLUMNS} FROM log ORDER BY id DESC LIMIT 1").fetchone()
    if row is None:
        return None
    entry = Entry(*row)
    verify(entry)
    return entry


def _runs(db: sqlite3.Connection, last: Entry | None) -> list[tuple[int, int]]:
    runs = []
    for first_id, term, checksum in db.execute("SELECT first_id, term, checksum FROM runs ORDER BY first_id"):
        if run_checksum(term, first_id) != checksum:
            raise DamagedRow(f"the run of term {term} at {first_id} does not match its checksum")
        runs.append((term, first_id))
    if sorted(runs) != runs:
        raise DamagedRow("the runs are out of order")
    (first_id,) = db.execute("SELECT min(id) FROM log").fetchone()
    ends = (first_id, last.term) if last else None
    if ends != ((runs[0][1], runs[-1][0]) if runs else None):
        raise DamagedRow("the runs do not fit the log")
    return runs


def _applied(db: sqlite3.Connection) -> tuple[dict[str, Any], list[SessionRow]]:
    sessions = [
        session_from_blob(client, blob)
        for client, blob in db.execute("SELECT client, state FROM sessions ORDER BY client")
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
