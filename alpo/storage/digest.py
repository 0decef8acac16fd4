"""A digest over a range of the log, to compare two copies without sending either (R31).

Laws:

* The digest of no entries is 16 zero bytes. Each entry extends it: BLAKE2b (16 bytes) over the digest so far, the
  entry's ``check`` (u32, little endian) and its ``digest``, whole. These two fields cover all others and the payloads.
* Equal digests over the same ids mean equal entries in the same order. Once two chains differ they differ from there
  on, so bisection finds the first entry that differs.
* A range may begin anywhere: the chain needs nothing from before it, which may have been cleaned.
* Only entries that match their own checksums enter a digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from alpo.core.entries import DIGEST_BYTES, Entry

from .columns import Columns
from .interface import DamagedStore, Store
from .scrub import ROW_BYTES, read_sound

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
