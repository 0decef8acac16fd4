"""Log entries: the unit of replication, the checksums inside it (rules.md#entries), and the client ids
that it carries (R22).

Laws:

* ids are 1, 2, 3 … without gaps; ``time_ms`` never decreases along the log.
* Every entry carries ``lsn``: for DATA the LSN of its first payload, for every other kind the LSN that
  the next payload will get. So ``entry.lsn + entry.count`` is the next LSN after any entry, and an
  expunge gives LSNs back by itself.
* An entry is sealed (given its digest and checksum) once, by the leader that creates it. The same tuple is sent,
  stored (one column a field) and checked everywhere.

Laws of runs, consecutive appends of one client that came together and are one entry (R32):

* A run is a DATA entry of several serials. Its body is that of a batch: every payload behind its length.
* The digest of a run goes on behind its `DIGEST_BYTES`: the number of serials, the length and the CRC-32 of each
  append's body, and the number of payloads of each unless all have one. All are u32, little endian, column by column.
  An entry of one serial has nothing there.
* So a run's digest alone tells of each serial whether an append that is sent again is the same, and where its payloads
  are: nothing else of a run is remembered in the session table.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain
from typing import Any, NamedTuple
from zlib import crc32

#: Longest name of a client, and of a cursor, in bytes of UTF-8.
CLIENT_BYTES_MAX = 128
#: First character of every random id, and of no name.
RANDOM_MARK = "~"

_HEX = "0123456789abcdef"


def random_client(made_ms: int, number: int) -> str:
    """The id of a random client made at ``made_ms``: "~" and a UUIDv7 (RFC 9562). ``number``: 80 random bits, of which
    74 are used."""
    uuid = (made_ms & (1 << 48) - 1) << 80 | 7 << 76 | (number >> 64 & 0xFFF) << 64 | 2 << 62 | number & (1 << 62) - 1
    digits = f"{uuid:032x}"
    return f"{RANDOM_MARK}{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_random(client: str) -> bool:
    """True if ``client`` is a random id, False if it is a name."""
    return client.startswith(RANDOM_MARK)


def created_ms(client: str) -> int:
    """The creation time in a random client id, ms since 1970; -1 if it is not "~" and a UUIDv7 in lower case."""
    if len(client) != 37 or client[0] != RANDOM_MARK:
        return -1
    uuid = client[1:]
    digits = uuid.replace("-", "")
    if len(digits) != 32 or digits.strip(_HEX) or not uuid[8] == uuid[13] == uuid[18] == uuid[23] == "-":
        return -1
    if uuid[14] != "7" or uuid[19] not in "89ab":
        return -1
    return int(digits[:12], 16)


def valid_name(client: str) -> bool:
    """True if a named client may bear this name: UTF-8 of 1 to 128 bytes, not beginning with "~" (R22)."""
    try:
        return 0 < len(client.encode()) <= CLIENT_BYTES_MAX and client[0] != RANDOM_MARK
    except UnicodeEncodeError:
        return False


DIGEST_BYTES = 16
INT_MAX = 2**63 - 1
HEADER = struct.Struct("<QQQQQQQQ")
_LENGTH = struct.Struct("<I")
#: Offset of the numbers in a run's digest: behind the digest of the body and the number of serials.
MARKS_AT = DIGEST_BYTES + _LENGTH.size


class Kind(IntEnum):
    """The kinds of entries. Only DATA takes LSNs."""

    DATA = 1
    LEADER = 2
    MEMBERS = 3
    SESSION = 4
    TRIM = 5
    CURSOR = 6
    SETTINGS = 7
    LOGS = 8


_KINDS = frozenset(map(int, Kind))
_DATA = int(Kind.DATA)


class Entry(NamedTuple):
    """One log entry.

    ``kind`` is a `Kind` as an int, ``time_ms`` the leader's time in ms since 1970. ``client`` is "" and ``serial``,
    ``epoch`` 0 where they do not apply (``epoch`` also for random clients). ``count`` is the number of payloads (0
    unless DATA). ``body`` is the payload itself when ``count`` is 1, the joined payloads (`join_payloads`) when more,
    JSON for every other kind. ``digest`` begins with `body_digest(count, body)`; if the entry holds several appends, a
    run, more follows (`alpo.core.entries`), and ``serial`` is that of the first. ``check`` is the CRC-32 of all other
    fields but the body, which the digest stands for.
    """

    id: int
    term: int
    kind: int
    time_ms: int
    client: str
    serial: int
    epoch: int
    lsn: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    digest: bytes
    body: bytes
    check: int


class DamagedEntry(ValueError):
    """An entry that does not match its own checksums, or is no entry at all (R31)."""


def body_digest(count: int, body: bytes) -> bytes:
    """The 16-byte digest of the payloads; a batch never has the digest of a single payload with the same bytes."""
    if count == 1:
        return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES, person=b"batch").digest()


def serials_of(digest: bytes) -> int:
    """The number of appends, so of serials, in an entry with this digest (R32)."""
    return 1 if len(digest) == DIGEST_BYTES else _LENGTH.unpack_from(digest, DIGEST_BYTES)[0]


def counts_of(digest: bytes) -> Sequence[int] | None:
    """The number of payloads of each append in an entry with this digest; None if each has one, or it is only one."""
    number = serials_of(digest)
    at = MARKS_AT + 8 * number
    return struct.unpack_from(f"<{number}I", digest, at) if len(digest) > at else None


def is_digest(digest: bytes) -> bool:
    """True if this may be the digest of an entry: `serials_of` and `counts_of` do not fail on it."""
    size = len(digest)
    if size == DIGEST_BYTES:
        return True
    number = serials_of(digest) if size >= MARKS_AT else 0
    return number > 1 and size in (MARKS_AT + 8 * number, MARKS_AT + 12 * number)


def sound_digest(kind: int, count: int, digest: bytes) -> bool:
    """True if an entry of this kind with ``count`` payloads may have this digest."""
    if len(digest) == DIGEST_BYTES:
        return True
    if kind != _DATA or not is_digest(digest):
        return False
    each = counts_of(digest)
    if each is None:
        return serials_of(digest) == count
    return min(each) > 0 and max(each) > 1 and sum(each) == count


def header_check(
    id: int, term: int, kind: int, time_ms: int, client: bytes, serial: int, epoch: int, lsn: int, count: int,
    digest: bytes,
) -> int:
    """CRC-32 over every field but the body, which the digest stands for."""
    return zlib.crc32(HEADER.pack(id, term, kind, time_ms, serial, epoch, lsn, count) + digest + client)


def seal(
    id: int, term: int, kind: int, time_ms: int, lsn: int, body: bytes,
    client: str = "", serial: int = 0, epoch: int = 0, count: int = 0,
) -> Entry:
    """Make an entry with its digest and checksum. (`seal_appends` does so for the appends of clients.)"""
    digest = body_digest(count, body)
    check = header_check(id, term, kind, time_ms, client.encode(), serial, epoch, lsn, count, digest)
    return Entry(id, term, int(kind), time_ms, client, serial, epoch, lsn, count, digest, body, check)


def verify_header(entry: Entry) -> None:
    """Check the checksum, which covers all fields but the body, and that the body is bytes. Cheap. Raises
    `DamagedEntry`.
    """
    try:
        check = zlib.crc32(
            HEADER.pack(
                entry[0], entry[1], entry[2], entry[3], entry[5], entry[6], entry[7], entry[8]
            ) + entry[9] + entry[4].encode()
        )
    except (struct.error, TypeError, AttributeError, IndexError, UnicodeEncodeError) as error:
        raise DamagedEntry(f"not an entry: {error}") from error
    if check != entry[11] or type(entry[10]) is not bytes:
        raise DamagedEntry(f"entry {entry[0]} does not match its checksum")


def verify_headers(entries: Sequence[Any]) -> None:
    """Check entries that were received as `verify_header` does, and more: consecutive ids, every field of exactly its
    type (a `Kind` is no int here) and within 63 bits, so that it can be stored, a known kind, and a ``count`` above 0
    for DATA alone. Every entry received goes through this loop. Raises `DamagedEntry`.
    """
    pack, crc32 = HEADER.pack, zlib.crc32
    expected = entries[0][0] if entries else 0
    try:
        for id, term, kind, time_ms, client, serial, epoch, lsn, count, digest, body, check in entries:
            head = pack(id, term, kind, time_ms, serial, epoch, lsn, count)
            if crc32(head + digest + client.encode()) != check:
                raise DamagedEntry(f"entry {id} does not match its checksum")
            if not (
                type(id) is type(term) is type(kind) is type(time_ms) is type(serial) is type(epoch) is type(lsn)
                is type(count) is type(check) is int
                and type(body) is bytes
                and type(digest) is bytes
            ):
                raise DamagedEntry(f"entry {id} has a field of another type")
            if not (
                id <= INT_MAX >= term and time_ms <= INT_MAX >= serial and epoch <= INT_MAX >= lsn and count <= INT_MAX
            ):
                raise DamagedEntry(f"entry {id} has a number over 63 bits")
            if kind not in _KINDS or (kind == _DATA) != (count > 0):
                raise DamagedEntry(f"entry {id} is of kind {kind} with {count} payloads")
            if len(digest) != DIGEST_BYTES:
                if not sound_digest(kind, count, digest):
                    raise DamagedEntry(f"entry {id} has a digest of another form")
                if serial + serials_of(digest) - 1 > INT_MAX:
                    raise DamagedEntry(f"entry {id} has a number over 63 bits")
            if id != expected:
                raise DamagedEntry(f"entry {id} where {expected} belongs")
            expected += 1
    except DamagedEntry:
        raise
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise DamagedEntry(f"not an entry: {error}") from error


def verify(entry: Entry) -> None:
    """Check an entry and its body, as for entries that come off a disk. Raises `DamagedEntry`."""
    verify_header(entry)
    if body_digest(entry.count, entry.body) != entry.digest[:DIGEST_BYTES]:
        raise DamagedEntry(f"the body of entry {entry.id} does not match its digest")


def join_payloads(payloads: Sequence[bytes]) -> bytes:
    """The body of a DATA entry: one payload as it is, several each behind its length (u32, little endian)."""
    if len(payloads) == 1:
        return payloads[0]
    return b"".join(part for p in payloads for part in (_LENGTH.pack(len(p)), p))


def split_payloads(count: int, body: bytes) -> list[bytes]:
    """The payloads of a DATA entry. Raises `DamagedEntry` if the body does not hold ``count`` payloads."""
    if count == 1:
        return [body]
    payloads, at, unpack = [], 0, _LENGTH.unpack_from
    try:
        for _ in range(count):
            begin = at + 4
            at = begin + unpack(body, at)[0]
            payloads.append(body[begin:at])
    except struct.error as error:
        raise DamagedEntry("a batch ends early") from error
    if at != len(body):
        raise DamagedEntry("a batch ends early" if at > len(body) else "a batch has bytes left over")
    return payloads


def json_body(**fields: Any) -> bytes:
    """The body of an entry of any kind but DATA: JSON with sorted keys, so that equal fields give equal bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def parse_body(entry: Entry) -> dict[str, Any]:
    """The fields in a body that `json_body` made. Raises `DamagedEntry` if it is not a JSON object."""
    try:
        fields = json.loads(entry.body)
    except ValueError as error:
        raise DamagedEntry(f"the body of entry {entry.id} is not JSON") from error
    if not isinstance(fields, dict):
        raise DamagedEntry(f"the body of entry {entry.id} is not a JSON object")
    return fields


#: Most bytes of payloads in a run of more than one append.
RUN_BYTES_MAX = 256 << 10

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


def seal_group(
    appends: Sequence[tuple[str, int, int, tuple[int, bytes]]], first_id: int, term: int, time_ms: int, first_lsn: int
) -> list[Entry]:
    """The sealed DATA entries of single appends, (client, epoch, serial, (count, body)) each."""
    pack, new, id, lsn = HEADER.pack, tuple.__new__, first_id, first_lsn
    entries: list[Entry] = []
    for client, epoch, serial, (count, body) in appends:
        digest = blake2b(body, digest_size=DIGEST_BYTES).digest() if count == 1 else body_digest(count, body)
        check = crc32(pack(id, term, _DATA, time_ms, serial, epoch, lsn, count) + digest + client.encode())
        entries.append(new(Entry, (id, term, _DATA, time_ms, client, serial, epoch, lsn, count, digest, body, check)))
        id += 1
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
