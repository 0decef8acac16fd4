"""The log that a command works on, with a line on the terminal while no server answers.

Law: a command's errors come out as they were raised, with or without a terminal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import alpo

from .options import Target
from .progress import keep_line, on_terminal


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[alpo.Log]:
    """Connect to the servers; the log is closed at the end."""
    async with (
        alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log,
        telling(lambda: log.reason),
    ):
        yield log


@asynccontextmanager
async def telling(why: Callable[[], object]) -> AsyncIterator[None]:
    """Show on the terminal what is waited for, while ``why()`` returns it."""
    if not on_terminal():
        yield
        return
    import anyio

    failure: Exception | None = None

    def text() -> str:
        reason = why()
        return f"waiting: {reason}" if reason is not None else ""

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_line, text)
        try:
            yield
        except Exception as error:  # the task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
