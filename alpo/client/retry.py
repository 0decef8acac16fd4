"""The time in which a log lives, and what is tried in it again and again.

Laws:

* Code that waits on a `Clock`, and draws its random numbers from there, also works in a simulated cluster, where time
  is virtual and every run can be repeated (`alpo.testing`).
* `retried`, of requests to servers: the pauses between tries begin with none and are twice as long each time, up to a
  bound (`Pauses`). A try has a time of its own, twice as long each time: a server that is slow is not asked for ever
  without an answer.
* `patiently`, of calls that have waited already: the pauses are all the same, and a call keeps the time that it has.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from random import Random
from typing import TypeVar

import anyio

from alpo.errors import AlpoError

from .reasons import PASSING

T = TypeVar("T")
#: The first pause that is longer than 0, and the longest, in seconds.
PAUSE_FIRST_S, PAUSE_MAX_S = 0.01, 0.25
#: Seconds that a server may take over its first try.
ATTEMPT_S = 1.0
#: Seconds between two tries of a library that is built on a log: each is a call that has waited already.
AGAIN_S = 0.1


class Clock:
    """The clock of a log, and its source of random numbers. Its methods are called in the log's own event loop."""

    def __init__(self, rng: Random) -> None:
        #: The source of every random pause, id and nonce.
        self.rng = rng
        #: Tells the loop's time: quicker where somebody has looked which loop it is.
        self.loop_s: Callable[[], float] = anyio.current_time

    def now_s(self) -> float:
        """The time in seconds; only differences mean something."""
        return self.loop_s()

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        await anyio.sleep(seconds)

    def move_on_after(self, seconds: float, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        """A scope, for a ``with``, that is cancelled after so many seconds. ``shield``: not if a scope around it is."""
        return anyio.move_on_after(seconds, shield=shield)


class Pauses:
    """The pauses between tries. ``next_s``: seconds of the next one; set to 0 after any progress."""

    def __init__(self, first_s: float = 0.0) -> None:
        self.next_s = first_s

    def take_s(self, most_s: float | None = None) -> float:
        """The seconds to wait now; the next time it is twice as long, and ``most_s`` at most."""
        now_s = self.next_s
        self.next_s = min(max(2 * now_s, PAUSE_FIRST_S), PAUSE_MAX_S if most_s is None else most_s)
        return now_s


class Again(Exception):
    """The end of a try that settled nothing, so that there is another one. ``reason``: the error to raise if none
    succeeds in time; None where that is known elsewhere."""

    def __init__(self, reason: AlpoError | None = None) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def retried(attempt: Callable[[float], Awaitable[T]], timeout_s: float, attempt_s: float = ATTEMPT_S) -> T:
    """The result of ``attempt(seconds)``, which is called until it does not raise `Again`.

    ``attempt_s``: the seconds for the first try, doubled with each. Raises TimeoutError once ``timeout_s`` is over, and
    what ``attempt`` raises.
    """
    pauses = Pauses()
    with anyio.fail_after(timeout_s):
        while True:
            try:
                return await attempt(attempt_s)
            except Again:
                attempt_s *= 2
            await anyio.sleep(pauses.take_s())


async def patiently(
    clock: Clock, step: Callable[[], Awaitable[T]], left_s: Callable[[], float] = lambda: math.inf,
    passing: tuple[type[AlpoError], ...] = PASSING, lasting: tuple[type[AlpoError], ...] = (),
) -> T:
    """The result of ``step()``, calls of a log on this clock, tried until the cluster answers.

    Raises what the last one raised once ``left_s()`` seconds are none; at once what is not ``passing``, or ``lasting``:
    errors that no other try betters.
    """
    while True:
        try:
            return await step()
        except lasting:
            raise
        except passing:
            if left_s() <= 0:
                raise
        await clock.sleep(max(0.0, min(AGAIN_S, left_s())))
