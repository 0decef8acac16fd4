"""The views by which the data file, and a backup, is read with plain SQL (docs/data-file.md).

Laws:

* They show what the file holds: entries not yet guaranteed and payloads below a trim too. Nothing is checked here.
* They need no function that SQLite 3.38 has not, so that any tool can read them.
* Released text is never changed: a later version of the schema drops a view and makes it anew.
"""

from __future__ import annotations

#: Of a batch's body so much is looked at in one go while its lengths are walked along.
_PART_BYTES = 8192


def _u32(hexed: str) -> str:
    """The number whose four bytes, little endian, ``hexed`` has in hex: SQL has no function for it."""
    digits = (f"instr('123456789ABCDEF', substr({hexed}, {at}, 1)) * {1 << shift}"
              for at, shift in zip(range(1, 9), (4, 0, 12, 8, 20, 16, 28, 24), strict=True))
    return f"({' + '.join(digits)})"


def _time(ms: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {ms} / 1000.0, 'unixepoch')"


_NEXT = f"(at + 4 + {_u32('size')})"
_NEAR = f"{_NEXT} + 4 <= start + {_PART_BYTES}"
#: Where each payload of a batch begins with its length, counted from 1: ``at``. ``part`` is the body from ``start`` on.
_OFFSETS = f"""
    WITH RECURSIVE walk(nth, at, size, start, part) AS (
        SELECT 1, 1, hex(substr(log.body, 1, 4)), 1, substr(log.body, 1, {_PART_BYTES})
        UNION ALL
        SELECT nth + 1, {_NEXT},
            hex(CASE WHEN {_NEAR} THEN substr(part, {_NEXT} - start + 1, 4) ELSE substr(log.body, {_NEXT}, 4) END),
            CASE WHEN {_NEAR} THEN start ELSE {_NEXT} END,
            CASE WHEN {_NEAR} THEN part ELSE substr(log.body, {_NEXT}, {_PART_BYTES}) END
        FROM walk WHERE nth < log."count"
    ) SELECT json_group_array(at) FROM walk"""

#: A row a payload. What is asked of ``id`` reaches the table, so a stretch of ids is found at once.
PAYLOADS = f"""CREATE VIEW payloads AS
SELECT log.lsn + piece.key AS lsn, log.id AS id, log.term AS term, {_time("log.time_ms")} AS time,
    log.client AS client, log.serial AS serial,
    CASE log."count" WHEN 1 THEN log.body
        ELSE substr(log.body, piece.value + 4, {_u32("hex(substr(log.body, piece.value, 4))")}) END AS payload
FROM log, json_each(CASE log."count" WHEN 1 THEN '[1]' ELSE ({_OFFSETS}) END) AS piece
WHERE log.kind = 1"""

#: A row a client, as of the last entry: what was saved, and what the log has added since.
SESSIONS = f"""CREATE VIEW sessions AS
WITH recent AS (
    SELECT id, kind, client, serial, epoch, time_ms,
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
    {_time("max(last_time_ms)")} AS last_time
FROM known GROUP BY client"""

#: A row a reign whose first entry is still there.
ELECTIONS = f"""CREATE VIEW elections AS
SELECT log.term AS term, json_extract(CAST(log.body AS TEXT), '$.leader') AS server, log.id AS first_id,
    {_time("log.time_ms")} AS time
FROM runs JOIN log ON log.id = runs.first_id
WHERE log.kind = 2"""

#: A row an event, for people.
EVENTS = (
    "CREATE VIEW events AS SELECT number, strftime('%Y-%m-%dT%H:%M:%fZ', time_ms / 1000.0, 'unixepoch') AS time,"
    " name, json_extract(fields, '$.term') AS term, fields FROM event_log"
)
