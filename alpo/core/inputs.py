"""Inputs of a replica: all events that the shell passes to `Replica.step`. Requests of clients are in `requests`."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from .disk import Snapshot
from .entries import Entry
from .members import Identity
from .messages import Envelope, Room
from .requests import AppendRun, ReadIndex, Request


class Received(NamedTuple):
    """A message from another server. ``at_s``: when it came, on the clock of `Replica.step`; it may have waited since
    (see `dispatch.can_wait`). Infinity: it came with this step."""

    envelope: Envelope
    at_s: float = math.inf


class Connected(NamedTuple):
    """A new connection to a peer is up and takes messages; those in flight on an older one are lost (R17)."""

    peer: int


class Disconnected(NamedTuple):
    """The connection to a peer went down."""

    peer: int


class Moving(NamedTuple):
    """Bytes of a message that is under way came from ``who`` (``incoming``), or left for it, at ``at_s`` (as in
    `Received`): the connection lives, and what is on its way is not lost (R17)."""

    who: Identity
    incoming: bool
    at_s: float = math.inf


class PeerGone(NamedTuple):
    """The process ``peer`` is gone: all its connections have ended, all that came over them was posted before, and its
    host refuses a new one (R33)."""

    peer: Identity


class PeerAddress(NamedTuple):
    """The address that a peer's hello gave. Addresses are hints (R27)."""

    peer: int
    incarnation: bytes
    address: str


class Persisted(NamedTuple):
    """The writer's report that every write up to ``number`` is on disk, fsynced."""

    number: int


class Loaded(NamedTuple):
    """Entries read from disk for a peer, as a `Load` asked; ``generation`` is the `Load`'s."""

    peer: int
    first_id: int
    generation: int
    entries: list[Entry]


class Clean(NamedTuple):
    """Permission of the shell's retention to clean every entry up to ``upto_id``. ``time_ms``: the time of that entry;
    ``next_lsn``: the LSN after it. If R19 or a cursor forbids it now, it is forgotten; otherwise this step cleans."""

    upto_id: int
    time_ms: int
    next_lsn: int


class Space(NamedTuple):
    """The space on our own disk. ``free_bytes`` only goes into texts for people."""

    room: Room
    free_bytes: int


class DamageFound(NamedTuple):
    """The ids of all entries known to be damaged on our disk, ascending; () once all is sound (R31)."""

    ids: tuple[int, ...]


class CopyLoaded(NamedTuple):
    """The sound entry that a `LoadCopy` asked for."""

    peer: Identity
    entry: Entry


class SnapshotLoaded(NamedTuple):
    """The snapshot that a `LoadSnapshot` asked for."""

    peer: int
    snapshot: Snapshot


class Stop(NamedTuple):
    """A request to hand over leadership if it is held, then set `Ready.may_stop` (R28)."""


class AcceptClocks(NamedTuple):
    """An operator's word that the members' clocks are right, though they have leapt ahead (rules.md#entry-time)."""


class Slept(NamedTuple):
    """This host was suspended for ``asleep_s`` since the last step, and its monotonic clock stood still meanwhile."""

    asleep_s: float


class Tick(NamedTuple):
    """No event, only time that has passed: the deadline of the last `Ready` came."""


Input: TypeAlias = (
    Received | Connected | Disconnected | Moving | PeerGone | PeerAddress | Persisted | Loaded | Clean | Space
    | DamageFound | CopyLoaded | SnapshotLoaded | AppendRun | ReadIndex | Request | AcceptClocks | Slept | Stop | Tick
)
