"""A machine of your own, replicated: commands in the log, folded by every process alike (docs/rsm.md).

Programs begin with `connect` (trio, asyncio), or with `Replica` over a `Log` that they have. `alpo.state` stands on the
same machinery; nothing in here knows what a machine does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .checking.call import Checked, Nondeterministic, check
    from .replica import Replica, ReplicaStatus, connect, set_aside
    from .snapshots import SnapshotInfo
    from .twin import SyncReplica, connect_sync

__all__ = [
    "At", "Behind", "Busy", "Checked", "Corrupt", "Diverged", "Machine", "NewerFormat", "NewerVersion",
    "Nondeterministic", "NotFounded", "Replica", "ReplicaStatus", "SnapshotInfo", "SyncReplica", "Unrecoverable",
    "Unsettled", "WrongMachine", "check", "connect", "connect_sync", "set_aside",
]

#: Name -> module, imported when first asked for: a process in which `check` folds needs none of them, and State no
#: `Replica`.
_LATER = {
    name: module for module, names in {
        ".checking.call": "Checked Nondeterministic check", ".replica": "Replica ReplicaStatus connect set_aside",
        ".snapshots": "SnapshotInfo", ".twin": "SyncReplica connect_sync",
    }.items() for name in names.split()
}

if not TYPE_CHECKING:  # type checkers must not see this function: they would accept every misspelt name

    def __getattr__(name: str) -> Any:
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module, __name__), name)
        globals()[name] = value
        return value
