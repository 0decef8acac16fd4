"""Running a command's coroutine: on asyncio, which imports in a third of the time that Trio takes.

Laws:

* The client library does the same on both; what one command does once is faster on what is there sooner.
* No thread is waited for: one that hangs in a pipe, a terminal or a name server delays neither Ctrl-C nor the end.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


def run(body: Callable[[*Args], Awaitable[Result]], *args: *Args) -> Result:
    """Run ``body`` to its end. Ctrl-C cancels it, and comes out as KeyboardInterrupt."""
    import anyio

    return anyio.run(body, *args, backend_options={"loop_factory": _loop})


def _loop() -> Any:
    import asyncio

    class Loop(asyncio.SelectorEventLoop):
        """Asks name servers in a thread that its end does not wait for."""

        async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
            import socket

            return await in_thread(lambda: socket.getaddrinfo(*args, **options))

    return Loop()


async def in_thread(work: Callable[[*Args], Result], *args: *Args) -> Result:
    """What ``work`` returns or raises, from a thread of its own; cancelled, it leaves the thread behind."""
    trio = sys.modules.get("trio")  # whose task runs has imported it
    if trio is not None and trio.lowlevel.in_trio_task():
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
