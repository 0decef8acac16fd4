"""Ending a `follow` by an event."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

T = TypeVar("T")
#: How often an event of another thread is looked at.
LOOK_S = 0.05


class StopEvent(Protocol):
    """What ends a `follow`: an event of anyio, trio or asyncio."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class SyncStopEvent(Protocol):
    """What ends a blocking `follow`: a `threading.Event`, or anything else that can be asked."""

    def is_set(self) -> bool: ...


def need_stop(stop: StopEvent) -> None:
    """Raises TypeError for what is no event of a loop."""
    _need_event(stop, "is_set", "wait")
    if isinstance(stop, threading.Event):
        raise TypeError("a threading.Event ends a blocking follow; here it is an event of anyio, trio or asyncio")


def polled(stop: SyncStopEvent | None) -> PolledEvent | None:
    """An event that belongs elsewhere, for a loop. Raises TypeError for what is none."""
    if stop is None:
        return None
    _need_event(stop, "is_set")
    return PolledEvent(stop)


def _need_event(stop: object, *methods: str) -> None:
    if not all(callable(getattr(stop, method, None)) for method in methods):
        raise TypeError(f"stop is an event, not {type(stop).__name__}")


class PolledEvent:
    """The `StopEvent` of an event that belongs to other threads, or to another loop."""

    def __init__(self, event: SyncStopEvent) -> None:
        self.is_set = event.is_set

    async def wait(self) -> None:
        while not self.is_set():
            await anyio.sleep(LOOK_S)


async def unless(stop: StopEvent, step: Callable[[], Awaitable[T]]) -> T | None:
    """What ``step()`` gives, which is cancelled when the event is set first: None then. Raises what it raises."""
    result: T | None = None
    failure: Exception | None = None

    async def watch() -> None:
        await stop.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            result = await step()
        except Exception as error:  # the task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return None if stop.is_set() else result
