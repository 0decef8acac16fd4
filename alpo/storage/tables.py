"""The data file's present schema as SQLite stores it, and its entries as columns, read and checked without a Python
loop over them, for readers of many entries.

Laws of the schema:

* The text is written out, so that no version of a library changes it, and released text never changes: when a later
  version needs other text, a migration (`schema.MIGRATIONS`) makes it out of the old one, and keeps the old one.
* The views are for reading a data file or a backup with plain SQL (docs/data-file.md). They show what the file holds,
  including entries not yet guaranteed and payloads below a trim; nothing is verified. They use only functions that
  SQLite 3.38 has, so that any tool can read them.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from operator import lt
from typing import Any, NamedTuple
from zlib import crc32

from alpo.core.entries import (
    DIGEST_BYTES,
    MARKS_AT,
    DamagedEntry,
    Entry,
    Kind,
    body_digest,
    counts_of,
    parts,
    sound_digest,
    split_payloads,
)

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


_HEADER = struct.Struct("<QQQQQQQQ")
_KINDS = frozenset(map(int, Kind))
_DATA = int(Kind.DATA)
_single = partial(blake2b, digest_size=DIGEST_BYTES)


class Columns(NamedTuple):
    """Consecutive entries: a column for each field of `Entry`, in its order, all of one length."""

    ids: Sequence[int]
    terms: Sequence[int]
    kinds: Sequence[int]
    times_ms: Sequence[int]
    clients: Sequence[str]
    serials: Sequence[int]
    epochs: Sequence[int]
    lsns: Sequence[int]
    counts: Sequence[int]
    digests: Sequence[bytes]
    bodies: Sequence[bytes]
    checks: Sequence[int]

    @staticmethod
    def of(rows: Iterable[Sequence[Any]]) -> Columns:
        """Columns made of ``rows``, each with `Entry`'s fields; empty columns if there are none."""
        return Columns._make(zip(*rows, strict=True)) if rows else NO_COLUMNS

    def entries(self) -> list[Entry]:
        """The entries as a list of rows."""
        return list(map(Entry._make, zip(*self, strict=True)))

    def last(self) -> Entry:
        """The last entry; there must be one."""
        return Entry._make(column[-1] for column in self)


NO_COLUMNS = Columns(*[()] * len(Columns._fields))


def without_bodies(entries: Iterable[Entry]) -> Columns:
    """Columns of the entries, each with b"" for its body."""
    return Columns.of([entry._replace(body=b"") for entry in entries])


def joined(parts: Sequence[Columns]) -> Columns:
    """The pages ``parts`` in one."""
    if len(parts) < 2:
        return parts[0] if parts else NO_COLUMNS
    return Columns._make(tuple(chain.from_iterable(columns)) for columns in zip(*parts, strict=True))


def verify_columns(columns: Columns, first_id: int) -> None:
    """Check everything that `entries.verify` and `entries.verify_headers` check, batches and runs (R32) included, and
    that ids are ``first_id``, ``first_id + 1`` and so on. Raises `DamagedEntry`, which does not say at which entry."""
    kinds, counts, digests, bodies = columns.kinds, columns.counts, columns.digests, columns.bodies
    try:
        _verify_heads(columns, first_id)
        if set(map(type, bodies)) != {bytes}:
            raise DamagedEntry(f"an entry from {first_id} on has a body that is none")
        plain = set(map(len, digests)) == {DIGEST_BYTES}
        if _digests(counts, bodies) != (list(digests) if plain else [digest[:DIGEST_BYTES] for digest in digests]):
            raise DamagedEntry(f"the body of an entry from {first_id} on does not match its digest")
        for kind, has_payloads in set(zip(kinds, map(bool, counts), strict=True)):
            if kind not in _KINDS or (kind == _DATA) != has_payloads:
                raise DamagedEntry(f"an entry from {first_id} on is of kind {kind}, with payloads or without")
        for entry in columns.entries() if set(counts) - {0, 1} or not plain else ():
            verify_payloads(entry)
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise error if isinstance(error, DamagedEntry) else DamagedEntry(f"not entries: {error}") from error


def _verify_heads(columns: Columns, first_id: int) -> None:
    """Check the part of `verify_columns` that needs no bodies."""
    ids, terms, kinds, times_ms, clients, serials, epochs, lsns, counts, digests, _, checks = columns
    if list(ids) != list(range(first_id, first_id + len(ids))):
        raise DamagedEntry(f"an entry from {first_id} on is missing")
    encoded = {client: client.encode() for client in set(clients)}
    heads = map(crc32, map(_HEADER.pack, ids, terms, kinds, times_ms, serials, epochs, lsns, counts))
    if list(map(crc32, map(encoded.__getitem__, clients), map(crc32, digests, heads))) != list(checks):
        raise DamagedEntry(f"an entry from {first_id} on does not match its checksum")


