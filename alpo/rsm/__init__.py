"""A machine of your own, replicated: commands in the log, folded by every process alike (docs/rsm.md).

Programs begin with `connect` (trio, asyncio), or with `Replica` over a `Log` that they have. `alpo.state` stands on the
same machinery; nothing in here knows what a machine does.
"""

from __future__ import annotations

from .checking import Checked, Nondeterministic, check
from .contract import At, Machine
from .errors import (
    Behind,
    Busy,
    Corrupt,
    Diverged,
    NewerFormat,
    NewerVersion,
    NotFounded,
    Unrecoverable,
    Unsettled,
    WrongMachine,
)
from .replica import Replica, ReplicaStatus, connect, set_aside
from .snapshots import SnapshotInfo
from .twin import SyncReplica, connect_sync

__all__ = [
    "At", "Behind", "Busy", "Checked", "Corrupt", "Diverged", "Machine", "NewerFormat", "NewerVersion",
    "Nondeterministic", "NotFounded", "Replica", "ReplicaStatus", "SnapshotInfo", "SyncReplica", "Unrecoverable",
    "Unsettled", "WrongMachine", "check", "connect", "connect_sync", "set_aside",
]
