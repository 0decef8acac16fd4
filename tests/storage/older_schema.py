"""A data file of the present schema as it is written, and two made-up older schemas from which one is brought up.

``version_6.sql`` is a file of schema 6, written by that version and dumped. This file, run as a program, prints what
the present version writes. In the made-up version 5 there are no views of the log, and sessions are a table of client
and state; in version 4 there are no events either.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store_kit import INCARNATION, SERVER, LogBuilder, cleaning, row, table, write

from alpo.core.disk import Base, StartState
from alpo.core.members import Identity, StartStatus
from alpo.storage import schema
from alpo.storage.events import EventRow
from alpo.storage.rows import session_columns, session_from_blob
from alpo.storage.sqlite import SqliteStore
from alpo.storage.tables import SCHEMA

if TYPE_CHECKING:
    from sqlite_utils import Database

CLUSTER = b"c" * 16
START = StartState(
    StartStatus.STARTED, (Identity(SERVER, INCARNATION),), b"d" * 16, CLUSTER,
    [[SERVER, "h:1", 0, INCARNATION.hex(), 1, []]], {"window": 1024},
)
_LOG = LogBuilder()
#: Entries of the file, but for the entries up to that of `BASE`, which were cleaned.
ENTRIES = [
    _LOG.leader(4), *_LOG.datas(3, 4), _LOG.leader(6), _LOG.data(6, payloads=(b"a", b"b")),
    _LOG.run(7, (b"a",), (b"b", b"c"), (b"d",), term=6),
]
BASE = Base(2, 4, ENTRIES[1].time_ms, ENTRIES[2].lsn)
SESSIONS = [row("a", 3, 2), row("b")]
#: Rows of the view `payloads`: LSN and serial.
PAYLOADS = [(2, 3), (3, 4), (4, 6), (5, 6), (6, 7), (7, 8), (8, 8), (9, 9)]
_VIEWS = ("payloads", "sessions", "elections")
#: Statements that make a file of version 6 one of version 5, and that one of version 4.
_BACK = {
    5: [
        *(f"DROP VIEW {name}" for name in _VIEWS),
        "CREATE TABLE sessions (client TEXT PRIMARY KEY, state BLOB NOT NULL)",
        "INSERT INTO sessions SELECT client, state FROM saved_sessions",
        "DROP TABLE saved_sessions",
    ],
    4: ["DROP VIEW events", "DROP TABLE event_log"],
}


def fill(store: SqliteStore) -> None:
    """Write what ``version_6.sql`` holds."""
    fields: dict[str, Any] = {"term": 7, "vote": 2, "guaranteed_id": 5, "fully_replicated_id": 4}
    saved = table(5, SESSIONS)._replace(cursors=(("nightly", 3),))
    store.commit([
        write(ENTRIES, start=START, runs=[(4, 1), (6, 5)], table=saved, **fields),
        cleaning(ENTRIES[1], **fields | {"table": None, "base": BASE}),
    ])
    store.note([EventRow(5, "started", '{"term": 7}')])


def dump(path: Path) -> str:
    """The file as SQL, its pragmas first."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        pragmas = [
            f"PRAGMA {name}={db.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("page_size", "auto_vacuum", "application_id", "user_version")
        ]
        return "\n".join([*pragmas, *db.iterdump()]) + "\n"


def golden() -> str:
    """The content of ``version_6.sql``."""
    return Path(__file__).with_name("version_6.sql").read_text()


def go_back(db: sqlite3.Connection, version: int) -> None:
    """Make a file of version 6 one of the made-up ``version``."""
    for each in range(schema.VERSION - 1, version - 1, -1):
        for sql in _BACK[each]:
            db.execute(sql)
    db.execute(f"PRAGMA user_version={version}")


_create = schema.MIGRATIONS[schema.VERSION]


def _version_4(db: Database) -> None:
    _create(db)
    for sql in (*_BACK[5], *_BACK[4]):
        db.execute(sql)


def _version_5(db: Database) -> None:
    for name in ("event_log", "events"):
        db.execute(SCHEMA[name])


def _version_6(db: Database) -> None:
    db.execute(SCHEMA["saved_sessions"])
    names = db.table("saved_sessions").columns_dict
    rows = (session_columns(session_from_blob(found["client"], found["state"])) for found in db.table("sessions").rows)
    db.table("saved_sessions").insert_all(dict(zip(names, each, strict=True)) for each in rows)
    db.table("sessions").drop()
    for name in _VIEWS:
        db.execute(SCHEMA[name])


#: `schema.MIGRATIONS` as it would be if there had been the made-up versions.
MADE_UP: dict[int, Callable[[Database], None]] = {4: _version_4, 5: _version_5, 6: _version_6}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = SqliteStore.open(Path(temporary), SERVER, make_incarnation=lambda: INCARNATION)
        fill(made)
        made.close()
        sys.stdout.write(dump(Path(temporary) / schema.DB_NAME))
