"""Helpers inside an event loop: its clock and events, tasks, wake-ups; and the effects of a fork on them.

Laws:

* However its tasks end, `Living.close` has been called by then, so that nobody waits for what will not come.
* In a forked child nothing is sent, no event loop is touched, and no lock is waited for: its holder is not there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from alpo.errors import Closed


class Event(Protocol):
    """An event of trio's or asyncio's, as far as they agree."""

    def set(self) -> None: ...

    async def wait(self) -> object: ...


class Loop(NamedTuple):
    """The running loop's tools.

    ``clock``: as `anyio.current_time`. ``spawn``: starts a task that ends with the loop, if not before; what it returns
    must be kept for as long as the task is to live.
    """

    clock: Callable[[], float]
    new_event: Callable[[], Event]
    spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


#: The maker of events for a session outside of any loop.
NEW_EVENT: Callable[[], Event] = asyncio.Event


def running_loop() -> Loop:
    """The tools of the loop that runs: Trio's also where Trio is a guest in an asyncio loop."""
    trio = sys.modules.get("trio")  # if a Trio task runs, it is imported
    if trio is not None and trio.lowlevel.in_trio_task():
        return Loop(trio.lowlevel.current_clock().current_time, trio.Event, trio.lowlevel.spawn_system_task)
    loop = asyncio.get_running_loop()
    return Loop(loop.time, asyncio.Event, lambda function: loop.create_task(function()))


class Bell:
    """A way to wake one task, free of cost while nobody waits. A ring while nobody waits is kept, once."""

    __slots__ = ("_event", "_rung", "parked")

    def __init__(self) -> None:
        #: True while the task waits; looked at before ringing on hot paths.
        self.parked = False
        self._rung = False
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        """Wake the task that waits, or the next that will."""
        self._rung = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait for the next ring; return at once after one that nobody waited for."""
        if not self._rung:
            self._event = anyio.Event()
            self.parked = True
            try:
                await self._event.wait()
            finally:
                self.parked = False
                self._event = None
        self._rung = False


class News:
    """A way to wake all tasks that wait, free of cost while nobody waits. Each looks whether the news concerns it."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    @property
    def awaited(self) -> bool:
        """True if a task waits."""
        return self._event is not None

    def tell(self) -> None:
        """Wake all tasks that wait."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next `tell`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


FORKED_WHY = "this Log belongs to the process that this one was forked from: connect anew after the fork"


class Inherited(Protocol):
    """An object that does not survive a fork."""

    def forked(self) -> None:
        """End it in the child; called before anything else runs there."""


_WATCHED: WeakSet[Inherited] = WeakSet()


def watch_forks(what: Inherited) -> None:
    """Have ``what.forked()`` called in every forked child, as long as the object lives."""
    _WATCHED.add(what)


def _in_child() -> None:
    for what in list(_WATCHED):
        what.forked()


os.register_at_fork(after_in_child=_in_child)


class Living:
    """Tasks (``jobs``) that run until `end`; `start` starts them, or else the first look at ``_clock``."""

    def __init__(self, *jobs: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._jobs = jobs
        self._tasks: TaskGroup | None = None
        self._clock: Callable[[], float] = self._begin_alone
        self._new_event: Callable[[], Event]
        #: Set when the tasks have ended; None before they are started.
        self._ended: Event | None = None
        #: Result of `Loop.spawn`, which keeps the task alive.
        self._alone: object = None
        self._closing = False

    @property
    def over(self) -> Closed | None:
        """The error that tells why the tasks cannot be started any more; None if they can."""
        raise NotImplementedError

    def close(self) -> Exception | None:
        """Tell all tasks that wait that it is over; returns the first error that nobody was told."""
        raise NotImplementedError

    def _require_usable(self) -> None:
        """Raises `Closed` if it is over."""
        if self.over is not None:
            raise copy(self.over)

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._ended is not None

    def start(self, tasks: TaskGroup | None = None) -> None:
        """Start the tasks: in a task group, or on the running loop alone. Raises `Closed`."""
        self._require_usable()
        loop = running_loop()
        self._clock, self._new_event = loop.clock, loop.new_event
        self._ended = loop.new_event()
        if tasks is None:
            self._alone = loop.spawn(self._live)
        else:
            tasks.start_soon(self._live)

    def _begin_alone(self) -> float:
        """Start the tasks and return the time. It stands for the clock until then: every append begins with a look at
        that."""
        self.start()
        return self._clock()

    async def _live(self) -> None:
        """Run the jobs, to the end."""
        assert self._ended is not None
        try:
            if not self._closing:
                async with anyio.create_task_group() as self._tasks:
                    for job in self._jobs:
                        self._tasks.start_soon(job)
        finally:
            self.close()  # was called already, unless a task failed or the loop ends
            self._ended.set()

    async def end(self) -> None:
        """Stop working, after `close`; returns when all tasks have ended."""
        self._closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        if self._ended is not None:
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
