"""A server as bytes, and back: the fastest whole copy of a replica that was found.

What all servers share and nobody changes (configuration, settings, member lists) is kept once and named by a number.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from typing import Any

from alpo.core.config import ReplicaConfig
from alpo.core.members import MemberList
from alpo.core.settings import Settings
from alpo.storage.memory import MemoryStore

from ..host import Host
from .timeless import MIDDLE, Middle

_SHARED: list[Any] = []
_NUMBERS: dict[Any, int] = {}


def _shared(number: int) -> Any:
    return _SHARED[number]


def _share(value: Any) -> tuple[Any, tuple[int]]:
    number = _NUMBERS.get(value)
    if number is None:
        number = _NUMBERS[value] = len(_SHARED)
        _SHARED.append(value)
    return _shared, (number,)


def _middle() -> Middle:
    return MIDDLE


def _store(id: int, hard: Any, entries: Any, runs: Any, sessions: Any, applied: Any) -> MemoryStore:
    store: Any = MemoryStore(id, hard.incarnation)
    store._hard, store._entries, store._runs, store._sessions, store._applied = hard, entries, runs, sessions, applied
    return store  # type: ignore[no-any-return]


def _of_store(store: Any) -> tuple[Any, tuple[Any, ...]]:
    return _store, (
        store._hard.server_id, store._hard, store._entries, store._runs, store._sessions, store._applied
    )


_REDUCE = {
    ReplicaConfig: _share,
    Settings: _share,
    MemberList: _share,
    Middle: lambda rng: (_middle, ()),
    MemoryStore: _of_store,
}
#: All of a host that a step may change.
_HELD = ("store", "replica", "writes", "waiting", "loads", "boots", "disks", "disk_term", "disk_vote", "disk_last_id")


def freeze(host: Host) -> bytes:
    """The whole server."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = _REDUCE
    pickler.dump([getattr(host, name) for name in _HELD])
    return file.getvalue()


def thaw(frozen: bytes, host: Host) -> None:
    """Make ``host`` what it was. It has no input waiting."""
    for name, value in zip(_HELD, pickle.loads(frozen), strict=True):
        setattr(host, name, value)
    host.inbox = []


def empty(host: Host) -> None:
    """Nothing of another state may stay behind."""
    host.down()
    host.loads = deque()
