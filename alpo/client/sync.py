"""`connect_sync`: the same client for programs without an event loop; may be used from several threads.

Laws:

* One event loop runs in a thread of its own for as long as the `SyncLog` is open; all calls meet there.
* Appends of all threads gather: one hop into the loop takes everything that queued since the last one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload

from anyio.from_thread import start_blocking_portal

from alpo.errors import AlpoError, Overloaded, Unavailable

from .admin import ByHand, SessionInfo
from .batches import Parcel, Payload, batch, single
from .compacting import FileSpace
from .cursors import CursorInfo
from .events import Events
from .handle import Handle
from .keeping import Outcome
from .log import Log, connect
from .members import Leadership, MemberInfo
from .reading import Batches
from .record import Record
from .settings import Settings

T = TypeVar("T")


def connect_sync(
    servers: str | Sequence[str], client: str | None = None, timeout_s: float = 10.0, *, queue_max: int = 10_000,
    queue_bytes_max: int = 32 << 20,
) -> SyncLog:
    """`alpo.connect` for blocking programs: use it in a ``with``. Same arguments, same errors."""
    return SyncLog(connect(servers, client, timeout_s, queue_max=queue_max, queue_bytes_max=queue_bytes_max), queue_max)


class Portal(Protocol):
    """The way into the loop: what is used of anyio's `BlockingPortal`."""

    def call(self, func: Callable[[], Coroutine[Any, Any, T]], /) -> T: ...

    def start_task_soon(self, func: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]: ...

    def wrap_async_context_manager(self, cm: AbstractAsyncContextManager[T], /) -> AbstractContextManager[T]: ...


class _Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "serial", "sparse", "timeout_s")

    def __init__(
        self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None, future: Future[Handle]
    ) -> None:
        self.parcel = parcel
        self.serial = serial
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future = future


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
        self._portal: Portal | None = None
        self._context: AbstractContextManager[Log] | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(self._open_portal())
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
            try:
                if self._taking is not None and (error is None or isinstance(error, Exception)):
                    self._taking.result()
                self._context.__exit__(kind, error, trace)
            finally:
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

        Raises `Overloaded` when as many as ``queue_max`` wait to enter the loop. Cancelling the future takes the append
        back if it has not entered the loop yet; later there is no cancelling. Its callbacks are called in the loop's
        thread, where nobody can wait for the loop: they leave this log alone.
        """
        if len(self._queue) >= self._queue_max:
            raise Overloaded("the local queue is full")
        return self._submit(single(payload), serial, False, timeout_s)

    def _submit(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> Future[Handle]:
        request = _Request(parcel, serial, sparse, timeout_s, self._new_future())
        with self._lock:
            self._queue.append(request)
            start = not self._running
            self._running = True
        if start:
            try:
                self._taking = self._require_portal().start_task_soon(self._take_queue)
            except BaseException as error:
                self._abandon()
                if isinstance(error, RuntimeError) and self._portal is None:  # closed meanwhile
                    raise _unsent() from error
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
            if not request.future.set_running_or_notify_cancel():
                continue  # taken back, and not sent
            try:
                handle = await self._log.enter(request.parcel, request.serial, request.sparse, request.timeout_s)
            except (AlpoError, ValueError) as error:
                request.future.set_exception(error)
            except BaseException:
                request.future.set_exception(_unsent())
                self._abandon()
                raise
            else:
                handle.add_done_callback(partial(_finish, request.future))

    def _abandon(self) -> None:
        """Nobody comes for what queued: it is told so, and never sent."""
        with self._lock:
            abandoned = list(self._queue)
            self._queue.clear()
            self._running = False
        for request in abandoned:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(_unsent())

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
            with suppress(Unavailable):  # closed meanwhile, and all connections with it
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

    def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        return self._call(partial(self._log.events, since, timeout_s))

    def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        return self._call(partial(self._log.sessions, timeout_s))

    def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.drop_session, name, epoch, timeout_s))

    def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        return self._call(partial(self._log.outcome, client, serial, timeout_s, epoch=epoch))

    def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.wait_everyone, lsn, timeout_s))

    def settings(self, timeout_s: float | None = None) -> Settings:
        return self._call(partial(self._log.settings, timeout_s))

    def change_settings(
        self, wanted: Settings, *, expected: Settings | None = None, timeout_s: float | None = None
    ) -> Settings:
        return self._call(partial(self._log.change_settings, wanted, expected=expected, timeout_s=timeout_s))

    def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.set_cursor, name, lsn, timeout_s))

    def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        return self._call(partial(self._log.cursors, timeout_s))

    def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.drop_cursor, name, timeout_s))

    def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        return self._call(partial(self._log.trim, before, timeout_s, force=force))

    def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        return self._call(partial(self._log.add_member, id, address, priority=priority, timeout_s=timeout_s))

    def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        return self._call(partial(self._log.remove_member, id, timeout_s))

    def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        return self._call(partial(self._log.replace_member, id, address, timeout_s))

    def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        return self._call(partial(self._log.transfer, target, timeout_s))

    def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        return self._call(partial(self._log.compact, server, timeout_s))

    def init(self, timeout_s: float | None = None) -> None:
        self._call(partial(self._log.init, timeout_s))

    # -- inside -----------------------------------------------------------------------------------------------

    def _open_portal(self) -> AbstractContextManager[Portal]:
        """A loop of our own, for as long as this is open."""
        return start_blocking_portal("asyncio")

    def _new_future(self) -> Future[Handle]:
        return Future()

    def _require_portal(self) -> Portal:
        if self._portal is None:
            raise Unavailable("this Log is not open")
        return self._portal

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._require_portal().call(function)
        except (RuntimeError, CancelledError) as error:
            if self._portal is None:
                raise Unavailable("this Log was closed meanwhile") from error
            raise


def _unsent() -> Unavailable:
    return Unavailable("this Log is not open: it was not sent")


def _finish(future: Future[Handle], handle: Handle) -> None:
    error = handle.error
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(handle)
