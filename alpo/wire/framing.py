"""Bytes to values and back (msgpack within bounds), and frames: how messages are separated in a stream of bytes.

A frame is the body's length (u32, little endian), the body's CRC-32 (u32, little endian), and the body.

Laws of packing:

* Unpacking raises `WireError` for whatever bytes come; nothing else is ever raised.
* Memory follows the bytes received, never the lengths that they claim. For a msgpack array header the unpacker
  allocates all that it announces, a thousand levels deep. So plain arrays are limited (`ARRAY_MAX`), and a list that
  may be long travels *packed*: as bytes that hold the msgpack array, unpacked item by item.

Laws of frames:

* A length above the limit is refused as soon as the header is there: nothing of such a body is kept.
* A reader holds at most one unfinished frame, so at most its limit and a header, whatever the stream brings.
* Reading is linear in the bytes received, however large the frame and however small the pieces.
* After a `FrameError` the stream is useless: nobody can tell where the next frame begins.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import msgpack  # type: ignore[import-untyped]

#: Items of an array, or pairs of a map, that is not packed: members, fields.
ARRAY_MAX = 1024
#: Items of a short packed list, and fields of such an item.
_FEW = 15
#: A packer keeps its buffer, so one that has packed more is dropped.
_KEPT_BYTES_MAX = 1 << 18
#: Binaries from this length on are sent from where they are; shorter ones are copied to what is around them.
APART_BYTES_MIN = 8 << 10
#: Head of a binary, behind 0xC6; and an empty binary.
BIN32 = struct.Struct(">BI")
EMPTY_BIN = b"\xc4\x00"
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")


class WireError(ValueError):
    """A whole, undamaged frame holds no valid message: the connection must be closed."""


class _Packers(threading.local):
    """A packer for each thread: making one takes longer than packing a short message."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer()


_packers = _Packers()


def pack(value: Any) -> bytes:
    """Pack ``value`` with msgpack. Raises `WireError` if that is impossible (a lone surrogate, an integer over 64
    bits)."""
    try:
        data: bytes = _packers.packer.pack(value)
    except (ValueError, TypeError, OverflowError) as error:
        _packers.packer = msgpack.Packer()
        raise WireError(f"cannot be sent: {error}") from error
    if len(data) > _KEPT_BYTES_MAX:
        _packers.packer = msgpack.Packer()
    return data


def pack_apart(rows: Sequence[Any]) -> list[bytes]:
    """Pack a list of binaries and short tuples, each with one large binary at most. The result is in parts that belong
    together: large binaries are among them as they are, without a copy. Raises `WireError`."""
    parts: list[bytes] = []
    near = [_array_head(len(rows))]
    for row in rows:
        fields = (row,) if type(row) is bytes else row
        at = next((at for at, value in enumerate(fields) if type(value) is bytes and len(value) >= APART_BYTES_MIN), -1)
        if at < 0:
            near.append(pack(row))
            continue
        if fields is row:
            near += _array_head(len(row)), pack(row[:at])[1:]
        near.append(_bin_head(len(fields[at])))
        parts += b"".join(near), fields[at]
        near = [pack(fields[at + 1 :])[1:]]
    if near != [b""]:
        parts.append(b"".join(near))
    return parts


def _array_head(count: int) -> bytes:
    if count <= _FEW:
        return bytes((0x90 + count,))
    return b"\xdc" + _U16.pack(count) if count < 1 << 16 else b"\xdd" + _U32.pack(count)


def _bin_head(length: int) -> bytes:
    return b"\xc5" + _U16.pack(length) if length < 1 << 16 else BIN32.pack(0xC6, length)


def unpack_message(body: bytes | memoryview) -> tuple[Any, ...]:
    """Unpack a body: a non-empty array (type number, field, field, …). Raises `WireError` if it is anything else."""
    try:
        fields = msgpack.unpackb(
            body, use_list=False, raw=False, strict_map_key=True,
            max_array_len=ARRAY_MAX, max_map_len=ARRAY_MAX, max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not a message: {error}") from error
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise WireError("not a message: no array that begins with a type")
    return fields


def unpack_list(blob: Any, items_max: int, width: int) -> list[Any]:
    """The items of a packed list; an item may be an array of at most ``width``. Raises `WireError`."""
    if type(blob) is not bytes:
        raise WireError("not a packed list: no bytes")
    first = blob[0] if blob else 0
    count, at = (first & 0x0F, 1) if first & 0xF0 == 0x90 else _array_header(blob)
    if count > min(items_max, len(blob) - at):
        raise WireError(f"a list of {count} items, where {min(items_max, len(blob) - at)} is the most")
    if not count and at == len(blob):
        return []
    if count <= _FEW and width <= _FEW:
        return _unpack_few(blob, count, width)
    unpacker = msgpack.Unpacker(
        use_list=False, raw=False, strict_map_key=True, read_size=len(blob), max_buffer_size=len(blob),
        max_array_len=width, max_map_len=0, max_ext_len=0,
    )
    unpacker.feed(memoryview(blob)[at:])
    try:
        items = list(unpacker)
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"not a packed list: {error}") from error
    if len(items) != count or unpacker.tell() != len(blob) - at:
        raise WireError(f"a list that says {count} items holds another number, or ends early")
    return items


