"""Ctrl-C and SIGTERM as a cancellation, so that what must be said or stopped at the end is."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio


async def unless_interrupted(body: Callable[[], Awaitable[None]]) -> bool:
    """Run ``body``; SIGINT or SIGTERM cancels it. Returns whether one did.

    What it raises comes in an ExceptionGroup.
    """
    interrupted = False

    async def watch(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                interrupted = True
                scope.cancel()

    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: watch(nursery.cancel_scope, task_status))
        await body()
        nursery.cancel_scope.cancel()
    return interrupted
