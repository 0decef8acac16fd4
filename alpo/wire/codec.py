"""The wire's public interface: messages to frames, frame bodies to messages. See docs/wire-format.md.

`encode`, `encode_envelope` and `encode_problem` make whole frames; the `decode_*` functions take a body from
`FrameReader`. Whatever a body holds, decoding returns a message of the right shape or raises `WireError`, nothing else.
A client imports `client_codec` alone: that is quicker.
"""

from __future__ import annotations

from .client_codec import (
    ITEMS_MAX,
    ROWS_MAX,
    Largest,
    decode_client,
    decode_hello,
    decode_server,
    encode,
    encode_problem,
    largest,
)
from .packing import WireError
from .peer_codec import ENTRIES_MAX, ToldProblem, decode_envelope, encode_entries, encode_envelope
from .shapes import ADDRESS_BYTES_MAX, WrongVersion, version_told

__all__ = [
    "ADDRESS_BYTES_MAX", "ENTRIES_MAX", "ITEMS_MAX", "ROWS_MAX", "Largest", "ToldProblem", "WireError", "WrongVersion",
    "decode_client", "decode_envelope", "decode_hello", "decode_server", "encode", "encode_entries", "encode_envelope",
    "encode_problem", "largest", "version_told",
]