def verify_payloads(entry: Entry) -> None:
    """Check that the body of an entry that matches its checksums holds the payloads that the entry tells of, and its
    appends if it is a run (R32). Raises `DamagedEntry`."""
    count, digest, body = entry[8:11]
    if len(digest) == DIGEST_BYTES:
        if count > 1:
            split_payloads(count, body)
        return
    if not sound_digest(entry.kind, count, digest):
        raise DamagedEntry(f"entry {entry.id} has a digest of another form")
    # a Part for each append only where there are batches: most of the time of a read of runs would go into them
    each = split_payloads(count, body) if counts_of(digest) is None else None
    bodies = [part.body for part in parts(entry)] if each is None else each
    marks = struct.unpack_from(f"<{2 * len(bodies)}I", digest, MARKS_AT)
    if marks != (*map(len, bodies), *map(crc32, bodies)):
        raise DamagedEntry(f"the appends in entry {entry.id} do not match its digest")


def _digests(counts: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
    if set(counts) == {1}:
        return [hash.digest() for hash in map(_single, bodies)]
    return list(map(body_digest, counts, bodies))


def by_client(clients: Sequence[str], serials: Sequence[int]) -> dict[str, list[int]]:
    """Serials in log order, by client."""
    found: dict[str, list[int]] = {}
    if set(clients) == {clients[0]}:
        return {clients[0]: list(serials)}
    for client, serial in zip(clients, serials, strict=True):
        found.setdefault(client, []).append(serial)
    return found


def rise(numbers: Sequence[int], above: int) -> bool:
    """True if ``numbers`` ascend and begin above ``above``."""
    return numbers[0] > above and all(map(lt, numbers, numbers[1:]))


def only(columns: Columns, kind: int, client: str = "") -> Columns:
    """The entries of one kind, and of one client unless ``client`` is ""."""
    if set(columns.kinds) <= {kind} and (not client or set(columns.clients) <= {client}):
        return columns
    rows = zip(*columns, strict=True)
    return Columns.of([row for row in rows if row[2] == kind and (not client or row[4] == client)])


#: Rows and bytes of one page: small enough to stay in the processor's cache until it is checked. Measured against 4,096
#: rows and 4 MiB, with bodies of 100 B and 1 KiB: a seventh faster.
COLUMN_ROWS, COLUMN_BYTES = 512, 512 << 10

_BYTES = "SELECT total(length(body)) FROM log WHERE id BETWEEN ? AND ?"


def sound_columns(db: sqlite3.Connection, first_id: int, end_id: int, bytes_max: int = 1 << 62) -> Columns:
    """Read a page of entries from ``first_id`` on, as many as fit in about ``bytes_max`` of bodies, at least one. Empty
    if anything is wrong in the page: read row by row to find out what."""
    # faster than bytes; SQLite then reports text that is not UTF-8 as an error
    before, db.text_factory = db.text_factory, str
    try:
        last_id = _page_end(db, first_id, min(end_id, first_id + COLUMN_ROWS - 1), min(bytes_max, COLUMN_BYTES))
        columns = Columns.of(db.execute(SELECT, (first_id, last_id)).fetchall())
        verify_columns(columns, first_id)
    except (DamagedEntry, sqlite3.Error):
        return NO_COLUMNS
    finally:
        db.text_factory = before
    return columns


def sound_heads(db: sqlite3.Connection, first_id: int, last_id: int) -> Columns:
    """Read entries without their bodies (b""), which SQLite does not even locate. Empty if anything is wrong."""
    before, db.text_factory = db.text_factory, str
    try:
        columns = Columns.of(db.execute(SELECT_HEADS, (first_id, last_id)).fetchall())
        _verify_heads(columns, first_id)
    except (DamagedEntry, sqlite3.Error, struct.error, TypeError, AttributeError, ValueError):
        return NO_COLUMNS
    finally:
        db.text_factory = before
    return columns


def _page_end(db: sqlite3.Connection, first_id: int, last_id: int, bytes_max: int) -> int:
    """The id at which bodies from ``first_id`` on add up to about ``bytes_max``; at least ``first_id``, at most
    ``last_id``."""
    while last_id > first_id:
        (size,) = db.execute(_BYTES, (first_id, last_id)).fetchone()
        if size <= bytes_max:
            break
        last_id = first_id + int((last_id - first_id) * bytes_max / size)
    return last_id
