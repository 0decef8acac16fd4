"""ALPO: a replicated append-only log.

Programs begin with `connect` or `connect_sync`; every error derives from `AlpoError`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    AlpoError,
    BackupFailed,
    Closed,
    Conflict,
    Fenced,
    LogExists,
    NoSpace,
    NoSuchLog,
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
    TlsMismatch,
    TooLarge,
    Unavailable,
)

if TYPE_CHECKING:
    from .client.handle import Handle
    from .client.log import Log, connect
    from .client.operator.files import BackupInfo, FileSpace
    from .client.operator.logs import LogInfo
    from .client.operator.members import Leadership, MemberInfo, Settings
    from .client.operator.sessions import ByHand, CursorInfo, Outcome, SessionInfo
    from .client.operator.status import Events, MemberStatus, PeerStatus, ServerEvent, Silent
    from .client.reading import Batches, Records, StopEvent, SyncStopEvent
    from .client.record import Record
    from .client.sync import SyncLog, connect_sync
    from .tls import Tls

__all__ = [
    "AlpoError", "BackupFailed", "BackupInfo", "Batches", "ByHand", "Closed", "Conflict", "CursorInfo", "Events",
    "Fenced", "FileSpace", "Handle", "Leadership", "Log", "LogExists", "LogInfo", "MemberInfo", "MemberStatus",
    "NoSpace", "NoSuchLog", "NotEverywhere", "NotGuaranteed", "OutOfRange", "Outcome", "Overloaded", "PeerStatus",
    "ProtocolError", "Record", "Records", "Refused", "SerialExpected", "SerialReused", "ServerEvent", "SessionExpired",
    "SessionInfo", "Settings", "Silent", "Skipped", "StopEvent", "SyncLog", "SyncStopEvent", "Tls", "TlsMismatch",
    "TooLarge", "Unavailable", "__version__", "connect", "connect_sync",
]

#: Name -> module, imported when first asked for: a server, above all its core, does without the
#: client's dependencies.
_LATER = {
    name: f".client.{module}" for module, names in {
        "handle": "Handle", "log": "Log connect", "operator.files": "BackupInfo FileSpace",
        "operator.logs": "LogInfo",
        "operator.members": "Leadership MemberInfo Settings",
        "operator.sessions": "ByHand CursorInfo Outcome SessionInfo",
        "operator.status": "Events MemberStatus PeerStatus ServerEvent Silent",
        "reading": "Batches Records StopEvent SyncStopEvent", "record": "Record", "sync": "SyncLog connect_sync",
    }.items() for name in names.split()
} | {"Tls": ".tls"}

if not TYPE_CHECKING:  # type checkers must not see this function: they would accept every misspelt name

    def __getattr__(name: str) -> Any:
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module, __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List what programs may use: not what this module itself imports."""
    own = (name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType))
    return sorted({*__all__, *own})
