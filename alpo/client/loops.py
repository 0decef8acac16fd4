"""The running event loop's own clock and event: what anyio gives too, but at every use it finds out which loop runs.

An append needs both; at one outstanding that is a twentieth of what the client costs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol


class Event(Protocol):
    """What trio's and asyncio's events share."""

    def set(self) -> None: ...

    async def wait(self) -> object: ...


class Loop(NamedTuple):
    """``clock``: as `anyio.current_time`. ``spawn``: start a task that ends with the loop, if not before; keep what it
    returns as long as the task is to live."""

    clock: Callable[[], float]
    new_event: Callable[[], Event]
    spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


#: Where no loop runs yet.
NEW_EVENT: Callable[[], Event] = asyncio.Event


def running_loop() -> Loop:
    """The tools of the loop that runs: Trio's too where that is a guest in an asyncio loop."""
    trio = sys.modules.get("trio")  # whose task runs has imported it
    if trio is not None and trio.lowlevel.in_trio_task():
        return Loop(trio.lowlevel.current_clock().current_time, trio.Event, trio.lowlevel.spawn_system_task)
    loop = asyncio.get_running_loop()
    return Loop(loop.time, asyncio.Event, lambda function: loop.create_task(function()))