def _unpack_few(blob: bytes, count: int, width: int) -> list[Any]:
    """Unpack a short list of short items in one call, without an unpacker's buffers."""
    try:
        return list(msgpack.unpackb(
            blob, use_list=False, raw=False, strict_map_key=True,
            max_array_len=max(count, width), max_map_len=0, max_ext_len=0,
        ))
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"a list that says {count} items holds another number, or no items: {error}") from error


def _array_header(blob: bytes) -> tuple[int, int]:
    """Read a msgpack array's header of more than a byte: (items announced, offset of the first). Raises `WireError`."""
    if blob[:1] == b"\xdc" and len(blob) >= 3:
        return _U16.unpack_from(blob, 1)[0], 3
    if blob[:1] == b"\xdd" and len(blob) >= 5:
        return _U32.unpack_from(blob, 1)[0], 5
    raise WireError("not a packed list: no array")


HEADER_BYTES = 8
#: Limit of a connection's first frame, before it is known who speaks.
HELLO_BYTES_MAX = 64 * 1024
#: Bytes that a frame may hold beside the largest batch: collected small appends, collected entries, a page.
GATHERED_BYTES_MAX = 8 << 20

#: Words for a stream that begins as HTTP does, and as TLS does.
HTTP_TOLD, TLS_TOLD = "the other side speaks HTTP", "the other side speaks TLS"
#: Words of a server's HTTP port to who does not speak HTTP; the port's number follows.
LOG_PORT_TOLD = "the log's port is"
#: Words of a server to a client without TLS; and to one of another cluster, of which the id follows, or else "none".
TLS_ONLY_TOLD = "this server speaks TLS only: give --ca, --cert and --key, or tls= in Python"
CLUSTER_TOLD = "this server belongs to"

_HEADER = struct.Struct("<II")
_HTTP = (b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"DELE", b"PATC", b"PRI ", b"CONN")
#: Beginning of a body that is a piece of other frames (`alpo.wire.lanes`). Its checksum is that of these bytes alone:
#: the frames in pieces have their own.
PIECE_HEAD = b"\xc1\x00"
PIECE_CHECK = crc32(PIECE_HEAD)
_PIECE = struct.Struct("<II2s")


class FrameError(ValueError):
    """The stream cannot be divided into frames any more: the connection must be closed."""


class Oversized(FrameError):
    """A frame's length is above the reader's limit."""


class Damaged(FrameError):
    """A frame's body does not match its checksum."""


def frame_bytes_max(batch_bytes_max: int) -> int:
    """Longest body, in bytes, that two sides with this limit on a batch may send each other after the hello.

    Collected appends, entries and pages hold at most `GATHERED_BYTES_MAX` // 2 of payloads, or a single larger entry:
    the other half is for everything around them.
    """
    return batch_bytes_max + GATHERED_BYTES_MAX


def frame(*parts: bytes | memoryview) -> bytes:
    """A frame whose body is the ``parts`` joined. Raises `Oversized` above the 4 GiB that a length can express."""
    length = 0
    check = 0
    for part in parts:
        length += len(part)
        check = crc32(part, check)
    if length >= 1 << 32:
        raise Oversized(f"a frame of {length} bytes cannot be sent")
    return b"".join((_HEADER.pack(length, check), *parts))


def frame_parts(fields: list[Any], tail: list[bytes]) -> list[bytes]:
    """A frame in parts that belong together, whose body is a message of these ``fields`` and of a last one, a binary of
    all bytes of ``tail``; those are not copied. Raises `Oversized`, `WireError`."""
    length = sum(map(len, tail))
    head = pack([*fields, b""]).removesuffix(EMPTY_BIN) + BIN32.pack(0xC6, length)
    return [frame_header(len(head) + length, (head, *tail)) + head, *tail]


