"""The data file's present schema as SQLite stores it: new files are made of it, existing ones compared with it.

Laws:

* The text is written out, so that no version of a library changes it, and released text never changes: when a later
  version needs other text, a migration (`schema.MIGRATIONS`) makes it out of the old one, and keeps the old one.
* The views are for reading a data file or a backup with plain SQL (docs/data-file.md). They show what the file holds,
  including entries not yet guaranteed and payloads below a trim; nothing is verified. They use only functions that
  SQLite 3.38 has, so that any tool can read them.
"""

from __future__ import annotations

from alpo.core.entries import DIGEST_BYTES, MARKS_AT, Entry

#: `Entry`'s fields in its order, as every statement names them. In the table the body is the last column, so that
#: headers are read without passing over it.
COLUMNS = ", ".join(f'"{name}"' for name in Entry._fields)
#: Rows of entries from one id to another, both included.
SELECT = f"SELECT {COLUMNS} FROM log WHERE id BETWEEN ? AND ? ORDER BY id"
#: An entry without its body, which SQLite does not even locate.
SELECT_HEAD = "SELECT {} FROM log WHERE id = ?".format(COLUMNS.replace('"body"', "x''"))
SELECT_HEADS = SELECT.replace('"body"', "x''")

#: Bytes of the body of a batch or a run that are fetched at a time while walking from one payload's length to the next.
PART_BYTES = 8192


def u32(hexed: str) -> str:
    """SQL expression for the number whose four bytes, little endian, ``hexed`` holds in hex: SQL has no function for
    it."""
    digits = (f"instr('123456789ABCDEF', substr({hexed}, {at}, 1)) * {1 << shift}"
              for at, shift in zip(range(1, 9), (4, 0, 12, 8, 20, 16, 28, 24), strict=True))
    return f"({' + '.join(digits)})"


def _digest_part(at: int | str) -> str:
    """SQL expression for four bytes of an entry's digest, in hex."""
    return f"hex(substr(log.digest, {at}, 4))"


def shown_time(ms: str) -> str:
    """SQL expression for a time as people read it."""
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {ms} / 1000.0, 'unixepoch')"


#: SQL expression for the number of serials of an entry (R32), from its digest.
_SERIALS = f"CASE length(log.digest) WHEN {DIGEST_BYTES} THEN 1 ELSE {u32(_digest_part(DIGEST_BYTES + 1))} END"
#: While `_PLACES` walks: offset of the next payload's length; whether that length is in ``part`` too.
NEXT = f"(at + 4 + {u32('size')})"
NEAR = f"{NEXT} + 4 <= start + {PART_BYTES}"


def _count(nth: str) -> str:
    """SQL expression for the number of payloads of append ``nth`` (from 0) of an entry with ``serials`` serials."""
    told = u32(_digest_part(f"{MARKS_AT + 1} + 8 * serials + 4 * ({nth})"))
    return f"""CASE serials WHEN 1 THEN log."count" WHEN log."count" THEN 1 ELSE {told} END"""


#: Places of the payloads in a batch or a run: of each where it begins in the body (from 1), its length, and how many
#: appends are before its own. ``at``: offset of its length, which ``size`` holds in hex; ``part``: the body from offset
#: ``start`` on; ``upto``: number of payloads up to the end of append ``nth``.
_PLACES = f"""
    WITH RECURSIVE entry(serials) AS (
        SELECT {_SERIALS}
    ), walk(payload, at, size, start, part, serials, nth, upto) AS (
        SELECT 1, 1, hex(substr(log.body, 1, 4)), 1, substr(log.body, 1, {PART_BYTES}), serials, 0, {_count("0")}
        FROM entry
        UNION ALL
        SELECT payload + 1, {NEXT},
            hex(CASE WHEN {NEAR} THEN substr(part, {NEXT} - start + 1, 4) ELSE substr(log.body, {NEXT}, 4) END),
            CASE WHEN {NEAR} THEN start ELSE {NEXT} END,
            CASE WHEN {NEAR} THEN part ELSE substr(log.body, {NEXT}, {PART_BYTES}) END,
            serials, nth + (payload = upto), CASE payload WHEN upto THEN upto + {_count("nth + 1")} ELSE upto END
        FROM walk WHERE payload < log."count"
    ) SELECT json_group_array(json_array(at + 4, {u32('size')}, nth)) FROM walk"""
_BEGIN, _SIZE, _NTH = (f"json_extract(piece.value, '$[{at}]')" for at in range(3))

#: View `payloads`: a row a payload. A condition on ``id`` reaches the table, so a range of ids is found at once.
PAYLOADS = f"""CREATE VIEW payloads AS
SELECT log.lsn + piece.key AS lsn, log.id AS id, log.term AS term, {shown_time("log.time_ms")} AS time,
    log.client AS client, CASE log."count" WHEN 1 THEN log.serial ELSE log.serial + {_NTH} END AS serial,
    CASE log."count" WHEN 1 THEN log.body ELSE substr(log.body, {_BEGIN}, {_SIZE}) END AS payload
FROM log, json_each(CASE log."count" WHEN 1 THEN '[1]' ELSE ({_PLACES}) END) AS piece
WHERE log.kind = 1"""

#: View `sessions`: a row a client as of the last entry: the saved table plus what the log has added since.
SESSIONS = f"""CREATE VIEW sessions AS
WITH recent AS (
    SELECT id, kind, client, serial + {_SERIALS} - 1 AS serial, epoch, time_ms,
        CASE kind WHEN 4 THEN json_extract(CAST(body AS TEXT), '$.op') END AS op
    FROM log
    WHERE kind IN (1, 4) AND id > coalesce((SELECT json_extract(state, '$.applied_id') FROM applied), 0)
), dropped AS (
    SELECT client, max(id) AS id FROM recent WHERE op = 'drop' GROUP BY client
), known AS (
    SELECT client, epoch, last_serial, last_id, last_time_ms FROM saved_sessions
    WHERE client NOT IN (SELECT client FROM dropped)
    UNION ALL
    SELECT recent.client, CASE op WHEN 'open' THEN recent.id ELSE epoch END, serial, recent.id, time_ms
    FROM recent LEFT JOIN dropped ON dropped.client = recent.client
    WHERE recent.id > coalesce(dropped.id, 0)
)
SELECT client, max(epoch) AS epoch, max(last_serial) AS last_serial, max(last_id) AS last_id,
    {shown_time("max(last_time_ms)")} AS last_time
FROM known GROUP BY client"""

#: View `elections`: a row for each reign whose first entry is still in the log.
ELECTIONS = f"""CREATE VIEW elections AS
SELECT log.term AS term, json_extract(CAST(log.body AS TEXT), '$.leader') AS server, log.id AS first_id,
    {shown_time("log.time_ms")} AS time
FROM runs JOIN log ON log.id = runs.first_id
WHERE log.kind = 2"""

#: View `events`: a row an event, in readable form.
EVENTS = (
    "CREATE VIEW events AS SELECT number, strftime('%Y-%m-%dT%H:%M:%fZ', time_ms / 1000.0, 'unixepoch') AS time,"
    " name, json_extract(fields, '$.term') AS term, fields FROM event_log"
)


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

#: Table or view name -> its CREATE statement (`sql` in `sqlite_master`).
SCHEMA = {
    "log": _LOG, "runs": _RUNS, "hard": _HARD, "applied": _APPLIED, "base": _BASE, "event_log": _EVENT_LOG,
    "saved_sessions": _SAVED_SESSIONS,
    "events": EVENTS, "payloads": PAYLOADS, "sessions": SESSIONS, "elections": ELECTIONS,
}
