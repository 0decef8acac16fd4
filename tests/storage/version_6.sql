-- A data file of schema version 6, written by that version and dumped; its pragmas first.
PRAGMA page_size=4096;
PRAGMA auto_vacuum=2;
PRAGMA application_id=1095520335;
PRAGMA user_version=6;
BEGIN TRANSACTION;
CREATE TABLE applied (only INTEGER PRIMARY KEY CHECK (only = 1), state TEXT NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "applied" VALUES(1,'{"ahead":false,"applied_id":5,"cursors":[["nightly",3]],"horizon_ms":5,"members":[[1,"127.0.0.1:7100",0,"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",1,["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"]]],"members_id":2,"sessions":2,"settings":{"window":1024},"trim_lsn":1}',700922015);
CREATE TABLE base (only INTEGER PRIMARY KEY CHECK (only = 1), id INTEGER NOT NULL, term INTEGER NOT NULL, time_ms INTEGER NOT NULL, next_lsn INTEGER NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "base" VALUES(1,2,4,1700000000001,2,1215472238);
CREATE TABLE event_log (number INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL);
INSERT INTO "event_log" VALUES(1,5,'started','{"term": 7}');
CREATE TABLE hard (only INTEGER PRIMARY KEY CHECK (only = 1), server_id INTEGER NOT NULL, incarnation BLOB NOT NULL, term INTEGER NOT NULL, vote INTEGER NOT NULL, guaranteed_id INTEGER NOT NULL, fully_replicated_id INTEGER NOT NULL, cluster BLOB NOT NULL, start TEXT NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "hard" VALUES(1,3,X'000102030405060708090A0B0C0D0E0F',7,2,5,4,X'63636363636363636363636363636363','{"cluster":"63636363636363636363636363636363","configured_digest":"64646464646464646464646464646464","first_list":[[3,"h:1",0,"000102030405060708090a0b0c0d0e0f",1,[]]],"incarnations":[[3,"000102030405060708090a0b0c0d0e0f"]],"settings":{"window":1024},"status":3}',3934982507);
CREATE TABLE log ("id" INTEGER PRIMARY KEY, "term" INTEGER NOT NULL, "kind" INTEGER NOT NULL, "time_ms" INTEGER NOT NULL, "client" TEXT NOT NULL, "serial" INTEGER NOT NULL, "epoch" INTEGER NOT NULL, "lsn" INTEGER NOT NULL, "count" INTEGER NOT NULL, "digest" BLOB NOT NULL, "check" INTEGER NOT NULL, "body" BLOB NOT NULL);
INSERT INTO "log" VALUES(3,4,1,1700000000002,'~client',3,0,2,1,X'D8C503F5AC47D96C2C89D68D3F4C0D5C',961537143,X'7061796C6F61642033');
INSERT INTO "log" VALUES(4,4,1,1700000000003,'~client',4,0,3,1,X'D0571F20CA4067914DB3A8864A273725',1561602668,X'7061796C6F61642034');
INSERT INTO "log" VALUES(5,6,2,1700000000004,'',0,0,4,0,X'7CDD0F5F494F55CC83C14DE394E00823',1579817782,X'7B7D');
INSERT INTO "log" VALUES(6,6,1,1700000000005,'~client',6,0,4,2,X'648B6726F687EA33C779E4697F9D76D9',2662582340,X'01000000610100000062');
INSERT INTO "log" VALUES(7,6,1,1700000000006,'~client',7,0,6,4,X'6BF7D55F8065E98C2CFCDF61A2849EC703000000010000000A0000000100000043BEB7E84BB4AFA0CC4ADD98010000000200000001000000',2758033502,X'0100000061010000006201000000630100000064');
CREATE TABLE runs (first_id INTEGER PRIMARY KEY, term INTEGER NOT NULL, checksum INTEGER NOT NULL);
INSERT INTO "runs" VALUES(1,4,4095739724);
INSERT INTO "runs" VALUES(5,6,4157222101);
CREATE TABLE saved_sessions (client TEXT PRIMARY KEY, epoch INTEGER NOT NULL, last_serial INTEGER NOT NULL, last_id INTEGER NOT NULL, last_time_ms INTEGER NOT NULL, state BLOB NOT NULL);
INSERT INTO "saved_sessions" VALUES('a',7,3,9,1700000000000,X'AD6D570B99A16107C4106E6E6E6E6E6E6E6E6E6E6E6E6E6E6E6E000309CF0000018BCFE56800929502080707C410010101010101010101010101010101019503090807C4100000000000000000000000000000000007');
INSERT INTO "saved_sessions" VALUES('b',7,1,9,1700000000000,X'8E10EF3499A16207C4106E6E6E6E6E6E6E6E6E6E6E6E6E6E6E6E000109CF0000018BCFE56800919501090807C4100000000000000000000000000000000007');
CREATE VIEW events AS SELECT number, strftime('%Y-%m-%dT%H:%M:%fZ', time_ms / 1000.0, 'unixepoch') AS time, name, json_extract(fields, '$.term') AS term, fields FROM event_log;
CREATE VIEW payloads AS
SELECT log.lsn + piece.key AS lsn, log.id AS id, log.term AS term, strftime('%Y-%m-%dT%H:%M:%fZ', log.time_ms / 1000.0, 'unixepoch') AS time,
    log.client AS client, CASE log."count" WHEN 1 THEN log.serial ELSE log.serial + json_extract(piece.value, '$[2]') END AS serial,
    CASE log."count" WHEN 1 THEN log.body ELSE substr(log.body, json_extract(piece.value, '$[0]'), json_extract(piece.value, '$[1]')) END AS payload
FROM log, json_each(CASE log."count" WHEN 1 THEN '[1]' ELSE (
    WITH RECURSIVE entry(serials) AS (
        SELECT CASE length(log.digest) WHEN 16 THEN 1 ELSE (instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 2, 1)) * 1 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 3, 1)) * 4096 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 4, 1)) * 256 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 6, 1)) * 65536 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 8, 1)) * 16777216) END
    ), walk(payload, at, size, start, part, serials, nth, upto) AS (
        SELECT 1, 1, hex(substr(log.body, 1, 4)), 1, substr(log.body, 1, 8192), serials, 0, CASE serials WHEN 1 THEN log."count" WHEN log."count" THEN 1 ELSE (instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 2, 1)) * 1 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 3, 1)) * 4096 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 4, 1)) * 256 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 6, 1)) * 65536 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (0), 4)), 8, 1)) * 16777216) END
        FROM entry
        UNION ALL
        SELECT payload + 1, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)),
            hex(CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN substr(part, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) - start + 1, 4) ELSE substr(log.body, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)), 4) END),
            CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN start ELSE (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) END,
            CASE WHEN (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)) + 4 <= start + 8192 THEN part ELSE substr(log.body, (at + 4 + (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216)), 8192) END,
            serials, nth + (payload = upto), CASE payload WHEN upto THEN upto + CASE serials WHEN 1 THEN log."count" WHEN log."count" THEN 1 ELSE (instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 2, 1)) * 1 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 3, 1)) * 4096 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 4, 1)) * 256 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 6, 1)) * 65536 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 21 + 8 * serials + 4 * (nth + 1), 4)), 8, 1)) * 16777216) END ELSE upto END
        FROM walk WHERE payload < log."count"
    ) SELECT json_group_array(json_array(at + 4, (instr('123456789ABCDEF', substr(size, 1, 1)) * 16 + instr('123456789ABCDEF', substr(size, 2, 1)) * 1 + instr('123456789ABCDEF', substr(size, 3, 1)) * 4096 + instr('123456789ABCDEF', substr(size, 4, 1)) * 256 + instr('123456789ABCDEF', substr(size, 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(size, 6, 1)) * 65536 + instr('123456789ABCDEF', substr(size, 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(size, 8, 1)) * 16777216), nth)) FROM walk) END) AS piece
WHERE log.kind = 1;
CREATE VIEW sessions AS
WITH recent AS (
    SELECT id, kind, client, serial + CASE length(log.digest) WHEN 16 THEN 1 ELSE (instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 1, 1)) * 16 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 2, 1)) * 1 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 3, 1)) * 4096 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 4, 1)) * 256 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 5, 1)) * 1048576 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 6, 1)) * 65536 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 7, 1)) * 268435456 + instr('123456789ABCDEF', substr(hex(substr(log.digest, 17, 4)), 8, 1)) * 16777216) END - 1 AS serial, epoch, time_ms,
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
