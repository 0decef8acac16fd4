"""State of a server: as a digest, to compare states, and as bytes, from which the server can be restored.

Laws:

* Every attribute of a core object counts, by value, unless `LEFT_OUT` names it and says why it cannot matter. So a new
  attribute of the core counts too: at worst states are distinguished needlessly, never merged wrongly.
* Equal states give equal digests in every process.
* Objects that all servers share and that never change (configuration, settings, member lists) are in no digest, and
  are kept once, by number, for all copies. (Pickling with that is the fastest whole copy of a replica that was found.)
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from alpo.core.config import ReplicaConfig
from alpo.core.entries import Entry
from alpo.core.first_start import FirstStart
from alpo.core.members import MemberList
from alpo.core.settings import Settings
from alpo.storage.memory import Content, MemoryStore

from ..host import Host
from .search import Numbered
from .timeless import MIDDLE, Middle

#: Class name -> attributes that make no difference to a server's behaviour.
LEFT_OUT = {
    "Replica": (
        "cfg", "rng", "me",  # the server itself; its incarnation comes with the disk
        "now_s", "wall_ms", "came_s", "clocks", "log_clock",  # the same everywhere, always
        "last_leader_id",  # only orders election timers
        "connected",  # all are, always
        "wrong_incarnations",  # only told to the log
        "seen_addresses",  # nobody moves
        "settings",  # fixed
        "watch",  # a copy, as of the last step, of what the replica itself says
    ),
    "Outbox": (
        "me", "ready", "_needed", "_expunge_from", "_entries", "_runs", "_bodies_bytes", "_start",  # one step's
        "hard_durable",  # derived
    ),
    "Damage": ("first_id",),  # derived
    "Log": (
        "tail_bytes_max", "_run_ids", "_tail_bytes", "_groups", "_slices", "writing_bytes",  # derived, or caches
        "last_time_ms",  # no time passes
    ),
    "Members": ("me", "latest", "i_vote", "may_stand", "_other_voters", "_other_replicas"),  # derived
    "Replication": ("began_s", "_voters", "_replicas", "quiet_until_s", "_own_moved_s", "_own_stable_id"),
    "Changes": ("addresses_changed", "_next_address_s", "_told_lost"),  # nobody moves; what events tell
    "Newcomers": ("ask_again_s",),
    "Progress": ("asked_s", "waiting_since_s", "moved_s", "sending_s", "sent_fully_id", "in_flight_bytes"),
    "FirstStart": ("digest", "waits_for", "ask_again_s", "started"),
    "Election": ("timer_s", "_counted"),
    "Round": ("ends_s",),
    "Cycle": ("ends_s", "ask_again_s"),
    "SessionTable": (
        "settings", "names", "randoms", "_held_total", "_flying", "_flying_total",  # fixed, or derived
        "_idle", "_idle_after_ms", "_oldest",  # lower bounds, set right when they come up
        "_touched", "_unsaved",  # content of the next save: see `host_tree`
    ),
    "Session": ("created_ms", "held"),
}
_LEFT_OUT = {name: frozenset(attributes) for name, attributes in LEFT_OUT.items()}
#: Attributes that refer to other parts of the replica, which are in the digest once, as the replica's or its reign's.
WAYS = frozenset((
    "_r", "_made", "_event", "_judge", "_changes", "_cleaning", "_damage", "_disks", "_election", "_first_start",
    "_reads", "_replication", "_serving",
))


def digest(tree: Any) -> bytes:
    """The 16-byte digest of a `tree`."""
    return hashlib.blake2b(marshal.dumps(tree, 2), digest_size=16).digest()


def tree(value: Any) -> Any:
    """Convert any value to nested tuples of plain values, equal for equal values."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    make = _MAKERS.get(kind)
    if make is None:
        make = _MAKERS[kind] = _maker(kind)
    return make(value)


def host_tree(host: Host) -> Any:
    """The tree of all that a server and its disk hold."""
    disk = host.store.content
    sessions: Any = host.replica.sessions if host.replica is not None else None
    saving = sessions is not None and host.replica is not None and host.replica.cfg.table_save_entries == 1
    return (
        tree(disk.hard), tree(disk.entries), tree(disk.sessions), disk.applied, tree(host.writes),
        tree(host.waiting), tree(host.loads), tree(host.replica),
        tree(sessions.unsaved()) if saving else None,
    )


_PLAIN = frozenset((int, str, bytes, bool, float, type(None)))


def _sequence(value: Any) -> Any:
    return tuple([tree(each) for each in value])


def _mapping(value: dict[Any, Any]) -> Any:
    return tuple(sorted([(tree(key), tree(each)) for key, each in value.items()]))


def _maker(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, tuple):
        name = kind.__name__
        return lambda value: (name, *[tree(each) for each in value])
    return _object_maker(kind)


def _object_maker(kind: type) -> Callable[[Any], Any]:
    name = kind.__name__
    left_out = _LEFT_OUT.get(name, frozenset()) | WAYS
    slots = getattr(kind, "__slots__", None)
    if slots is not None:
        names = sorted(set(slots) - left_out)
        return lambda value: (name, *[tree(getattr(value, each)) for each in names])

    def of_attributes(value: Any) -> Any:
        held = vars(value)
        return (name, *[(each, tree(held[each])) for each in sorted(held) if each not in left_out])

    return of_attributes


_first_start = _object_maker(FirstStart)
_MAKERS: dict[type, Callable[[Any], Any]] = {
    tuple: _sequence,
    list: _sequence,
    deque: _sequence,
    range: _sequence,
    dict: _mapping,
    Entry: lambda entry: (entry.id, entry.term, entry.check, entry.digest),
    MemberList: lambda members: tree(members.members),
    Settings: lambda settings: None,  # fixed
    # A server that has started only says so: it takes no answer and asks nothing.
    FirstStart: lambda first: ("FirstStart", tree(first.state)) if first.started else _first_start(first),
    ReplicaConfig: lambda cfg: None,
}


# -- a whole server as bytes, and back ------------------------------------------------------------------

_SHARED: Numbered[Any] = Numbered()


def _shared(number: int) -> Any:
    return _SHARED.known[number]


def _share(value: Any) -> tuple[Any, tuple[int]]:
    return _shared, (_SHARED.number(value),)


def _middle() -> Middle:
    return MIDDLE


def _store(*content: Any) -> MemoryStore:
    return MemoryStore.holding(Content(*content))


def _of_store(store: MemoryStore) -> tuple[Any, tuple[Any, ...]]:
    return _store, tuple(store.content)


_REDUCE = {
    ReplicaConfig: _share,
    Settings: _share,
    MemberList: _share,
    Middle: lambda rng: (_middle, ()),
    MemoryStore: _of_store,
}
#: Attributes of a host that a step may change.
_HELD = ("store", "replica", "writes", "waiting", "loads", "boots", "disks", "disk_term", "disk_vote", "disk_last_id")


def freeze(host: Host) -> bytes:
    """Copy the whole server, its disk included."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = _REDUCE
    pickler.dump([getattr(host, name) for name in _HELD])
    return file.getvalue()


def thaw(frozen: bytes, host: Host) -> None:
    """Restore ``host`` to the state that `freeze` copied, with no input waiting."""
    for name, value in zip(_HELD, pickle.loads(frozen), strict=True):
        setattr(host, name, value)
    host.inbox = []
