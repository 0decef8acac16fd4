"""ALPO: a replicated append-only log.

`connect` and `connect_sync` are where programs begin; every error derives from `AlpoError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AlpoError,
    Closed,
    Fenced,
    NoSpace,
    NotEverywhere,
    NotGuaranteed,
    OutOfRange,
    Overloaded,
    ProtocolError,
    Refused,
    SerialExpected,
    SerialReused,
    SessionExpired,
    Skipped,
    TooLarge,
    Unavailable,
)

if TYPE_CHECKING:
    from .client.cursors import CursorInfo
    from .client.handle import Handle
    from .client.keeping import Outcome
    from .client.log import Log, connect
    from .client.record import Record
    from .client.sync import SyncLog, connect_sync

__version__ = "0.1.0"

__all__ = [
    "AlpoError", "Closed", "CursorInfo", "Fenced", "Handle", "Log", "NoSpace", "NotEverywhere", "NotGuaranteed", "OutOfRange",
    "Outcome", "Overloaded", "ProtocolError", "Record", "Refused", "SerialExpected", "SerialReused", "SessionExpired",
    "Skipped", "SyncLog", "TooLarge", "Unavailable", "__version__", "connect", "connect_sync",
]

#: Loaded when first asked for: a server, and the core above all, does without the client's dependencies.
_LATER = {
    "CursorInfo": "cursors", "Handle": "handle",
    "Log": "log", "Outcome": "keeping", "Record": "record", "SyncLog": "sync", "connect": "log",
    "connect_sync": "sync",
}


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".client.{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
