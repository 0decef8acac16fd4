"""Checks of stored entries: a scrub looks for damage in entries that nobody reads (every row's checksum, a range at a
time), and a digest over a range of the log compares two copies without sending either (R31).

Laws of the scrub:

* A range is read in one transaction, bounded in bytes and time. Damaged means: the row does not match its checksum,
  cannot be read, or is missing though it was not cleaned. All other rows in the range are sound.
* The scrub's position is saved beside the store without an fsync: if it is lost, a pass begins again.

Laws of the digest:

* The digest of no entries is 16 zero bytes. Each entry extends it: BLAKE2b (16 bytes) over the digest so far, the
  entry's ``check`` (u32, little endian) and its ``digest``, whole. These two fields cover all others and the payloads.
* Equal digests over the same ids mean equal entries in the same order. Once two chains differ they differ from there
  on, so bisection finds the first entry that differs.
* A range may begin anywhere: the chain needs nothing from before it, which may have been cleaned.
* Only entries that match their own checksums enter a digest.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from alpo.core.entries import DIGEST_BYTES, DamagedEntry, Entry, verify

from . import schema
from .connections import translate
from .interface import DamagedStore, Readable, Scrubbed, Store
from .tables import COLUMNS, SELECT, Columns

SCRUB_NAME = "alpo.scrub"
#: Longest time for one range, as for every reader's transaction.
STRETCH_S = 0.1
#: Bytes counted for a row beside its body.
ROW_BYTES = 100
#: Damaged ids that one range lists, and that are remembered.
DAMAGED_MAX = 1_000

_SELECT_ONE = f"SELECT {COLUMNS} FROM log WHERE id = ?"


def scrub(db: sqlite3.Connection, path: Path, first_id: int, bytes_max: int) -> Scrubbed:
    """Check rows from ``first_id`` on, at least one. Raises sqlite3.Error, and `DamagedStore` if not even the log's
    bounds can be read."""
    stop_s = time.monotonic() + STRETCH_S
    next_id = max(first_id, schema.read_base(db, path).id + 1)
    end_id: int = db.execute("SELECT max(id) FROM log").fetchone()[0] or 0
    damaged: list[int] = []
    size = 0
    while next_id <= end_id and size < bytes_max and len(damaged) < DAMAGED_MAX and time.monotonic() < stop_s:
        try:
            for row in db.execute(SELECT, (next_id, end_id)):
                while next_id < row[0] and len(damaged) < DAMAGED_MAX:  # missing
                    damaged.append(next_id)
                    next_id += 1
                if next_id < row[0]:
                    break
                if not _is_sound(row):
                    damaged.append(next_id)
                next_id += 1
                size += ROW_BYTES + (len(row[10]) if isinstance(row[10], bytes) else 0)
                if size >= bytes_max or time.monotonic() >= stop_s:
                    break
        except sqlite3.Error as error:
            if not isinstance(translate(error, path), DamagedStore):
                raise
            if not _is_sound(read_alone(db, next_id)):
                damaged.append(next_id)
            next_id += 1
    return Scrubbed(next_id, damaged, size, next_id > end_id)


def read_alone(db: sqlite3.Connection, id: int) -> tuple[Any, ...] | None:
    """Read row ``id`` after an error near it; None if this row is unreadable or missing.

    The sqlite3 module fetches the next row before it returns one, so the error may belong to the next.
    """
    try:
        row: tuple[Any, ...] | None = db.execute(_SELECT_ONE, (id,)).fetchone()
    except sqlite3.Error:
        return None
    return row


def _is_sound(row: tuple[Any, ...] | None) -> bool:
    if row is None:
        return False
    entry = Entry._make(row)
    try:
        verify(entry)
    except DamagedEntry:
        return False
    return True


def read_sound(store: Readable, first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
    """Read like `Store.read_entries`, up to the first damaged entry. Raises `DamagedStore` if that is ``first_id``."""
    try:
        return store.read_entries(first_id, last_id, bytes_max)
    except DamagedStore:
        damaged = store.scrub(first_id, bytes_max).damaged
        if not damaged or damaged[0] <= first_id:
            return store.read_entries(first_id, first_id, 1)  # raises an error that names this entry
        return store.read_entries(first_id, min(last_id, damaged[0] - 1), bytes_max)


def read_sound_columns(store: Readable, first_id: int, last_id: int, bytes_max: int) -> Columns:
    """Read like `read_sound`, but as columns."""
    try:
        return store.read_columns(first_id, last_id, bytes_max)
    except DamagedStore:
        return Columns.of(read_sound(store, first_id, last_id, bytes_max))


class ScrubMark:
    """File with the scrub's position and findings, for the next start."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SCRUB_NAME

    def read(self) -> tuple[int, list[int], int | None]:
        """(next id, damaged ids, end of the last pass in ms since the epoch or None if unknown). (1, [], None) if the
        file is missing or unreadable."""
        try:
            fields = json.loads(self._path.read_text("utf-8"))
            ended_ms = fields.get("ended_ms")  # older files have none
            damaged = [int(id) for id in fields["damaged"]][:DAMAGED_MAX]
            return int(fields["next_id"]), damaged, None if ended_ms is None else int(ended_ms)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return 1, [], None

    def write(self, next_id: int, damaged: Iterable[int], ended_ms: int | None = None) -> None:
        """Save the position and the findings. Raises OSError."""
        fresh = self._path.with_name(SCRUB_NAME + ".new")
        fields = {"next_id": next_id, "damaged": list(damaged), "ended_ms": ended_ms}
        fresh.write_text(json.dumps(fields) + "\n", "utf-8")
        fresh.replace(self._path)


