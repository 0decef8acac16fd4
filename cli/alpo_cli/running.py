"""Run a command's coroutine: on asyncio, which imports in a third of Trio's time; Ctrl-C and SIGTERM as cancellation.

Laws:

* The client library works the same on both; a short command ends sooner with the faster import.
* No thread is waited for: one that blocks in a pipe, a terminal or a name server delays neither Ctrl-C nor the end.
* A cancelled command can still report and clean up.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


def run(body: Callable[[*Args], Awaitable[Result]], *args: *Args) -> Result:
    """Run ``body`` to its end. Ctrl-C cancels it, and raises KeyboardInterrupt."""
    import asyncio

    import anyio

    from alpo.client.connection import call_ourselves
    from alpo.wire.requests import COMMAND

    call_ourselves(COMMAND)  # servers keep some places for operators
    return anyio.run(body, *args, backend_options={"loop_factory": asyncio.SelectorEventLoop})


async def unless_interrupted(body: Callable[[], Awaitable[None]]) -> bool:
    """Run ``body``; SIGINT or SIGTERM cancels it. Returns True if one did.

    Errors of ``body`` are raised in an ExceptionGroup.
    """
    import anyio

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
