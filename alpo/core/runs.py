"""Runs: consecutive appends of one client that came together and are one entry (R32).

Laws:

* A run is a DATA entry of several serials. Its body is that of a batch: every payload behind its length.
* The digest of a run goes on behind its `DIGEST_BYTES`: the number of serials, the length and the CRC-32 of each
  append's body, and the number of payloads of each unless all have one. All are u32, little endian, column by column.
  An entry of one serial has nothing there.
* So a run's digest alone tells of each serial whether an append that is sent again is the same, and where its payloads
  are: nothing else of a run is remembered in the session table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain
from typing import NamedTuple
from zlib import crc32

from .entries import (
    DIGEST_BYTES,
    HEADER,
    MARKS_AT,
    DamagedEntry,
    Entry,
    Kind,
    body_digest,
    counts_of,
    join_payloads,
    serials_of,
    split_payloads,
)

#: Most bytes of payloads in a run of more than one append.
RUN_BYTES_MAX = 256 << 10

_DATA = int(Kind.DATA)
_U32 = struct.Struct("<I")


class Part(NamedTuple):
    """One append of an entry: its serial, the LSN of its first payload, its number of payloads, and its body as
    `Entry` defines it for one append."""

    serial: int
    lsn: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    body: bytes


@lru_cache(maxsize=4096)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


def offset(digest: bytes, nth: int) -> int:
    """The number of payloads before append ``nth`` (from 0) of an entry with this digest."""
    if not nth:
        return 0
    starts = _starts(digest)
    return nth if starts is None else starts[nth]


@lru_cache(maxsize=8)  # a retry asks for one serial after the other
def _starts(digest: bytes) -> list[int] | None:
    """The number of payloads before each append; None if each has one."""
    each = counts_of(digest)
    return None if each is None else list(accumulate(each[:-1], initial=0))


def same(digest: bytes, nth: int, count: int, body: bytes) -> bool:
    """True if append ``nth`` of the entry with this digest has this number of payloads and this body. Of a run, length
    and CRC-32 of the body are compared."""
    if len(digest) == DIGEST_BYTES:
        return digest == body_digest(count, body)
    number, at = serials_of(digest), MARKS_AT + 4 * nth
    (length,), (check,) = _U32.unpack_from(digest, at), _U32.unpack_from(digest, at + 4 * number)
    (payloads,) = (1,) if len(digest) == MARKS_AT + 8 * number else _U32.unpack_from(digest, at + 8 * number)
    return bool(payloads == count and length == len(body) and check == crc32(body))


def lsns_of(entry: Entry) -> Sequence[int]:
    """The LSN of the first payload of each append of a DATA entry."""
    each = counts_of(entry.digest)
    if each is None:
        return range(entry.lsn, entry.lsn + serials_of(entry.digest))
    return list(accumulate(each[:-1], initial=entry.lsn))


def parts(entry: Entry) -> list[Part]:
    """The appends of a DATA entry. Raises `DamagedEntry` if the body does not hold them."""
    number = serials_of(entry.digest)
    if number == 1:
        return [Part(entry.serial, entry.lsn, entry.count, entry.body)]
    payloads = split_payloads(entry.count, entry.body)
    each = counts_of(entry.digest)
    if each is None:
        return [Part(entry.serial + at, entry.lsn + at, 1, payload) for at, payload in enumerate(payloads)]
    if sum(each) != len(payloads):
        raise DamagedEntry(f"entry {entry.id} does not hold the payloads that it tells of")
    found: list[Part] = []
    at = 0
    for nth, count in enumerate(each):
        found.append(Part(entry.serial + nth, entry.lsn + at, count, join_payloads(payloads[at : at + count])))
        at += count
    return found


# -- making entries


def seal_appends(
    bodies: Sequence[tuple[int, bytes]], client: str, serial: int, epoch: int, first_id: int, term: int, time_ms: int,
    first_lsn: int, *, together: bool,
) -> list[Entry]:
    """The sealed DATA entries of ``bodies``, (count, body) each, with serials ``serial``, ``serial + 1`` and so on:
    runs of at most `RUN_BYTES_MAX` if ``together``, else an entry for each."""
    pack, new, name = HEADER.pack, tuple.__new__, client.encode()
    id, lsn = first_id, first_lsn
    entries: list[Entry] = []
    for group in _groups(bodies) if together else ([each] for each in bodies):
        if len(group) == 1:
            count, body = group[0]
            digest = blake2b(body, digest_size=DIGEST_BYTES).digest() if count == 1 else body_digest(count, body)
        else:
            count, body, digest = _run(group)
        check = crc32(pack(id, term, _DATA, time_ms, serial, epoch, lsn, count) + digest + name)
        entries.append(new(Entry, (id, term, _DATA, time_ms, client, serial, epoch, lsn, count, digest, body, check)))
        id += 1
        serial += len(group)
        lsn += count
    return entries


def _groups(bodies: Sequence[tuple[int, bytes]]) -> Iterator[Sequence[tuple[int, bytes]]]:
    """Split appends into those that become one entry each."""
    begin = size = 0
    for at, (_, body) in enumerate(bodies):
        if size + len(body) > RUN_BYTES_MAX and at > begin:
            yield bodies[begin:at]
            begin, size = at, 0
        size += len(body)
    yield bodies[begin:]


def _run(group: Sequence[tuple[int, bytes]]) -> tuple[int, bytes, bytes]:
    """The number of payloads, the body and the digest of a run of these appends."""
    each, bodies = zip(*group, strict=True)
    lengths, checks = list(map(len, bodies)), map(crc32, bodies)
    number = len(bodies)
    if set(each) == {1}:
        body = b"".join(chain.from_iterable(zip(map(_U32.pack, lengths), bodies, strict=True)))
        marks = _numbers(1 + 2 * number).pack(number, *lengths, *checks)
    else:
        body = b"".join(body if count > 1 else _U32.pack(len(body)) + body for count, body in group)
        marks = _numbers(1 + 3 * number).pack(number, *lengths, *checks, *each)
    count = sum(each)
    return count, body, body_digest(count, body) + marks
