"""Ctrl-C and SIGTERM as a cancellation, so that what must be said or stopped at the end is."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskStatus


async def unless_interrupted(body: Callable[[], Awaitable[None]]) -> bool:
    """Run ``body``; SIGINT or SIGTERM cancels it. Returns whether one did.

    What it raises comes in an ExceptionGroup.
    """
    interrupted = False

    async def watch(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                interrupted = True
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch, tasks.cancel_scope)
        await body()
        tasks.cancel_scope.cancel()
    return interrupted