def frame_header(length: int, parts: Iterable[bytes | memoryview]) -> bytes:
    """The header of a frame whose body is the ``parts`` joined, of ``length`` in all. Raises `Oversized`."""
    check = 0
    for part in parts:
        check = crc32(part, check)
    if length >= 1 << 32:
        raise Oversized(f"a frame of {length} bytes cannot be sent")
    return _HEADER.pack(length, check)


def piece_head(length: int) -> bytes:
    """The beginning of a frame whose body is `PIECE_HEAD` and ``length`` bytes of other frames."""
    return _PIECE.pack(len(PIECE_HEAD) + length, PIECE_CHECK, PIECE_HEAD)


def _is_sound(body: memoryview, check: int) -> bool:
    return (check == PIECE_CHECK and body[:2] == PIECE_HEAD) or crc32(body) == check


class FrameReader:
    """Divides the bytes of a connection into frame bodies of at most ``bytes_max`` bytes each."""

    def __init__(self, bytes_max: int) -> None:
        #: Limit of one body; may be changed between two frames, since a hello has a limit of its own.
        self.bytes_max = bytes_max
        self._partial = bytearray()
        self._lost: FrameError | None = None

    @property
    def pending_bytes(self) -> int:
        """Number of bytes held of an unfinished frame."""
        return len(self._partial)

    @property
    def begins_as_tls(self) -> bool:
        """True if what is held is the beginning of a message of TLS: an alert is shorter than a frame's header."""
        return _is_tls(self._partial)

    def feed(self, data: bytes | memoryview) -> list[bytes | memoryview]:
        """Take received bytes; returns every body that is now complete, in order. A memoryview may point into ``data``.

        Raises `Oversized` or `Damaged`, at this and every later call. Bodies before the bad one in the same ``data``
        are lost, as if the connection had closed a moment earlier.
        """
        if self._lost is not None:
            raise self._lost
        if not self._partial and HEADER_BYTES < len(data) <= _KEPT_BYTES_MAX:  # mostly it is one frame
            length, check = _HEADER.unpack_from(data)
            if length == len(data) - HEADER_BYTES and length <= self.bytes_max and check != PIECE_CHECK:
                body = memoryview(data)[HEADER_BYTES:]
                if crc32(body) == check:
                    return [body]
        bodies: list[bytes | memoryview] = []
        try:
            at = self._finish(data, bodies) if self._partial else 0
            if at < len(data):
                self._cut(data, at, bodies)
        except FrameError as error:
            self._lost = error
            self._partial = bytearray()
            raise
        return bodies

    def _finish(self, data: bytes | memoryview, bodies: list[bytes | memoryview]) -> int:
        """Complete the unfinished frame from ``data``; returns the offset after it."""
        partial = self._partial
        at = 0
        if len(partial) < HEADER_BYTES:
            at = HEADER_BYTES - len(partial)
            partial += data[:at]
            if len(partial) < HEADER_BYTES:
                return len(data)
        length: int
        length, check = _HEADER.unpack_from(partial)
        if length > self.bytes_max:
            raise self._oversized(length)
        end = at + HEADER_BYTES + length - len(partial)
        partial += memoryview(data)[at:end]
        if end <= len(data):
            body = memoryview(partial)[HEADER_BYTES:]
            if not _is_sound(body, check):
                raise _damaged(body)
            bodies.append(body)
            self._partial = bytearray()
        return end

    def _cut(self, data: bytes | memoryview, at: int, bodies: list[bytes | memoryview]) -> None:
        """Take whole frames from ``data``, from offset ``at`` on; keep an unfinished rest."""
        view = memoryview(data)
        size = len(data)
        while size - at >= HEADER_BYTES:
            length, check = _HEADER.unpack_from(data, at)
            if length > self.bytes_max:
                raise self._oversized(length)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            body = view[at + HEADER_BYTES : end]
            if crc32(body) != check if check != PIECE_CHECK else not _is_sound(body, check):
                raise _damaged(body)
            bodies.append(body)
            at = end
        if at < size:
            self._partial += view[at:]

    def _oversized(self, length: int) -> Oversized:
        first = _HEADER.pack(length, 0)[:4]
        if first in _HTTP:
            return Oversized(HTTP_TOLD)
        if _is_tls(first):
            return Oversized(TLS_TOLD)
        return Oversized(f"a frame of {length} bytes, where {self.bytes_max} is the most")


def _is_tls(first: bytes | bytearray) -> bool:
    """True if a message of TLS begins so."""
    return len(first) > 1 and 0x14 <= first[0] <= 0x17 and first[1] == 3


def _damaged(body: memoryview) -> Damaged:
    return Damaged(f"a frame of {len(body)} bytes does not match its checksum")
