"""Entries as columns, read from SQLite and checked without a Python loop over them: for readers of many entries."""

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
    sound_digest,
    split_payloads,
)
from alpo.core.runs import parts

from .tables import SELECT, SELECT_HEADS

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
