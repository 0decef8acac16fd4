"""Everything that can happen to a replica. `Replica.step` takes a group of these with one time.

``origin`` is the shell's own token for whoever asked (a connection, a request): the core never looks
inside, it only hands it back in the reply.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .entries import Entry
from .members import Identity
from .messages import Envelope, Room

if TYPE_CHECKING:
    from .disk import Image

Origin: TypeAlias = Hashable


class Received(NamedTuple):
    """A message from another server. ``at_s``: when it came, on the clock of `Replica.step`; it may have waited since
    (see `dispatch.can_wait`). By default it comes with the step itself."""

    envelope: Envelope
    at_s: float = math.inf


class Connected(NamedTuple):
    """Our connection to a peer is up and open for everything: what was in flight before is lost (R17)."""

    peer: int


class Disconnected(NamedTuple):
    """Our connection to a peer went down."""

    peer: int


class PeerAddress(NamedTuple):
    """The address that a peer's hello gave (R27: addresses are hints)."""

    peer: int
    incarnation: bytes
    address: str


class Persisted(NamedTuple):
    """Every write up to ``number`` is on disk, fsynced."""

    number: int


class Loaded(NamedTuple):
    """Entries read from disk for a peer, as asked for by a `Load`; ``generation`` echoes it."""

    peer: int
    first_id: int
    generation: int
    entries: list[Entry]


class AppendRun(NamedTuple):
    """Appends of one client with serials ``serial``, ``serial + 1``, … (R21).

    ``bodies`` are (count, body) pairs, an entry each, as `Entry` defines them. ``sparse``: the client has
    nothing else in flight, so the (single) serial may skip. ``by_hand``: a retry across processes.
    """

    origin: Origin
    client: str
    epoch: int
    serial: int
    bodies: list[tuple[int, bytes]]
    sparse: bool = False
    by_hand: bool = False


class OpenSession(NamedTuple):
    """R22: open ``name``, replacing epoch ``replaces`` (0: none); ``nonce``: 16 bytes, fresh for each epoch named."""

    origin: Origin
    name: str
    replaces: int
    nonce: bytes


class DropSession(NamedTuple):
    """R22: an operator drops ``name``; ``epoch`` as it stands (0: whatever it is now)."""

    origin: Origin
    name: str
    epoch: int


class Trim(NamedTuple):
    """R20: no payload below ``before_lsn`` is to be served any more. ``force``: cursors below it are dropped."""

    origin: Origin
    before_lsn: int
    force: bool = False


class Clean(NamedTuple):
    """The shell's retention lets everything up to entry ``upto_id`` go; ``time_ms`` is that entry's, ``next_lsn`` the
    LSN after it. Done with the next write, as far as R19 allows; forgotten otherwise."""

    upto_id: int
    time_ms: int
    next_lsn: int


class Space(NamedTuple):
    """What our own disk has room for; ``free_bytes`` for people to read."""

    room: Room
    free_bytes: int


class DamageFound(NamedTuple):
    """R31: the entries on our disk that are not what was written, all known ones, ascending; () once all is sound."""

    ids: tuple[int, ...]


class CopyLoaded(NamedTuple):
    """What a `LoadCopy` asked for; sound."""

    peer: Identity
    entry: Entry


class MemberStep(IntEnum):
    """What an operator wants of the member list."""

    ADD = 1
    REMOVE = 2
    REPLACE = 3


class ChangeMember(NamedTuple):
    """R27: change member ``id``; ``address`` and ``priority`` of a new one (REMOVE: "" and 0)."""

    origin: Origin
    step: MemberStep
    id: int
    address: str
    priority: int


class Transfer(NamedTuple):
    """R28: ``target`` shall lead."""

    origin: Origin
    target: int


class ImageLoaded(NamedTuple):
    """What a `LoadImage` asked for."""

    peer: int
    image: Image


class ListSessions(NamedTuple):
    """Asks for the session table; answered as `Outcome` is."""

    origin: Origin


class ReadIndex(NamedTuple):
    """R25: asks up to where a read that begins now must see."""

    origin: Origin


class Outcome(NamedTuple):
    """Asks what became of the append (``client``, ``serial``, ``epoch``; 0: of any epoch): judged once a read round has
    confirmed us (R21, R25)."""

    origin: Origin
    client: str
    serial: int
    epoch: int = 0


class ShowSettings(NamedTuple):
    """Asks for the replicated settings (rules.md#settings); answered as `Outcome` is."""

    origin: Origin


class ChangeSettings(NamedTuple):
    """``changes``: (name, the value that the asker believes it has, the value wanted). All of them or none."""

    origin: Origin
    changes: tuple[tuple[str, int, int], ...]


class SetCursor(NamedTuple):
    """A reader needs payload ``lsn`` and all after it. Answered as `Outcome` is."""

    origin: Origin
    name: str
    lsn: int


class DropCursor(NamedTuple):
    """Forget a cursor. ``lsn``: only if it stands there (0: wherever). ``why``: for the event; "operator" or "lag"."""

    origin: Origin
    name: str
    lsn: int = 0
    why: str = "operator"


class ListCursors(NamedTuple):
    """Asks for all cursors; answered as `Outcome` is."""

    origin: Origin


class Initialise(NamedTuple):
    """R29: the operator's command to found the cluster."""

    origin: Origin


class Stop(NamedTuple):
    """R28: hand leadership over if it is held, then say `Ready.may_stop`."""


class Tick(NamedTuple):
    """Time has passed: the deadline of the last `Ready` came, or nothing else did."""


Input: TypeAlias = (
    Received | Connected | Disconnected | PeerAddress | Persisted | Loaded | AppendRun | OpenSession
    | DropSession | Trim | Clean | Space | DamageFound | CopyLoaded | ChangeMember | Transfer | ImageLoaded
    | ListSessions | ReadIndex | Outcome | ShowSettings | ChangeSettings | SetCursor | DropCursor | ListCursors
    | Initialise | Stop | Tick
)
