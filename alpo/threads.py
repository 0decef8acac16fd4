"""`in_thread`: blocking work of a coroutine, under trio or asyncio.

Law: no thread is waited for. One that blocks in a pipe, a terminal or a dead disk delays neither a cancellation nor the
end of the program.

A file of its own: client, commands and backups share it, and it must load nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


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
