"""Between a client and a server: what TCP gives, on virtual time.

Laws:

* Bytes arrive in the order in which they were sent, after a delay, or the connection ends; nothing is lost in between.
* Over a cut nothing gets through, in silence; what was sent meanwhile arrives after the heal, if there still is a
  connection.
* A process that ends takes its connections with it, and the other side is told, unless a cut hides it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from .world import ClusterWorld

DELAY_US = (100, 1000)


class Pipe:
    """One direction of a wire: ``arrive(data)`` for what was sent, b"" for the end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last_us = 0
        self._queue: deque[bytes] = deque()
        self._due = 0  # arrivals scheduled; fewer than what is queued after a cut
        self.arrive: Callable[[bytes], None] = lambda data: None

    def send(self, data: bytes) -> None:
        """``data`` may be b"": nothing follows."""
        self._queue.append(data)
        if not self._wire.cut:
            self.mended()

    def mended(self) -> None:
        """No cut any more: what waited is on its way."""
        world, rng = self._wire.world, self._wire.rng
        while self._due < len(self._queue) and not self._wire.cut:
            self._due += 1
            self._last_us = max(self._last_us, world.now_us + rng.randint(*DELAY_US))
            world.at(self._last_us, self._deliver)

    def _deliver(self) -> None:
        self._due -= 1
        if not self._wire.cut and not self._wire.over:
            self.arrive(self._queue.popleft())


class Wire:
    """One connection of client ``client`` to server ``server``, in the engine's thread."""

    def __init__(self, world: ClusterWorld, client: str, server: int, party: int, rng: random.Random) -> None:
        self.world = world
        self.client = client
        self.server = server
        self.party = party
        self.rng = rng
        #: No end of it is there any more, or it was reset.
        self.over = False
        self.to_server, self.to_client = Pipe(self), Pipe(self)

    @property
    def cut(self) -> bool:
        return self.world.client_cut(self.client, self.server)

    def mended(self) -> None:
        self.to_server.mended()
        self.to_client.mended()
