"""One digest for a stretch of the log, so that two copies of it are compared without sending either (R31).

Laws:

* ``digest`` of no entry is 16 zero bytes; of one entry more, BLAKE2b (16 bytes) over the digest before, the entry's
  ``check`` (u32, little endian) and its ``digest``. Those two stand for every field and for the payloads.
* Equal digests over the same ids: equal entries, in the same order. Where two chains differ once they differ from there
  on, so halving finds the first entry that differs.
* A stretch begins anywhere: the chain needs nothing of what is before it, which may have been cleaned.
* Only entries that match their own checksums get into a digest.
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

_LINK = struct.Struct(f"<{DIGEST_BYTES}sI{DIGEST_BYTES}s")


class DamagedAt(DamagedStore):
    """Entry ``id`` of the stretch is damaged, or missing."""

    def __init__(self, id: int, why: str) -> None:
        super().__init__(why)
        self.id = id


class Span(NamedTuple):
    """Entries ``first_id`` … ``last_id``, ``first_id - 1``: none yet. They hold payloads ``first_lsn`` … ``last_lsn``,
    ``first_lsn - 1``: none; both 0 without an entry. ``bytes``: of bodies, and about 100 an entry."""

    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    digest: bytes
    bytes: int

    @staticmethod
    def before(first_id: int) -> Span:
        """No entry; the first will be ``first_id``."""
        return Span(first_id, first_id - 1, 0, 0, bytes(DIGEST_BYTES), 0)

    def followed_by_columns(self, columns: Columns) -> Span:
        """The same."""
        if not columns.ids:
            return self
        assert columns.ids[0] == self.last_id + 1
        digest, pack = self.digest, _LINK.pack
        for check, of_body in zip(columns.checks, columns.digests, strict=True):
            digest = hashlib.blake2b(pack(digest, check, of_body), digest_size=DIGEST_BYTES).digest()
        return Span(
            self.first_id, columns.ids[-1], self.first_lsn or columns.lsns[0],
            columns.lsns[-1] + columns.counts[-1] - 1, digest,
            self.bytes + ROW_BYTES * len(columns.ids) + sum(map(len, columns.bodies)),
        )

    def followed_by(self, entries: Iterable[Entry]) -> Span:
        """With ``entries``, which have the next ids and are sound."""
        first_id, last_id, first_lsn, last_lsn, digest, size = self
        for entry in entries:
            assert entry.id == last_id + 1
            first_lsn = first_lsn or entry.lsn
            last_id, last_lsn = entry.id, entry.lsn + entry.count - 1
            digest = hashlib.blake2b(_LINK.pack(digest, entry.check, entry.digest), digest_size=DIGEST_BYTES).digest()
            size += ROW_BYTES + len(entry.body)
        return Span(first_id, last_id, first_lsn, last_lsn, digest, size)


def read_on(store: Store, span: Span, last_id: int, bytes_max: int) -> Span:
    """``span`` with the entries after it up to ``last_id``, as far as about ``bytes_max`` go: one more at least, or
    ``span`` itself if it was cleaned there or the log ends. Any thread. Raises `DamagedAt`, `StoreError`."""
    next_id = span.last_id + 1
    rows_max = max(1, bytes_max // ROW_BYTES)
    try:
        return span.followed_by(read_sound(store, next_id, min(last_id, span.last_id + rows_max), bytes_max))
    except DamagedStore as error:
        raise DamagedAt(next_id, str(error)) from error