_CHECK = struct.Struct("<I")


class DamagedAt(DamagedStore):
    """Entry ``id`` of the range is damaged or missing."""


class Span(NamedTuple):
    """A range of entries and its digest. ``last_id`` is ``first_id - 1`` while it is empty; ``last_lsn`` is ``first_lsn
    - 1`` if it has no payloads, both are 0 without entries. ``bytes``: body sizes plus about 100 an entry."""

    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    digest: bytes
    bytes: int

    @staticmethod
    def before(first_id: int) -> Span:
        """An empty range that begins at ``first_id``."""
        return Span(first_id, first_id - 1, 0, 0, bytes(DIGEST_BYTES), 0)

    def followed_by_columns(self, columns: Columns) -> Span:
        """The range extended by entries given as columns; same conditions as `followed_by`."""
        if not columns.ids:
            return self
        assert columns.ids[0] == self.last_id + 1
        digest, pack = self.digest, _CHECK.pack
        for check, of_body in zip(columns.checks, columns.digests, strict=True):
            digest = hashlib.blake2b(digest + pack(check) + of_body, digest_size=DIGEST_BYTES).digest()
        return Span(
            self.first_id, columns.ids[-1], self.first_lsn or columns.lsns[0],
            columns.lsns[-1] + columns.counts[-1] - 1, digest,
            self.bytes + ROW_BYTES * len(columns.ids) + sum(map(len, columns.bodies)),
        )

    def followed_by(self, entries: Iterable[Entry]) -> Span:
        """The range extended by ``entries``, which must have the next ids and be sound."""
        first_id, last_id, first_lsn, last_lsn, digest, size = self
        for entry in entries:
            assert entry.id == last_id + 1
            first_lsn = first_lsn or entry.lsn
            last_id, last_lsn = entry.id, entry.lsn + entry.count - 1
            link = digest + _CHECK.pack(entry.check) + entry.digest
            digest = hashlib.blake2b(link, digest_size=DIGEST_BYTES).digest()
            size += ROW_BYTES + len(entry.body)
        return Span(first_id, last_id, first_lsn, last_lsn, digest, size)


def read_on(store: Store, span: Span, last_id: int, bytes_max: int) -> Span:
    """Extend ``span`` by at least one entry, up to ``last_id`` or about ``bytes_max`` bytes. Returns ``span`` itself if
    the entry after it does not exist or was cleaned. Any thread. Raises `DamagedAt`, `StoreError`."""
    next_id = span.last_id + 1
    rows_max = max(1, bytes_max // ROW_BYTES)
    try:
        return span.followed_by(read_sound(store, next_id, min(last_id, span.last_id + rows_max), bytes_max))
    except DamagedStore as error:
        raise DamagedAt(str(error), next_id) from error
