"""What can be done on a `stage`: a schedule is a list of these, whether drawn from a seed or read from a scenario.

``at_us`` is virtual time in microseconds since the beginning, the same for all; every server's own clocks derive
from it (`Clock`). Inputs wait at their server until its next `Step`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from alpo.core.inputs import Input
from alpo.core.messages import Envelope


class Boot(NamedTuple):
    """The server's process starts, on whatever its disk holds."""

    at_us: int
    id: int


class Crash(NamedTuple):
    """The process ends at once. Of the writes not yet confirmed the first ``kept`` are on disk all the same."""

    at_us: int
    id: int
    kept: int


class Wipe(NamedTuple):
    """A server that is down gets an empty disk: another incarnation. The old one is laid aside."""

    at_us: int
    id: int


class PutBack(NamedTuple):
    """A server that is down gets the disk again that it had before its last `Wipe`; its present one is laid aside."""

    at_us: int
    id: int


class Join(NamedTuple):
    """From its next boot on the server waits to be added to a cluster (R27): it never founds one."""

    at_us: int
    id: int


class Move(NamedTuple):
    """A server that is down will start under another address (R27)."""

    at_us: int
    id: int


class Configure(NamedTuple):
    """From its next boot on the server is given this list, (id, priority) each; () is the right one (R29)."""

    at_us: int
    id: int
    members: tuple[tuple[int, int], ...]


class Deliver(NamedTuple):
    """A message arrives; ``again``: a copy of it stays on its way."""

    at_us: int
    envelope: Envelope
    again: bool


class Persist(NamedTuple):
    """The first ``count`` writes under way are on disk, fsynced, and what waited for them leaves."""

    at_us: int
    id: int
    count: int  # type: ignore[assignment]


class Serve(NamedTuple):
    """The oldest read for a peer, of entries or of a base, is answered."""

    at_us: int
    id: int


class Link(NamedTuple):
    """The server's connection to ``peer`` comes up, or goes down."""

    at_us: int
    id: int
    peer: int
    up: bool


class Ask(NamedTuple):
    """Somebody outside asks the server for something: a client's request, an operator's."""

    at_us: int
    id: int
    request: Input


class Step(NamedTuple):
    """The server takes all inputs that wait for it, with a tick if its deadline has come."""

    at_us: int
    id: int


class Clock(NamedTuple):
    """The server's monotonic clock runs at ``rate`` from now on; its wall clock jumps by ``jump_ms``."""

    at_us: int
    id: int
    rate: float
    jump_ms: int


Action: TypeAlias = (
    Boot | Crash | Wipe | PutBack | Join | Move | Configure | Deliver | Persist | Serve | Link | Ask | Step | Clock
)
