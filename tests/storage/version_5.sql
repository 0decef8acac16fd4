-- A data file of schema version 5, written by that version and dumped; its pragmas first.
PRAGMA page_size=4096;
PRAGMA auto_vacuum=INCREMENTAL;
PRAGMA application_id=1095520335;
PRAGMA user_version=5;
BEGIN TRANSACTION;
CREATE TABLE applied (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "applied" VALUES(1,'{"ahead":false,"applied_id":2,"cursors":[],"horizon_ms":5,"members":[[1,"127.0.0.1:7100",0,"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",1,["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"]]],"members_id":2,"sessions":1,"settings":{"window":1024},"trim_lsn":1}',3593629175);
CREATE TABLE base (only INTEGER PRIMARY KEY CHECK (only = 1), id INTEGER NOT NULL, term INTEGER NOT NULL, time_ms INTEGER NOT NULL, next_lsn INTEGER NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "base" VALUES(1,0,0,0,1,3584054579);
CREATE TABLE event_log (number INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE hard (only INTEGER PRIMARY KEY CHECK (only = 1), server_id INTEGER NOT NULL, incarnation BLOB NOT NULL, term INTEGER NOT NULL, vote INTEGER NOT NULL, guaranteed_id INTEGER NOT NULL, fully_replicated_id INTEGER NOT NULL, cluster BLOB NOT NULL, start TEXT NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "hard" VALUES(1,3,X'000102030405060708090A0B0C0D0E0F',7,2,2,0,X'','{"cluster":"","configured_digest":"","first_list":null,"incarnations":[],"settings":null,"status":1}',4258544244);
CREATE TABLE log ("id" INTEGER PRIMARY KEY, "term" INTEGER NOT NULL, "kind" INTEGER NOT NULL, "time_ms" INTEGER NOT NULL, "client" TEXT NOT NULL, "serial" INTEGER NOT NULL, "epoch" INTEGER NOT NULL, "lsn" INTEGER NOT NULL, "count" INTEGER NOT NULL, "digest" BLOB NOT NULL, "check" INTEGER NOT NULL, "body" BLOB NOT NULL);
INSERT INTO "log" VALUES(1,4,2,1700000000000,'',0,0,1,0,X'7CDD0F5F494F55CC83C14DE394E00823',1607961303,X'7B7D');
INSERT INTO "log" VALUES(2,4,1,1700000000001,'~client',2,0,1,1,X'B952CE8E094428B96DF0C4139D86922E',2633006173,X'7061796C6F61642032');
INSERT INTO "log" VALUES(3,4,1,1700000000002,'~client',3,0,2,1,X'D8C503F5AC47D96C2C89D68D3F4C0D5C',961537143,X'7061796C6F61642033');
INSERT INTO "log" VALUES(4,4,1,1700000000003,'~client',4,0,3,2,X'CEB228A2EF9E6D5B6E1CFE93EA89140A',506409648,X'0100000061020000006262');
CREATE TABLE runs (first_id INTEGER PRIMARY KEY, term INTEGER NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "runs" VALUES(1,4,4095739724);
CREATE TABLE saved_sessions (client TEXT PRIMARY KEY, epoch INTEGER NOT NULL, last_serial INTEGER NOT NULL, last_id INTEGER NOT NULL, last_time_ms INTEGER NOT NULL, state BLOB NOT NULL);
INSERT INTO "saved_sessions" VALUES('named',7,2,9,1700000000000,X'F555A96099A56E616D656407C4106E6E6E6E6E6E6E6E6E6E6E6E6E6E6E6E000209CF0000018BCFE56800919502090807C4100000000000000000000000000000000007');
CREATE VIEW events AS SELECT number, strftime('%Y-%m-%dT%H:%M:%fZ', time_ms / 1000.0, 'unixepoch') AS time, name, json_extract(fields, '$.term') AS term, fields FROM event_log;
CREATE VIEW payloads AS
SELECT log.lsn + piece.key AS lsn, log.id AS id, log.term AS term, strftime('%Y-%m-%dT%H:%M:%fZ', log.time_ms / 1000.0, 'unixepoch') AS time,
    log.client AS client, log.serial AS serial,
    CASE log."count" WHEN 1 THEN log.body
        ELSE substr(log.body, piece.value + 4, (instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 2, 1)) * 1 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 3, 1)) * 4096 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 4, 1)) * 256 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 6, 1)) * 65536 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(hex(substr(log.body, piece.value, 4)), 8, 1)) * 16777216)) END AS payload
FROM log, json_each(CASE log."count" WHEN 1 THEN '[1]' ELSE (
    WITH RECURSIVE walk(nth, at, size, start, part) AS (
        SELECT 1, 1, hex(substr(log.body, 1, 4)), 1, substr(log.body, 1, 8192)
        UNION ALL
        SELECT nth + 1, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)),
            hex(CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN substr(part, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) - start + 1, 4) ELSE substr(log.body, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)), 4) END),
            CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN start ELSE (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) END,
            CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN part ELSE substr(log.body, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)), 8192) END
        FROM walk WHERE nth < log."count"
    ) SELECT json_group_array(at) FROM walk) END) AS piece
WHERE log.kind = 1;
CREATE VIEW sessions AS
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
    strftime('%Y-%m-%dT%H:%M:%fZ', max(last_time_ms) / 1000.0, 'unixepoch') AS last_time
FROM known GROUP BY client;
CREATE VIEW elections AS
SELECT log.term AS term, json_extract(CAST(log.body AS TEXT), '$.leader') AS server, log.id AS first_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', log.time_ms / 1000.0, 'unixepoch') AS time
FROM runs JOIN log ON log.id = runs.first_id
WHERE log.kind = 2;
COMMIT;
