"""The way from threads into an event loop that runs in a thread of its own, and the futures that threads wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from .arguments import Place
from .handle import Handle
from .payloads import Parcel
from .servers import Servers

T = TypeVar("T")


class Portal(Protocol):
    """The way into an event loop, as a `BlockingLog` uses it."""

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Run ``function()`` in the loop; returns its result. It is cancelled if the wait for it is interrupted."""

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]: ...

    def close(self) -> None:
        """End the loop, once all that was started in it has ended."""


class LoopThread:
    """An asyncio loop in a thread of its own, which ends with the process at the latest.

    (anyio's `start_blocking_portal` is a context manager, which a forked child would leave as it ends, and wait for a
    thread that is not there.)
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
            future.cancel()  # does nothing if it has ended
            raise

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]:
        return self._portal.start_task_soon(function)

    def close(self) -> None:
        self.call(self._portal.stop)
        self._thread.join()


class Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "place", "sparse", "timeout_s")

    def __init__(
        self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None, future: SeenFuture
    ) -> None:
        self.parcel = parcel
        self.place = place
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future = future


class SeenFuture(Future[Handle[Any]]):
    """The future of a finished handle, which knows whether any caller has seen its outcome, or will."""

    told = False
    _error: BaseException | None = None

    @property
    def unheard(self) -> Exception | None:
        """The error that it ended with, as long as nobody was told."""
        return self._error if isinstance(self._error, Exception) and not self.told else None

    def set_exception(self, exception: BaseException | None) -> None:
        self._error = exception
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> Handle[Any]:
        try:
            return super().result(timeout)
        except Exception as error:
            self.told = self.told or error is self._error  # a timeout of this call is another error
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.told = True
        return error

    def add_done_callback(self, fn: Callable[[Future[Handle[Any]]], object]) -> None:
        self.told = True
        super().add_done_callback(fn)


class AppendFuture(SeenFuture):
    """The future of a finished handle. In a forked child it raises `Closed`: the loop that would finish it is not
    there."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self._servers = servers

    def result(self, timeout: float | None = None) -> Handle[Any]:
        self._servers.require_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._servers.require_here()
        return super().exception(timeout)
