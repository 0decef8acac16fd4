"""Client ids: names that people choose, and random ones (R22)."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable

from .arguments import need_str

NAME_BYTES_MAX = 128
RANDOM_MARK = "~"


def check_name(name: str) -> str:
    """The name, if it may be a named client's. Raises TypeError, ValueError."""
    need_str(client=name)
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES_MAX:
        raise ValueError(f"a client name is 1 to {NAME_BYTES_MAX} bytes of UTF-8, not {size}")
    if name.startswith(RANDOM_MARK):
        raise ValueError(f"a client name does not begin with {RANDOM_MARK!r}: that marks random ids")
    return name


def is_random(client: str) -> bool:
    return client.startswith(RANDOM_MARK)


def random_id(
    time_ms: int, horizon_ms: int, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> str:
    """``~`` and a UUIDv7 (RFC 9562) made at max(time, horizon + 1), both as a server's hello told them."""
    at_ms = max(time_ms, horizon_ms + 1) & ((1 << 48) - 1)
    tail = int.from_bytes(random_bytes(10), "big")
    value = at_ms << 80 | 0x7 << 76 | (tail >> 64 & 0xFFF) << 64 | 0b10 << 62 | tail & ((1 << 62) - 1)
    return RANDOM_MARK + str(uuid.UUID(int=value))
