"""`Clock`: the time in which a log lives, for libraries built on one.

Law: whoever waits on this clock, and draws its random numbers from here, also works in a simulated cluster, where time
is virtual and every run can be repeated (`alpo.testing`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random

import anyio


class Clock:
    """The clock of a log, and its source of random numbers. Its methods are called in the log's own event loop."""

    def __init__(self, rng: Random) -> None:
        #: The source of every random pause, id and nonce.
        self.rng = rng

    def now_s(self) -> float:
        """The time in seconds; only differences mean something."""
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        await anyio.sleep(seconds)

    def move_on_after(self, seconds: float, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        """A scope, for a ``with``, that is cancelled after so many seconds. ``shield``: not if a scope around it is."""
        return anyio.move_on_after(seconds, shield=shield)
