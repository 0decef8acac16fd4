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
    from .client.compacting import FileSpace
    from .client.handle import Handle
    from .client.log import Log, connect
    from .client.operator.admin import ByHand, SessionInfo
    from .client.operator.cursors import CursorInfo
    from .client.operator.events import Events, ServerEvent, Silent
    from .client.operator.members import Leadership, MemberInfo
    from .client.operator.outcome import Outcome
    from .client.operator.settings import Settings
    from .client.operator.status import MemberStatus, PeerStatus
    from .client.reading import Batches, Records
    from .client.record import Record
    from .client.stopping import StopEvent, SyncStopEvent
    from .client.sync import SyncLog, connect_sync

__version__ = "0.2.0"

__all__ = [
    "AlpoError", "Batches", "ByHand", "Closed", "CursorInfo", "Events", "Fenced", "FileSpace", "Handle", "Leadership",
    "Log", "MemberInfo", "MemberStatus", "NoSpace", "NotEverywhere", "NotGuaranteed", "OutOfRange", "Outcome",
    "Overloaded", "PeerStatus", "ProtocolError", "Record", "Records", "Refused", "SerialExpected", "SerialReused",
    "ServerEvent", "SessionExpired", "SessionInfo", "Settings", "Silent", "Skipped", "StopEvent", "SyncLog",
    "SyncStopEvent", "TooLarge", "Unavailable", "__version__", "connect", "connect_sync",
]

#: Loaded when first asked for: a server, and the core above all, does without the client's dependencies.
_LATER = {
    "Batches": "reading", "ByHand": "operator.admin", "CursorInfo": "operator.cursors", "Events": "operator.events",
    "FileSpace": "compacting", "Handle": "handle", "Leadership": "operator.members", "Log": "log",
    "MemberInfo": "operator.members", "MemberStatus": "operator.status", "Outcome": "operator.outcome",
    "PeerStatus": "operator.status", "Record": "record", "Records": "reading", "ServerEvent": "operator.events",
    "SessionInfo": "operator.admin", "Settings": "operator.settings", "Silent": "operator.events",
    "StopEvent": "stopping", "SyncLog": "sync", "SyncStopEvent": "stopping", "connect": "log", "connect_sync": "sync",
}

if not TYPE_CHECKING:  # a type checker that sees it takes every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".client.{module}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
