"""The replicated settings and their bounds (rules.md#settings)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that are equal on every server (rules.md#settings): at first the configured ones, later changed by
    SETTINGS entries. Sizes are bytes; ``window`` and ``window_total``: serials remembered for one client, and for
    all; ``quota_…``: rates of appends and bytes that one client may have (0: any)."""

    session_ttl_ms: int = 7 * 24 * 3600 * 1000
    window: int = 1024
    window_total: int = 200_000
    sessions_max: int = 100_000
    names_max: int = 10_000
    payload_bytes_max: int = 1 << 20
    batch_bytes_max: int = 8 << 20
    quota_appends_per_s: int = 0
    quota_bytes_per_s: int = 0

    @property
    def has_quotas(self) -> bool:
        return self.quota_appends_per_s > 0 or self.quota_bytes_per_s > 0

    def __reduce__(self) -> tuple[type[Settings], tuple[int, ...]]:
        # Pickled by hand: the compiled class has no way to set a frozen field.
        return Settings, tuple(self.values().values())

    def values(self) -> dict[str, int]:
        """All settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def to_plain(self) -> dict[str, int]:
        """The form for the log and for other servers; without the quotas that are 0."""
        return {name: value for name, value in self.values().items() if value or name not in QUOTAS}

    @staticmethod
    def from_plain(plain: Any) -> Settings:
        """The settings of a plain form; names left out have their defaults. Raises ValueError on unknown names, and on
        values that are not positive integers."""
        names = {f.name for f in fields(Settings)}
        if not isinstance(plain, dict) or set(plain) - names:
            raise ValueError("not settings")
        if any(type(v) is not int or v < (name not in QUOTAS) for name, v in plain.items()):
            raise ValueError("settings are positive integers")
        return Settings(**plain)


#: Settings that may be 0, and then are not written.
QUOTAS = ("quota_appends_per_s", "quota_bytes_per_s")
_MIB = 1 << 20

#: The lowest and highest value of each setting.
BOUNDS: dict[str, tuple[int, int]] = {
    "session_ttl_ms": (1000, 10 * 366 * 24 * 3600 * 1000),
    "window": (1, 65_536),
    "window_total": (1, 10_000_000),
    "sessions_max": (1, 10_000_000),
    "names_max": (1, 1_000_000),
    "payload_bytes_max": (1, 256 * _MIB),
    "batch_bytes_max": (1, 256 * _MIB),
    "quota_appends_per_s": (0, 100_000_000),
    "quota_bytes_per_s": (0, 1 << 40),
}

#: Pairs of settings, of which the first may not be above the second.
RELATED = (("window", "window_total"), ("payload_bytes_max", "batch_bytes_max"))

#: Most bytes of a batch in any log, whatever its settings are or were.
BATCH_BYTES_MOST = BOUNDS["batch_bytes_max"][1]


def problem(settings: Settings) -> str:
    """The reason why ``settings`` are not allowed, in words for an operator; "" if they are."""
    plain = settings.values()
    for name, value in plain.items():
        low, high = BOUNDS[name]
        if not low <= value <= high:
            return f"{name} = {value} is not from {low} to {high}"
    for lesser, greater in RELATED:
        if plain[lesser] > plain[greater]:
            return f"{greater} = {plain[greater]} is less than {lesser} = {plain[lesser]}"
    return ""


def size_text(count: int) -> str:
    """A number of bytes in words for people: "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
