"""The way from blocking code into an event loop that runs in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Portal(Protocol):
    """What a `SyncLog` needs."""

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """What ``function()`` gives in the loop; it is cancelled there if the wait is interrupted here."""

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]: ...

    def close(self) -> None:
        """End the loop, once all that was started in it has ended."""


class LoopThread:
    """asyncio in a thread, which ends with the process at the latest.

    anyio's own `start_blocking_portal` is a context manager, which a forked child would wind up as it ends: it waits
    for a thread that is not there.
    """

    def __init__(self) -> None:
        self._begun: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name="alpo", daemon=True)
        self._thread.start()
        self._portal = self._begun.result()

    def _run(self) -> None:
        try:
            anyio.run(self._live, backend="asyncio")
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)

    async def _live(self) -> None:
        async with BlockingPortal() as portal:
            self._begun.set_result(portal)
            await portal.sleep_until_stopped()

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        future = self.start_task_soon(function)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # of no consequence where it has ended
            raise

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]:
        return self._portal.start_task_soon(function)

    def close(self) -> None:
        self.call(self._portal.stop)
        self._thread.join()
