"""Run a command's coroutine: on asyncio, which imports in a third of Trio's time; Ctrl-C and SIGTERM as cancellation.

Laws:

* The client library works the same on both; a short command ends sooner with the faster import.
* No thread is waited for: one that blocks in a pipe, a terminal or a name server delays neither Ctrl-C nor the end.
* A cancelled command can still report and clean up.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

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


async def in_thread(work: Callable[[*Args], Result], *args: *Args) -> Result:
    """Run ``work`` in a new thread; returns or raises what it does. If cancelled, the thread is abandoned."""
    trio = sys.modules.get("trio")  # code that runs in a Trio task has imported it; another thread may be about to
    if trio is not None and hasattr(trio, "lowlevel") and trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=True)  # type: ignore[no-any-return]
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def tell(outcome: Callable[[Any], None], value: object) -> None:
        if not done.done():
            outcome(value)

    def carry_out() -> None:
        outcome: Callable[[Any], None] = done.set_result
        value: object
        try:
            value = work(*args)
        except BaseException as error:
            outcome, value = done.set_exception, error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, outcome, value)

    Thread(target=carry_out, daemon=True).start()
    return await done


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
