"""Virtual time under an event loop of the test's.

Law: all tasks of the test get their turns before virtual time goes on, and again at least every virtual second: what
waits for something else than the cluster is not starved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from alpo_sim.options import SECOND

from .engine import Engine, EngineFuture

T = TypeVar("T")
#: Turns that everybody else gets before virtual time goes on: what one task hands to another is taken up by then.
_TURNS = 12
_STRIDE_US = SECOND


class Turns:
    """Who of a test's tasks lets virtual time go on, on behalf of all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driving = False
        self._awaited: list[Callable[[], bool]] = []
        self._parked: list[anyio.Event] = []

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for ``ready()``; virtual time goes on meanwhile. A checkpoint in any case."""
        await anyio.lowlevel.checkpoint()
        self._awaited.append(ready)
        world, patience_us = self._engine.world, self._engine.patience_us
        began_us = world.now_us
        try:
            while not ready():
                if world.now_us - began_us >= patience_us:
                    raise self._engine.stuck(patience_us)
                if self._driving:
                    event = anyio.Event()
                    self._parked.append(event)
                    await event.wait()
                else:
                    await self._drive(ready)
        finally:
            self._awaited.remove(ready)

    async def _drive(self, ready: Callable[[], bool]) -> None:
        self._driving = True
        try:
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()
            if not ready():
                world = self._engine.world
                until_us = world.now_us + _STRIDE_US
                self._engine.drive(lambda: world.now_us >= until_us or any(each() for each in self._awaited))
        finally:
            self._driving = False
            parked, self._parked = self._parked, []
            for event in parked:
                event.set()

    async def result(self, future: EngineFuture[T]) -> T:
        """What became of ``future``; being cancelled cancels it."""
        try:
            await self.until(future.done)
        except BaseException:
            if not future.done():
                future.undo()
            raise
        return future.result()
