"""Helpers inside an event loop: its clock and events, tasks, wake-ups; and the effects of a fork on them.

Laws:

* However the tasks of a `Living` end, ``ended`` has been called by then, so that nobody waits for what will not come.
* No task of a user's holds anything open: what is entered in one task may be left in another, or never.
* In a forked child nothing is sent, no event loop is touched, and no lock is waited for: its holder is not there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from threading import get_ident
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger("alpo")


class Event(Protocol):
    """An event of trio's or asyncio's, as far as they agree."""

    def set(self) -> None: ...

    async def wait(self) -> object: ...


class Loop(NamedTuple):
    """The running loop's tools.

    ``runs``: False while another loop runs in its thread. ``clock``: as `anyio.current_time`. ``spawn``: starts a task
    that ends with the loop, if not before; what it returns must be kept for as long as the task is to live.
    ``readable``: waits until a socket is, or raises ``closed_error`` if it is closed meanwhile.
    """

    runs: Callable[[], bool]
    clock: Callable[[], float]
    new_event: Callable[[], Event]
    spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
    readable: Callable[[Any], Awaitable[None]] = anyio.wait_readable
    closed_error: type[Exception] = anyio.ClosedResourceError


#: The maker of events for a session outside of any loop.
NEW_EVENT: Callable[[], Event] = asyncio.Event


def running_loop() -> Loop:
    """The tools of the loop that runs: Trio's also where Trio is a guest in an asyncio loop."""
    run = getattr(trio := sys.modules.get("trio"), "lowlevel", None)  # another thread may be about to import it
    if trio is not None and run is not None and run.in_trio_task():
        clock, spawn = run.current_clock().current_time, run.spawn_system_task
        return Loop(_always, clock, trio.Event, spawn, run.wait_readable, trio.ClosedResourceError)
    loop = asyncio.get_running_loop()
    return Loop(loop.is_running, loop.time, asyncio.Event, lambda function: loop.create_task(function()))


def _always() -> bool:
    """True: no other run of Trio begins in a thread before one has ended."""
    return True


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


_WITH_LOOP = "its event loop: make another in the one that runs now, and close it there"


class Living:
    """Tasks (``jobs``) of an object, which run in none of its users' tasks: `start` and `end` may be called by any
    tasks of one event loop, which is the object's from then on. ``kind``: the name of the object's class; ``ended``:
    called once the tasks have ended, with the reason in words if no call of `end` ended them.
    """

    def __init__(
        self, kind: str, *jobs: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[str], object]
    ) -> None:
        self._kind = kind
        self._jobs = list(jobs)
        self._tell_end = ended
        self._tasks: TaskGroup | None = None
        #: The loop of the tasks, while they live, and the thread that it runs in.
        self._home: Loop | None = None
        self._thread = 0
        #: Set when the tasks have ended; None before they are started.
        self._ended: Event | None = None
        #: Result of `Loop.spawn`, which keeps the task alive.
        self._alone: object = None
        self._closing = False
        self._broken: Exception | None = None

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._ended is not None

    def start(self) -> Loop:
        """Start the tasks on the running loop, which is returned."""
        loop = self._home = running_loop()
        self._thread = get_ident()
        self._ended = loop.new_event()
        self._alone = loop.spawn(self._live)
        return loop

    def start_soon(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start one more task, which ends with the others at the latest; once they are ending, do nothing."""
        if self._tasks is None:
            self._jobs.append(job)
        elif not self._closing:
            self._tasks.start_soon(job)

    def need_home(self) -> None:
        """Raise RuntimeError unless the running loop is that of the tasks, or they were not started, or have ended."""
        if self._home is not None and (get_ident() != self._thread or not self._home.runs()):
            kind = self._kind
            raise RuntimeError(
                f"this {kind} belongs to the event loop in which it was entered or first used: make another {kind} for"
                " this one, or send the work to its own loop"
            )

    async def _live(self) -> None:
        """Run the jobs, to the end."""
        assert self._ended is not None
        try:
            if not self._closing:
                async with anyio.create_task_group() as self._tasks:
                    for job in self._jobs:
                        self._tasks.start_soon(job)
        except Exception as error:  # a mistake of ours, raised by `end`
            self._broken = error
            logger.exception("a task of a %s has failed", self._kind)
        finally:
            # The end was reported already, unless a task failed or the loop ends.
            kind, failed = self._kind, self._broken is not None
            self._tell_end(f"this {kind} ended with {'one of its tasks, which failed' if failed else _WITH_LOOP}")
            self._ended.set()
            self._home, self._thread = None, 0

    async def done(self) -> None:
        """Wait until all tasks have ended."""
        if self._ended is not None:
            await self._ended.wait()

    async def end(self) -> None:
        """Stop working; returns when all tasks have ended. Raises what one of them failed with."""
        self._closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.done()
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
