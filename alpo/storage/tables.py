"""The present schema of the data file, as SQLite keeps it: what a new file is made of, and every file is held against.

The text is ours, and so the same whatever version of a library writes it. What a later version changes is changed
here and made of an older file by a migration (`schema.MIGRATIONS`), which keeps the old text.
"""

from __future__ import annotations

from .views import ELECTIONS, EVENTS, PAYLOADS, SESSIONS

_LOG = (
    'CREATE TABLE log ("id" INTEGER PRIMARY KEY, "term" INTEGER NOT NULL, "kind" INTEGER NOT NULL,'
    ' "time_ms" INTEGER NOT NULL, "client" TEXT NOT NULL, "serial" INTEGER NOT NULL, "epoch" INTEGER NOT NULL,'
    ' "lsn" INTEGER NOT NULL, "count" INTEGER NOT NULL, "digest" BLOB NOT NULL, "check" INTEGER NOT NULL,'
    ' "body" BLOB NOT NULL)'
)
_RUNS = "CREATE TABLE runs (first_id INTEGER PRIMARY KEY, term INTEGER NOT NULL, checksum INTEGER NOT NULL)"
_HARD = (
    "CREATE TABLE hard (only INTEGER PRIMARY KEY CHECK (only = 1), server_id INTEGER NOT NULL,"
    " incarnation BLOB NOT NULL, term INTEGER NOT NULL, vote INTEGER NOT NULL, guaranteed_id INTEGER NOT NULL,"
    " fully_replicated_id INTEGER NOT NULL, cluster BLOB NOT NULL, start TEXT NOT NULL, checksum INTEGER NOT NULL)"
)
_APPLIED = (
    "CREATE TABLE applied (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL,"
    " checksum INTEGER NOT NULL)"
)
_BASE = (
    "CREATE TABLE base (only INTEGER PRIMARY KEY CHECK (only = 1), id INTEGER NOT NULL, term INTEGER NOT NULL,"
    " time_ms INTEGER NOT NULL, next_lsn INTEGER NOT NULL, checksum INTEGER NOT NULL)"
)
_EVENT_LOG = (
    "CREATE TABLE event_log (number INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, name TEXT NOT NULL,"
    " fields TEXT NOT NULL)"
)
_SAVED_SESSIONS = (
    "CREATE TABLE saved_sessions (client TEXT PRIMARY KEY, epoch INTEGER NOT NULL, last_serial INTEGER NOT NULL,"
    " last_id INTEGER NOT NULL, last_time_ms INTEGER NOT NULL, state BLOB NOT NULL)"
)

#: Name -> the statement that makes it: `sql` of `sqlite_master`.
SCHEMA = {
    "log": _LOG, "runs": _RUNS, "hard": _HARD, "applied": _APPLIED, "base": _BASE, "event_log": _EVENT_LOG,
    "saved_sessions": _SAVED_SESSIONS,
    "events": EVENTS, "payloads": PAYLOADS, "sessions": SESSIONS, "elections": ELECTIONS,
}
