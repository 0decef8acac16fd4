"""Replicas without time, and the state of a server as a digest and as bytes, from which it can be restored.

Laws of time: clocks stand still, and every effect of time is an action of its own.

* Every step happens at `NOW_S`. After it `stop_clocks` puts every deadline out of reach and makes every remembered time
  either fresh or none. So two replicas that differ only in when things happened are equal.
* Each `Timer` may run out at any moment, in any order between servers: more than real clocks allow, never less. One
  fact is taken from real time: when its election timer runs out, a server has heard no leader for longer than it takes
  one for live (T + k·d > T - h, and hearing a leader restarts the timer).
* A server may cease to take its leader for live just before any message to which that matters; doing so earlier would
  make no difference. So that is no action of its own, but a second way to take such a message.
* Numbers of writes are counted from the last one that is durable: only their order matters.

Laws of state:

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
import random
from collections import deque
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

from alpo.core.config import ReplicaConfig
from alpo.core.entries import Entry
from alpo.core.first_start import FirstStart
from alpo.core.members import MemberList
from alpo.core.ranks import State
from alpo.core.replica import Replica
from alpo.core.settings import Settings
from alpo.storage.memory import Content, MemoryStore

from ..host import Host
from .search import Numbered

NOW_S = 1000.0  # reading of a host's monotonic clock at virtual time 0
NEVER_S = float("inf")
LATER_S = 1e12


class Middle(random.Random):
    """Random generator that always gives 0.5: random numbers only spread deadlines, and there are none."""

    def random(self) -> float:
        return 0.5


MIDDLE = Middle(0)


class Timer(IntEnum):
    """Timer of a server that may run out."""

    QUESTION = 1  # R29: it asks the others again
    CANVASS = 2  # an election timer or a canvass round has run out
    ASK_AGAIN = 3  # R3: a candidate asks the silent again
    CYCLE = 4  # R9: a candidacy without result ends
    HEARTBEAT = 5
    MARKS = 6  # R16: a mark that moved leaves by itself
    PROBE = 7  # R17: too long without an answer; a leader asks all peers again where they stand
    SILENCE = 8  # R15: a leader has not heard a majority
    DISK = 10  # R34: a write is under way for longer than the server waits for its disk
    TRANSFER = 9  # R27: the state for a newcomer was not on disk yet; a leader looks again


def timers(r: Replica) -> list[Timer]:
    """The timers that may run out on this server now."""
    if not r.first_start.started:
        return [Timer.QUESTION]
    if r.leadership is not None:
        due = [Timer.HEARTBEAT, Timer.SILENCE]
        if r.leadership.marks_due_s != NEVER_S:
            due.append(Timer.MARKS)
        if any(peer.in_flight for peer in r.leadership.peers.values()):
            due.append(Timer.PROBE)
        if r.changes is not None and any(not each.head for each in r.changes.newcomers.transfers.values()):
            due.append(Timer.TRANSFER)
        if r.log.oldest_write() is not None:
            due.append(Timer.DISK)
        return due
    if r.state is State.CANDIDATE:
        return [Timer.ASK_AGAIN, Timer.CYCLE]
    return [Timer.CANVASS] if r.may_stand else []


def run_out(r: Replica, timer: Timer) -> None:
    """Make ``timer`` due, for the next step."""
    if timer is Timer.QUESTION:
        r.first_start.ask_again_s = NOW_S
    elif timer is Timer.CANVASS:
        r.heard_s = None
        r.election.timer_s = NOW_S
        if r.election.round is not None:
            r.election.round.ends_s = NOW_S
    elif timer in (Timer.ASK_AGAIN, Timer.CYCLE):
        assert r.election.cycle is not None
        r.election.cycle.ask_again_s = NOW_S
        if timer is Timer.CYCLE:
            r.election.cycle.ends_s = NOW_S
    else:
        _leaders_timer(r, timer)


def _leaders_timer(r: Replica, timer: Timer) -> None:
    assert r.leadership is not None
    if timer is Timer.MARKS:
        r.leadership.marks_due_s = NOW_S
        return
    if timer is Timer.DISK:
        for write in r.log.writes:
            write.handed_s = -LATER_S
        return
    if timer is Timer.TRANSFER:
        assert r.changes is not None
        for sending in r.changes.newcomers.transfers.values():
            sending.sent_s = -LATER_S
        return
    for peer in r.leadership.peers.values():
        if timer is Timer.SILENCE:
            peer.heard_s = peer.sending_s = -LATER_S
        else:
            peer.asked_s = -LATER_S
        if timer is Timer.PROBE and peer.in_flight:
            peer.waiting_since_s = -LATER_S
            peer.last_id = 0  # else the peer would be left alone as a server with a slow disk


def fall_silent(r: Replica, peer: int) -> None:
    """Make a leader miss ``peer``, as after two heartbeat intervals; with the next step it asks who is there."""
    assert r.leadership is not None and r.changes is not None
    silent = r.leadership.peers[peer]
    silent.heard_s = silent.sending_s = -LATER_S
    r.changes.newcomers.ask_again_s = NOW_S


def stop_clocks(host: Host) -> None:
    """Put all deadlines out of reach and make remembered times fresh or none; to be called after steps and boots."""
    r = host.replica
    assert r is not None
    r.out.begin()  # the step's output has been taken
    r.now_s = NOW_S
    if r.heard_s is not None:
        r.heard_s = NOW_S
    election = r.election
    election.timer_s = NEVER_S
    if election.round is not None:
        election.round.ends_s = NEVER_S
    if election.cycle is not None:
        election.cycle.ends_s = election.cycle.ask_again_s = NEVER_S
    r.first_start.ask_again_s = NEVER_S
    r.disks.slow_since_s = None
    for write in r.log.writes:
        write.handed_s = NOW_S
    leadership = r.leadership
    if leadership is not None:
        leadership.began_s = leadership.quiet_until_s = leadership.heartbeat_due_s = NOW_S
        if leadership.marks_due_s != NEVER_S:
            leadership.marks_due_s = LATER_S
        for peer in leadership.peers.values():
            peer.asked_s = peer.waiting_since_s = NOW_S
            if peer.heard_s > -LATER_S:
                peer.heard_s = NOW_S
            peer.sending_s = peer.heard_s
    if r.changes is not None:
        for sending in r.changes.newcomers.transfers.values():
            sending.asked_s = sending.sent_s = NOW_S
    if r.out.persisted:
        _count_writes_from(host, r.out.persisted)


def _count_writes_from(host: Host, zero: int) -> None:
    r: Any = host.replica
    r.out.number -= zero
    r.out.persisted = r.watch.persisted = 0
    r.out.hard_number = max(0, r.out.hard_number - zero)
    if r.first_start.write_number:
        r.first_start.write_number -= zero
    for write in r.log.writes:
        write.number -= zero
    host.writes = deque(write._replace(number=write.number - zero) for write in host.writes)
    host.waiting = deque((number - zero, envelopes) for number, envelopes in host.waiting)


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
    "Members": ("me", "latest", "latest_id", "i_vote", "may_stand", "_other_voters", "_other_replicas"),  # derived
    "Replication": (
        "began_s", "quiet_until_s", "heartbeat_due_s", "_own_moved_s", "_own_stable_id",
        "voters", "_replicas", "_sent",  # derived, or a cache
    ),
    "Reads": ("waiting",),  # derived
    "Changes": ("idle", "addresses_changed", "_next_address_s", "_told_lost"),  # nobody moves; what events tell
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
