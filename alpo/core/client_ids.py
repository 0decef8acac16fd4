"""What a client may be called (R22): a name, or "~" and a UUIDv7 that tells when it was made."""

from __future__ import annotations

CLIENT_BYTES_MAX = 128

_HEX = "0123456789abcdef"


def created_ms(client: str) -> int:
    """When a random client id says it was made (ms since 1970), or -1 if it is not "~" and a UUIDv7 in lower case."""
    if len(client) != 37 or client[0] != "~":
        return -1
    uuid = client[1:]
    digits = uuid.replace("-", "")
    if len(digits) != 32 or digits.strip(_HEX) or not uuid[8] == uuid[13] == uuid[18] == uuid[23] == "-":
        return -1
    if uuid[14] != "7" or uuid[19] not in "89ab":
        return -1
    return int(digits[:12], 16)


def valid_name(client: str) -> bool:
    """May a named client be called that? UTF-8 of 1 to 128 bytes, not beginning with "~" (R22)."""
    try:
        return 0 < len(client.encode()) <= CLIENT_BYTES_MAX and client[0] != "~"
    except UnicodeEncodeError:
        return False
