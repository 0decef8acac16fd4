"""`connect_sync`: the same client for programs without an event loop; may be used from several threads.

Laws:

* One event loop runs in a thread of its own for as long as the `SyncLog` is open; all calls meet there.
* Appends of all threads gather: one hop into the loop takes everything that queued since the last one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from alpo.errors import AlpoError, Overloaded, Unavailable

from .admin import ByHand, SessionInfo
from .batches import Parcel, Payload, batch, single
from .handle import Handle
from .log import Log, connect
from .reading import Batches
from .record import Record

T = TypeVar("T")


def connect_sync(
    servers: str | Sequence[str], client: str | None = None, timeout_s: float = 10.0, *, queue_max: int = 10_000,
    queue_bytes_max: int = 32 << 20,
) -> SyncLog:
    """`alpo.connect` for blocking programs: use it in a ``with``. Same arguments, same errors."""
    return SyncLog(connect(servers, client, timeout_s, queue_max=queue_max, queue_bytes_max=queue_bytes_max), queue_max)


class _Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "serial", "sparse", "timeout_s")

    def __init__(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> None:
        self.parcel = parcel
        self.serial = serial
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future: Future[Handle] = Future()


class SyncLog:
    """One client of a cluster, blocking. See `Log`: every call here is the one of the same name there."""

    def __init__(self, log: Log, queue_max: int) -> None:
        self._log = log
        self._queue_max = queue_max
        self._queue: deque[_Request] = deque()
        self._lock = threading.Lock()
        self._running = False
        #: The task in the loop that takes the queue, the latest.
        self._taking: Future[None] | None = None
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._context: AbstractContextManager[Log] | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal("asyncio"))
        try:
            self._context = self._portal.wrap_async_context_manager(self._log)
            self._context.__enter__()
        except BaseException:
            self._portal = None
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._context is not None
        with self._stack:
            if self._taking is not None and (error is None or isinstance(error, Exception)):
                self._taking.result()
            self._context.__exit__(kind, error, trace)
            self._portal = None

    # -- who we are -----------------------------------------------------------------------------------------

    @property
    def client(self) -> str | None:
        return self._log.client

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def last_serial(self) -> int:
        return self._log.last_serial

    def opened(self, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.opened, timeout_s))

    # -- appending ------------------------------------------------------------------------------------------

    @overload
    def append(self, payload: Payload, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    def append(self, payload: Payload, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    def append(self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None) -> int | None:
        return self._submit(single(payload), serial, False, timeout_s).result().lsn

    @overload
    def append_batch(
        self, payloads: Iterable[Payload], *, serial: None = None, timeout_s: float | None = None
    ) -> range: ...
    @overload
    def append_batch(
        self, payloads: Iterable[Payload], *, serial: int, timeout_s: float | None = None
    ) -> range | None: ...

    def append_batch(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> range | None:
        handle = self._submit(batch(payloads), serial, True, timeout_s).result()
        return None if handle.lsn is None else handle.lsns

    def append_nowait(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> Future[Handle]:
        """Queue one payload and return at once: a future of the finished `Handle`, or of the append's error.

        Raises `Overloaded` when as many as ``queue_max`` wait to enter the loop.
        """
        if len(self._queue) >= self._queue_max:
            raise Overloaded("the local queue is full")
        return self._submit(single(payload), serial, False, timeout_s)

    def _submit(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> Future[Handle]:
        request = _Request(parcel, serial, sparse, timeout_s)
        with self._lock:
            self._queue.append(request)
            start = not self._running
            self._running = True
        if start:
            try:
                self._taking = self._require_portal().start_task_soon(self._take_queue)
            except BaseException:
                self._running = False
                raise
        return request.future

    async def _take_queue(self) -> None:
        """In the loop: enter everything that queued."""
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                request = self._queue.popleft()
            try:
                handle = await self._log.enter(request.parcel, request.serial, request.sparse, request.timeout_s)
            except (AlpoError, ValueError) as error:
                request.future.set_exception(error)
            else:
                handle.add_done_callback(partial(_finish, request.future))

    def settle(self, timeout_s: float | None = None) -> dict[int, int | None | AlpoError]:
        return self._call(partial(self._log.settle, timeout_s))

    # -- reading --------------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Record]:
        return self._records(self._log.read_batches(
            start, stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def follow(
        self, start: int | None = None, *, local: bool = False, server: int | None = None, last: int | None = None,
        since: datetime | None = None, client: str | None = None, timeout_s: float | None = None,
    ) -> Iterator[Record]:
        return self._records(self._log.follow_batches(
            start, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def _records(self, batches: Batches) -> Iterator[Record]:
        try:
            while True:
                try:
                    records = self._call(batches.__anext__)
                except StopAsyncIteration:
                    return
                yield from records
        finally:
            if self._portal is not None:
                self._call(batches.aclose)

    # -- the operator's ---------------------------------------------------------------------------------------

    def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        return self._call(partial(
            self._log.append_by_hand, payloads, client=client, serial=serial, epoch=epoch, timeout_s=timeout_s
        ))

    def status(self, timeout_s: float | None = None) -> list[dict[str, Any]]:
        return self._call(partial(self._log.status, timeout_s))

    def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        return self._call(partial(self._log.sessions, timeout_s))

    def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.drop_session, name, epoch, timeout_s))

    def init(self, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.init, timeout_s))

    # -- inside -----------------------------------------------------------------------------------------------

    def _require_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise Unavailable("this Log is not open")
        return self._portal

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: T = self._require_portal().call(function)
        return result


def _finish(future: Future[Handle], handle: Handle) -> None:
    error = handle.error
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(handle)
