"""The actions of a stage; a schedule, drawn from a seed or read from a scenario, is a list of actions.

``at_us`` is virtual time, microseconds since the beginning, from which every server's clocks derive (`Clock`); ``id``
is the server that an action is about. Inputs wait at their server until its next `Step`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from alpo.core.messages import Envelope
from alpo.core.ready import Input


class Boot(NamedTuple):
    """Start of the server's process, on whatever its disk holds."""

    at_us: int
    id: int


class Crash(NamedTuple):
    """End of the process, at once. The first ``kept`` of the writes under way are on disk all the same."""

    at_us: int
    id: int
    kept: int


class Wipe(NamedTuple):
    """Replacement of a server's disk, while it is down, by an empty one, of another incarnation. The old is kept."""

    at_us: int
    id: int


class PutBack(NamedTuple):
    """Return of the disk that a server, which is down, had before its last `Wipe`; the present one is laid aside."""

    at_us: int
    id: int


class Join(NamedTuple):
    """Change of the server's start: from its next boot on it waits to be added to a cluster, and founds none (R27)."""

    at_us: int
    id: int


class Move(NamedTuple):
    """Change of the address under which a server that is down will start (R27)."""

    at_us: int
    id: int


class Configure(NamedTuple):
    """Change of the list of founders, of (id, priority), that the server is given from its next boot on (R29). (): the
    right list."""

    at_us: int
    id: int
    members: tuple[tuple[int, int], ...]


class Deliver(NamedTuple):
    """Arrival of a message. ``again``: another copy of the message stays on its way."""

    at_us: int
    envelope: Envelope
    again: bool


class Persist(NamedTuple):
    """End of the first ``count`` writes under way: they are on disk, fsynced; messages that waited for them leave."""

    at_us: int
    id: int
    count: int  # type: ignore[assignment]


class Serve(NamedTuple):
    """Answer to the server's oldest read from its disk, of entries or of a base."""

    at_us: int
    id: int


class Link(NamedTuple):
    """Change of the server's connection to ``peer``: up or down."""

    at_us: int
    id: int
    peer: int
    up: bool


class Ask(NamedTuple):
    """Request of a client or an operator to the server, or news about the server's own disk."""

    at_us: int
    id: int
    request: Input


class Step(NamedTuple):
    """Step of the server: it takes all inputs that wait for it, and a tick if its deadline has come."""

    at_us: int
    id: int


class Clock(NamedTuple):
    """Change of the server's clocks: the monotonic one runs at ``rate`` from now on, the other jumps by ``jump_ms``."""

    at_us: int
    id: int
    rate: float
    jump_ms: int


Action: TypeAlias = (
    Boot | Crash | Wipe | PutBack | Join | Move | Configure | Deliver | Persist | Serve | Link | Ask | Step | Clock
)
