"""Bytes to values and back: msgpack within bounds.

Laws:

* Unpacking raises `WireError` for whatever bytes come; nothing else is ever raised.
* Memory follows the bytes received, never the lengths that they claim. For a msgpack array header the unpacker
  allocates all that it announces, a thousand levels deep. So plain arrays are limited (`ARRAY_MAX`), and a list that
  may be long travels *packed*: as bytes that hold the msgpack array, unpacked item by item.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import msgpack  # type: ignore[import-untyped]

#: Items of an array, or pairs of a map, that is not packed: members, fields.
ARRAY_MAX = 1024
#: Items of a short packed list, and fields of such an item.
_FEW = 15
#: A packer keeps its buffer, so one that has packed more is dropped.
_KEPT_BYTES_MAX = 1 << 18
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
    count, at = _array_header(blob)
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
    """Read a msgpack array header: (items announced, offset of the first). Raises `WireError`."""
    first = blob[0] if blob else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first == 0xDC and len(blob) >= 3:
        return _U16.unpack_from(blob, 1)[0], 3
    if first == 0xDD and len(blob) >= 5:
        return _U32.unpack_from(blob, 1)[0], 5
    raise WireError("not a packed list: no array")
