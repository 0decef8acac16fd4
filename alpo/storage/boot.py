"""Reading back all that a replica starts from, every part checked against its checksum and the others."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from alpo.core.disk import Base, Boot, Image, SessionRow, TableSave
from alpo.core.entries import DamagedEntry, Entry, verify
from alpo.core.members import Identity

from . import schema
from .interface import DamagedStore, StoreError
from .rows import DamagedRow, Hard, applied_from_json, run_checksum, session_from_blob, start_from_json


def read_boot(db: sqlite3.Connection, path: Path) -> Boot:
    """The `Boot` of one snapshot. Raises `DamagedStore`, and what SQLite raises."""
    try:
        hard = schema.read_hard(db, path)
        base = schema.read_base(db, path)
        last = _last_entry(db)
        _check_front(db, base)
        runs = _runs(db, base, last)
        applied, sessions = read_applied(db)
        applied_id = applied.get("applied_id", 0)
        ahead = applied.get("ahead", False)  # it came with a base, and the log up to there is still to come
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
    """Of a server that was taking a base nothing can be made: its log ends below its state. Raises `StoreError`."""
    if boot.applied_id > boot.last_id:
        raise StoreError(
            f"{path}: this server was still being brought up: its log ends at entry {boot.last_id}, and the sessions "
            f"are those of entry {boot.applied_id}: take another server's"
        )


def read_image(db: sqlite3.Connection, path: Path) -> Image | None:
    """The `Image` of one snapshot; None before any state was saved. Raises `DamagedStore`, and what SQLite raises."""
    try:
        applied, sessions = read_applied(db)
        if not applied:
            return None
        return make_image(schema.read_hard(db, path), schema.read_base(db, path), applied, sessions)
    except DamagedRow as error:
        raise DamagedStore(f"{path}: {error}") from error


def make_image(hard: Hard, base: Base, applied: dict[str, Any], sessions: list[SessionRow]) -> Image:
    """An `Image` of its parts."""
    fields = {name: value for name, value in applied.items() if name not in ("sessions", "ahead")}
    return Image(base, TableSave(changed=sessions, ended=[], **fields), start_from_json(hard.start))


def make_boot(
    hard: Hard, base: Base, last: Entry | None, runs: list[tuple[int, int]], applied: dict[str, Any],
    sessions: list[SessionRow],
) -> Boot:
    """A `Boot` of its parts; ``last``: the last entry; ``applied``: of `applied_from_json`, {} before any save."""
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
    row = db.execute(f"SELECT {schema.COLUMNS} FROM log {which}").fetchone()
    if row is None:
        return None
    entry = Entry(*row)
    verify(entry)
    return entry


def _check_front(db: sqlite3.Connection, base: Base) -> None:
    """The log begins where the base ends, or is empty."""
    first = _entry(db, "ORDER BY id LIMIT 1")
    if first is not None and first.id != base.id + 1:
        raise DamagedRow(f"the log begins at entry {first.id}, but was cleaned up to {base.id}")
    if first is not None and (
        first.lsn != base.next_lsn or first.term < base.term or first.time_ms < base.time_ms
    ):
        raise DamagedRow(f"entry {first.id} does not follow the base")


def _runs(db: sqlite3.Connection, base: Base, last: Entry | None) -> list[tuple[int, int]]:
    """The runs, ascending: each ends where the next begins, in an entry of its term. The first may end at the base, if
    what it had above was expunged."""
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
    """The term of entry ``id``, or of the base; None if there is no such entry."""
    if id == base.id:
        return base.term
    row = db.execute("SELECT term FROM log WHERE id = ?", (id,)).fetchone()
    return row[0] if row else None


def read_applied(db: sqlite3.Connection) -> tuple[dict[str, Any], list[SessionRow]]:
    """The replicated state ({} before it is first saved) and its sessions. Raises `DamagedRow`, and SQLite's errors."""
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
