"""The replicated settings: what they are, and which values they may have (rules.md#settings)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """Replicated settings: every server computes with the same (rules.md#settings). The first start has those of the
    configuration; an entry of the log changes them while the servers run."""

    session_ttl_ms: int = 7 * 24 * 3600 * 1000
    window: int = 1024
    window_total: int = 200_000
    sessions_max: int = 100_000
    names_max: int = 10_000
    payload_bytes_max: int = 1 << 20
    batch_bytes_max: int = 8 << 20

    def to_plain(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def from_plain(plain: Any) -> Settings:
        """Raises ValueError on unknown keys or values that are not positive integers."""
        names = {f.name for f in fields(Settings)}
        if not isinstance(plain, dict) or set(plain) - names:
            raise ValueError("not settings")
        if any(type(v) is not int or v <= 0 for v in plain.values()):
            raise ValueError("settings are positive integers")
        return Settings(**plain)


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
