"""Everything that can happen to a replica. `Replica.step` takes a group of these with one time.

``origin`` is the shell's own token for whoever asked (a connection, a request): the core never looks
inside, it only hands it back in the reply.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from .entries import Entry
from .messages import Envelope

Origin: TypeAlias = Hashable


class Received(NamedTuple):
    """A message from another server."""

    envelope: Envelope


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


class ListSessions(NamedTuple):
    """Asks for the session table, once all that it rests on is guaranteed (leader only)."""

    origin: Origin


class ReadIndex(NamedTuple):
    """R25: asks up to where a read that begins now must see."""

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
    | DropSession | ListSessions | ReadIndex | Initialise | Stop | Tick
)
