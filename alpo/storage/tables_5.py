"""The views `payloads` and `sessions` as schema versions 4 and 5 have them: released text, which never changes."""

from __future__ import annotations

from .tables import NEAR, NEXT, PART_BYTES, shown_time, u32

#: Offsets (``at``, from 1) of each payload's length in a batch. ``part`` is the body from offset ``start`` on.
_OFFSETS = f"""
    WITH RECURSIVE walk(nth, at, size, start, part) AS (
        SELECT 1, 1, hex(substr(log.body, 1, 4)), 1, substr(log.body, 1, {PART_BYTES})
        UNION ALL
        SELECT nth + 1, {NEXT},
            hex(CASE WHEN {NEAR} THEN substr(part, {NEXT} - start + 1, 4) ELSE substr(log.body, {NEXT}, 4) END),
            CASE WHEN {NEAR} THEN start ELSE {NEXT} END,
            CASE WHEN {NEAR} THEN part ELSE substr(log.body, {NEXT}, {PART_BYTES}) END
        FROM walk WHERE nth < log."count"
    ) SELECT json_group_array(at) FROM walk"""

PAYLOADS_5 = f"""CREATE VIEW payloads AS
SELECT log.lsn + piece.key AS lsn, log.id AS id, log.term AS term, {shown_time("log.time_ms")} AS time,
    log.client AS client, log.serial AS serial,
    CASE log."count" WHEN 1 THEN log.body
        ELSE substr(log.body, piece.value + 4, {u32("hex(substr(log.body, piece.value, 4))")}) END AS payload
FROM log, json_each(CASE log."count" WHEN 1 THEN '[1]' ELSE ({_OFFSETS}) END) AS piece
WHERE log.kind = 1"""

SESSIONS_5 = f"""CREATE VIEW sessions AS
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
    {shown_time("max(last_time_ms)")} AS last_time
FROM known GROUP BY client"""
