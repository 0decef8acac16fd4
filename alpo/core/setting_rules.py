"""What the replicated settings may be (rules.md#settings): bounds of each, and how they relate.

Used alike for a configuration's first settings and for changes through the log, so that both take the same.
"""

from __future__ import annotations

from .members import Settings

_MIB = 1 << 20
#: Name -> lowest and highest value.
BOUNDS: dict[str, tuple[int, int]] = {
    "session_ttl_ms": (1000, 10 * 366 * 24 * 3600 * 1000),
    "window": (1, 65_536),
    "window_total": (1, 10_000_000),
    "sessions_max": (1, 10_000_000),
    "names_max": (1, 1_000_000),
    "payload_bytes_max": (1, 256 * _MIB),
    "batch_bytes_max": (1, 256 * _MIB),
}
#: (lesser, greater): the first may not be above the second.
RELATED = (("window", "window_total"), ("payload_bytes_max", "batch_bytes_max"))
#: No log ever holds a larger batch, whatever the settings are and were.
BATCH_BYTES_MOST = BOUNDS["batch_bytes_max"][1]


def problem(settings: Settings) -> str:
    """Why these settings cannot be, in words for an operator; "" if they can."""
    plain = settings.to_plain()
    for name, value in plain.items():
        low, high = BOUNDS[name]
        if not low <= value <= high:
            return f"{name} = {value} is not from {low} to {high}"
    for lesser, greater in RELATED:
        if plain[lesser] > plain[greater]:
            return f"{greater} = {plain[greater]} is less than {lesser} = {plain[lesser]}"
    return ""
