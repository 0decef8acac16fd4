"""`connect_sync`: the same client for programs without an event loop; may be used from several threads.

Laws:

* One event loop runs in a thread of its own for as long as the `SyncLog` is open; all calls meet there.
* Appends of all threads gather: one hop into the loop takes everything that queued since the last one.
* In a forked child every call raises `Closed` before it waits for anything: the loop's thread is not there.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import anyio

from alpo.errors import AlpoError, Closed, Overloaded

from .arguments import need_append
from .futures import AppendFuture, Request, SeenFuture
from .handle import Handle
from .log import Log, connect
from .misuse import Unpickled
from .payloads import (
    Parcel,
    Payload,
    batch,
    json_payload,
    single,
    text_payload,
)
from .portal import LoopThread, Portal
from .reading import Batches
from .record import Record
from .settlement import Unheard
from .stopping import SyncStopEvent, polled
from .sync_operating import SyncOperations

T = TypeVar("T")
#: Closed when the interpreter ends, as leaving a `with` would.
_OPEN: set[SyncLog] = set()


def connect_sync(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    queue_max: int = 10_000, queue_bytes_max: int = 32 << 20,
) -> SyncLog:
    """`alpo.connect` for blocking programs: use it in a ``with``, or `close` it. Same arguments, same errors."""
    return SyncLog(connect(servers, client, timeout_s, queue_max=queue_max, queue_bytes_max=queue_bytes_max), queue_max)


class SyncLog(Unpickled, SyncOperations):
    """One client of a cluster, blocking. See `Log`: every call here is the one of the same name there.

    Use it in a ``with``; or as it is, and `close` it at the end: then it opens with the first call, and the end of the
    interpreter closes it at the latest.
    """

    def __init__(self, log: Log, queue_max: int) -> None:
        self._log = log
        self._servers = log._servers
        self._queue_max = queue_max
        self._queue: deque[Request] = deque()
        self._lock = threading.Lock()
        #: Futures that failed.
        self._unheard = Unheard()
        self._running = False
        #: The task in the loop that takes the queue, the latest.
        self._taking: Future[None] | None = None
        self._portal: Portal | None = None
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unheard = self._close(drain=error is None or isinstance(error, Exception))
        if error is None and unheard is not None:
            raise unheard

    def close(self) -> None:
        """Close, as leaving the ``with`` does; may be called again, and from any thread. See `Log.close`."""
        unheard = self._close(drain=True)
        if unheard is not None:
            raise unheard

    # -- who we are -----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._log.closed

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
        return self._append(single(payload), serial, timeout_s)

    @overload
    def append_text(self, text: str, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    def append_text(self, text: str, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    def append_text(self, text: str, *, serial: int | None = None, timeout_s: float | None = None) -> int | None:
        return self._append(text_payload(text), serial, timeout_s)

    @overload
    def append_json(self, value: object, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    def append_json(self, value: object, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    def append_json(self, value: object, *, serial: int | None = None, timeout_s: float | None = None) -> int | None:
        return self._append(json_payload(value), serial, timeout_s)

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
        parcel = batch(payloads)
        lsn = self._append(parcel, serial, timeout_s, sparse=True)
        return None if lsn is None else range(lsn, lsn + parcel.number)

    def _append(
        self, parcel: Parcel, serial: int | None, timeout_s: float | None, sparse: bool = False
    ) -> int | None:
        future = self._submit(parcel, serial, sparse, timeout_s)
        future.told = True
        try:
            lsn: int | None = future.result().lsn
            return lsn
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None  # without how we waited

    @overload
    def append_nowait(
        self, payload: Payload, *, serial: None = None, timeout_s: float | None = None
    ) -> Future[Handle[int]]: ...
    @overload
    def append_nowait(
        self, payload: Payload, *, serial: int, timeout_s: float | None = None
    ) -> Future[Handle[int | None]]: ...

    def append_nowait(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> Future[Handle[Any]]:
        """Queue one payload and return at once: a future of the finished `Handle`, or of the append's error.

        Raises `Overloaded` when as many as ``queue_max`` wait to enter the loop. Cancelling the future takes the append
        back if it has not entered the loop yet; later there is no cancelling. Its callbacks are called in the loop's
        thread, where nobody can wait for the loop: they leave this log alone.
        """
        return self._submit_nowait(single(payload), serial, False, timeout_s)

    @overload
    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: None = None, timeout_s: float | None = None
    ) -> Future[Handle[int]]: ...
    @overload
    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int, timeout_s: float | None = None
    ) -> Future[Handle[int | None]]: ...

    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> Future[Handle[Any]]:
        """As `append_nowait`, for a batch; the handle's `lsns` are those of all payloads."""
        return self._submit_nowait(batch(payloads), serial, True, timeout_s)

    def wait_room(self) -> None:
        self._call(self._wait_room)

    async def _wait_room(self) -> None:
        await self._log.wait_room()
        while len(self._queue) >= self._queue_max:  # on its way into the loop, which has room
            await anyio.sleep(0.001)
            await self._log.wait_room()

    def _submit_nowait(
        self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None
    ) -> Future[Handle[Any]]:
        if len(self._queue) >= self._queue_max:
            raise Overloaded("the local queue is full: wait_room() waits for room")
        return self._submit(parcel, serial, sparse, timeout_s)

    def _submit(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> SeenFuture:
        need_append(serial, timeout_s)
        portal = self._require_portal()
        request = Request(parcel, serial, sparse, timeout_s, self._new_future())
        with self._lock:
            self._queue.append(request)
            start = not self._running
            self._running = True
        if start:
            try:
                self._taking = portal.start_task_soon(self._take_queue)
            except BaseException as error:
                self._abandon()
                if isinstance(error, RuntimeError) and self._servers.closed:  # meanwhile
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
                self._fail(request.future, error)
            except BaseException:
                self._fail(request.future, _unsent())
                self._abandon()
                raise
            else:
                handle.add_done_callback(partial(self._settled, request.future))

    def _settled(self, future: SeenFuture, handle: Handle[Any]) -> None:
        if handle.error is not None:
            self._fail(future, handle.error)
        else:
            future.set_result(handle)

    def _fail(self, future: SeenFuture, error: Exception) -> None:
        future.set_exception(error)
        with self._lock:
            self._unheard.note(future)

    def _abandon(self) -> None:
        """Nobody comes for what queued: it is told so, and never sent."""
        with self._lock:
            abandoned = list(self._queue)
            self._queue.clear()
            self._running = False
        for request in abandoned:
            if request.future.set_running_or_notify_cancel():
                self._fail(request.future, _unsent())

    def settle(self, timeout_s: float | None = None) -> dict[int, int | None | AlpoError]:
        return self._call(partial(self._log.settle, timeout_s))

    # -- reading --------------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[Record, None, None]:
        return self._records(self._log.read_batches(
            start, stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def read_batches(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[list[Record], None, None]:
        return self._lists(self._log.read_batches(
            start, stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def follow(
        self, start: int | Literal["end"] | None = None, *, stop: SyncStopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[Record, None, None]:
        """``stop``: a `threading.Event`."""
        return self._records(self._log.follow_batches(
            start, stop=polled(stop), local=local, server=server, last=last,
            since=since, client=client, timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | Literal["end"] | None = None, *, stop: SyncStopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Generator[list[Record], None, None]:
        return self._lists(self._log.follow_batches(
            start, stop=polled(stop), local=local, server=server, last=last,
            since=since, client=client, timeout_s=timeout_s,
        ))

    def last(self, timeout_s: float | None = None) -> Record | None:
        return self._call(partial(self._log.last, timeout_s))

    def end(self, timeout_s: float | None = None) -> int:
        return self._call(partial(self._log.end, timeout_s))

    def _records(self, batches: Batches) -> Generator[Record, None, None]:
        stop = batches.stop
        try:
            while (records := self._next(batches)) is not None:
                for record in records:
                    if self._servers.inherited or (stop is not None and stop.is_set()):
                        break
                    yield record
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None  # without how we waited
        finally:
            self._give_back(batches)

    def _lists(self, batches: Batches) -> Generator[list[Record], None, None]:
        try:
            while (records := self._next(batches)) is not None:
                yield records
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        finally:
            self._give_back(batches)

    def _next(self, batches: Batches) -> list[Record] | None:
        try:
            return self._call(batches.__anext__)
        except StopAsyncIteration:
            return None
        except Closed:
            self._servers.require_here()
            if batches.follows:
                return None
            raise

    def _give_back(self, batches: Batches) -> None:
        if not self._servers.closed:
            with suppress(Closed):  # meanwhile, and all connections with it
                self._call(batches.aclose)

    # -- inside -----------------------------------------------------------------------------------------------

    def _open_portal(self) -> Portal:
        """A loop of our own."""
        return LoopThread()

    def _new_future(self) -> SeenFuture:
        return AppendFuture(self._servers)

    def _require_portal(self) -> Portal:
        """The way into the loop; opens what was not opened yet. Raises `Closed`."""
        self._servers.require_open()
        return self._portal or self._open()

    def _open(self) -> Portal:
        self._servers.require_open()
        with self._opening:
            if self._portal is None:
                self._servers.require_open()
                portal = self._open_portal()
                try:
                    portal.call(self._log._begin)
                except BaseException:
                    portal.close()
                    raise
                self._portal = portal
                _OPEN.add(self)
            return self._portal

    def _close(self, drain: bool) -> Exception | None:
        """End everything; the first error that nobody was told."""
        if self._servers.inherited:
            return None
        with self._opening:
            portal = self._portal
            if portal is None:
                return self._log._close_at_once()
            if self not in _OPEN:
                return None
            _OPEN.discard(self)
        try:
            if drain and self._taking is not None:
                self._taking.result()
            unheard = portal.call(partial(self._log._finish, drain))
        finally:
            portal.close()
        with self._lock:
            return unheard or self._unheard.take_first()

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        portal = self._require_portal()
        try:
            return portal.call(function)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        except (RuntimeError, CancelledError) as error:
            if self._servers.closed:
                raise Closed("this Log was closed meanwhile") from error
            raise


def _unsent() -> Closed:
    return Closed("this Log was closed: it was not sent")


def _close_all() -> None:
    with ExitStack() as stack:
        for log in list(_OPEN):
            stack.callback(log.close)


atexit.register(_close_all)
