"""Client ids (R22): a name, or "~" and a UUIDv7, which tells when it was made."""

from __future__ import annotations

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
