"""A replica's contract with whatever drives it (the shell): the events that it passes to `Replica.step`, the output
of a step, `Ready`, and `carry_out`, which does it in the right order. Requests of clients are in `requests`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from .disk import Load, LoadCopy, LoadSnapshot, Snapshot, Write
from .entries import Entry
from .members import Identity
from .messages import Envelope, Room
from .requests import AppendRun, FoundLog, LogRequest, ReadIndex, Reply, Request


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
    """The space on our own disk. ``free_bytes`` only goes into texts for people. ``full_log``: why this log takes no
    appends here, though the disk has space; "": it takes them."""

    room: Room
    free_bytes: int
    full_log: str = ""


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


class Begin(NamedTuple):
    """The first member list and settings, plain, with which a log besides the first was founded (rules.md#logs): a
    server whose store is in that list begins with them, once."""

    first_list: list[list[Any]]
    settings: dict[str, int]


class Tick(NamedTuple):
    """No event, only time that has passed: the deadline of the last `Ready` came."""


Input: TypeAlias = (
    Received | Connected | Disconnected | Moving | PeerGone | PeerAddress | Persisted | Loaded | Clean | Space
    | DamageFound | CopyLoaded | SnapshotLoaded | AppendRun | ReadIndex | Request | AcceptClocks | Slept | Stop | Tick
    | Begin | FoundLog | LogRequest
)


class Event(NamedTuple):
    """An event for the log; the shell adds time and server."""

    name: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Ready:
    """The output of one step, for the shell to do; `carry_out` puts it in order."""

    #: Messages that may leave at once, before anything is written.
    send: list[Envelope] = field(default_factory=list)
    #: The write for the writer, which takes writes in the order of their numbers and reports `Persisted`; None: none.
    write: Write | None = None
    #: Messages that may leave only once ``write``, and every write before it, is on disk (R14); empty without a write.
    send_after_write: list[Envelope] = field(default_factory=list)
    #: Answers to clients. They may leave at once: none is made before what it rests on is guaranteed (R24).
    replies: list[Reply] = field(default_factory=list)
    #: Entries to read from the disk; step with `Loaded`.
    loads: list[Load] = field(default_factory=list)
    #: Snapshots to read from the disk, for newcomers; step with `SnapshotLoaded`.
    snapshots: list[LoadSnapshot] = field(default_factory=list)
    #: Entries to read from the disk, for members whose copies are damaged; step with `CopyLoaded`.
    copies: list[LoadCopy] = field(default_factory=list)
    #: Lines for the log.
    events: list[Event] = field(default_factory=list)
    #: Monotonic seconds by which `step` wants to be called again, with `Tick` if nothing else.
    deadline_s: float = 0.0
    #: True once a server that was told to stop may leave: it has handed leadership over, or did not lead (R28).
    may_stop: bool = False
    #: The invariant that broke, in words: nothing of this Ready may be done, and the server stops. None: all is well.
    alarm: str | None = None
    #: True with an alarm that says that our disk has forgotten entries: the store is of no more use (R31).
    lost: bool = False


class Alarm(Exception):
    """The server must stop rather than carry on; nothing of the Ready was done."""


class StoreLost(Alarm):
    """The disk has forgotten what it acknowledged: the store is of no more use, and the server begins anew (R31)."""


class OutOfOrder(Alarm):
    """Messages were to wait for the step's write, and there is none: they would never leave."""


class Shell(Protocol):
    """The driver of a replica, as `carry_out` calls it: in this order, each method only if there is something to do."""

    def send(self, envelopes: list[Envelope], /) -> None:
        """Send these messages now."""

    def write(self, write: Write, then_send: list[Envelope], /) -> None:
        """Hand ``write`` to the writer. Once it and every write before it is on disk, fsynced, send ``then_send``
        (R14), and step the replica with `Persisted(write.number)`."""

    def reply(self, replies: list[Reply], /) -> None:
        """Give these answers to their origins now (R24)."""

    def load(self, wanted: Load | LoadSnapshot | LoadCopy, /) -> None:
        """Read from the disk what ``wanted`` says; then step the replica with `Loaded`, `SnapshotLoaded` or
        `CopyLoaded`."""

    def event(self, event: Event, /) -> None:
        """Log this event."""


def carry_out(ready: Ready, shell: Shell) -> None:
    """Do what a step asks, in the order that R14 needs. The shell itself looks at `Ready.deadline_s` and
    `Ready.may_stop`. Raises `Alarm`, `StoreLost` or `OutOfOrder` before anything is done."""
    if ready.alarm is not None:
        raise (StoreLost if ready.lost else Alarm)(ready.alarm)
    if ready.send_after_write and ready.write is None:
        raise OutOfOrder("it wants to send after a write that it does not make")
    if ready.send:
        shell.send(ready.send)
    if ready.write is not None:
        shell.write(ready.write, ready.send_after_write)
    if ready.replies:
        shell.reply(ready.replies)
    for load in ready.loads:
        shell.load(load)
    for snapshot in ready.snapshots:
        shell.load(snapshot)
    for copy in ready.copies:
        shell.load(copy)
    for event in ready.events:
        shell.event(event)
