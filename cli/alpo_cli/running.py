"""Run a command's coroutine: on asyncio, which imports in a third of Trio's time; Ctrl-C and SIGTERM as cancellation.
Connect it to the cluster, and complete in shells what the cluster knows.

Laws:

* The client library works the same on both; a short command ends sooner with the faster import.
* No thread is waited for: one that blocks in a pipe, a terminal or a name server delays neither Ctrl-C nor the end.
* A cancelled command can still report and clean up.
* A command's errors come out as they were raised, with or without a line on the terminal while no server answers.
* For a completion the cluster is asked for `COMPLETION_S` at most, and then nothing is offered: no error reaches the
  shell.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import typer

import alpo
from alpo.errors import TlsError

from .exits import Failed, UsageProblem
from .options import Target, given_so_far, resolve
from .output import keep_line, on_terminal

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

Result = TypeVar("Result")
Args = TypeVarTuple("Args")

#: Longest time for which the shell waits for a completion that the cluster is asked for.
COMPLETION_S = 0.3


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


def ask(target: Target, question: Callable[[alpo.Log], Awaitable[Result]], name: str | None = None) -> Result:
    """Run ``question`` on a log of the servers; returns what it returns. ``name``: the log's; None: the one that the
    options name. Raises the library's errors."""
    async def body() -> Result:
        async with connected(target, name) as log:
            return await question(log)

    return run(body)


@asynccontextmanager
async def connected(target: Target, name: str | None = None) -> AsyncIterator[alpo.Log]:
    """Connect to the servers, for the log of this name as in `ask`; the log is closed at the end."""
    async with (
        alpo.connect(",".join(target.servers), timeout_s=target.timeout_s, log=name) as log,
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


def completing(
    ask: Callable[[Target, str], Awaitable[Iterable[tuple[str, str]]]]
) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """An `autocompletion` for Typer: what ``ask(target, incomplete)`` returns, (what to type, what it is) each."""
    async def asked(target: Target, incomplete: str) -> list[tuple[str, str]]:
        from anyio import fail_after

        with fail_after(COMPLETION_S):
            return list(await ask(target, incomplete))

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            return run(asked, resolve(given_so_far(ctx)), incomplete)
        except (alpo.AlpoError, Failed, TlsError, UsageProblem, OSError):  # TimeoutError too
            return []

    return complete


async def _ids(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        found = await log.status(COMPLETION_S / 2)  # what hangs is not waited for
        return [(str(row["id"]), row.get("address") or "") for row in found if row.get("id")]


async def _cursors(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        return [(cursor.name, f"LSN {cursor.lsn}") for cursor in await log.cursors()]


async def _clients(target: Target, incomplete: str) -> Iterable[tuple[str, str]]:
    async with connected(target) as log:
        return [(one.client, f"last serial {one.last_serial}") for one in await log.sessions() if one.epoch]


complete_ids = completing(_ids)
complete_cursors = completing(_cursors)
complete_clients = completing(_clients)
