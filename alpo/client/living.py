"""Tasks that live as long as they are needed: in a task group of the user's, or on their own.

Law: however they end, `Living.close` has been called by then, so that nobody waits for what will not come.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any

import anyio
from anyio.abc import TaskGroup

from alpo.errors import Closed

from .loops import Event, running_loop


class Living:
    """``jobs`` run from `start`, or from the first look at ``_clock``, until `end`."""

    def __init__(self, *jobs: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._jobs = jobs
        self._tasks: TaskGroup | None = None
        self._clock: Callable[[], float] = self._begin_alone
        self._new_event: Callable[[], Event]
        #: Set when the tasks have ended; None before they are started.
        self._ended: Event | None = None
        #: What keeps a task of its own alive.
        self._alone: object = None
        self._closing = False

    @property
    def over(self) -> Closed | None:
        """Why it does not begin any more."""
        raise NotImplementedError

    def close(self) -> Exception | None:
        """Tell everybody who waits that it is over."""
        raise NotImplementedError

    def _require_usable(self) -> None:
        """Raises `Closed`."""
        if self.over is not None:
            raise copy(self.over)

    @property
    def started(self) -> bool:
        return self._ended is not None

    def start(self, tasks: TaskGroup | None = None) -> None:
        """Begin to work: in a task group, or in a task of the running loop's own. Raises `Closed`."""
        self._require_usable()
        loop = running_loop()
        self._clock, self._new_event = loop.clock, loop.new_event
        self._ended = loop.new_event()
        if tasks is None:
            self._alone = loop.spawn(self._live)
        else:
            tasks.start_soon(self._live)

    def _begin_alone(self) -> float:
        """The clock of one that was not started: whoever looks at it is about to append."""
        self.start()
        return self._clock()

    async def _live(self) -> None:
        assert self._ended is not None
        try:
            if not self._closing:
                async with anyio.create_task_group() as self._tasks:
                    for job in self._jobs:
                        self._tasks.start_soon(job)
        finally:
            self.close()  # done already, unless a task broke or the loop ends
            self._ended.set()

    async def end(self) -> None:
        """Stop working, after `close`; returns when all tasks have ended."""
        self._closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        if self._ended is not None:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
