"""Versioned variables that all processes of a program share: a fold of the log, linearizable, and never written twice.

Programs begin with `connect` (trio, asyncio), or with `State` over a `Log` that they have.
"""

from __future__ import annotations

from alpo.rsm.snapshots import SnapshotInfo

from .errors import (
    Behind,
    Busy,
    Changed,
    Corrupt,
    Diverged,
    Full,
    LockLost,
    NewerFormat,
    NoInteger,
    NotFounded,
    Unrecoverable,
    Unsettled,
    WrongState,
)
from .state import Rows, State, StateStatus, connect
from .sync import SyncLock, SyncRows, SyncState, connect_sync
from .variable import Add, Expunge, If, Keep, Put, Variable
from .watching import Watch

__all__ = [
    "Add", "Behind", "Busy", "Changed", "Corrupt", "Diverged", "Expunge", "Full", "If", "Keep", "LockLost",
    "NewerFormat", "NoInteger", "NotFounded", "Put", "Rows", "SnapshotInfo", "State", "StateStatus", "SyncLock",
    "SyncRows", "SyncState", "Unrecoverable", "Unsettled", "Variable", "Watch", "WrongState", "connect",
    "connect_sync",
]
