"""A `Log` in an event loop of its own, called from threads: what `SyncLog` is made of, and its methods' adaptors.

Laws:

* One event loop runs in a thread of its own for as long as the log is open; all calls meet there.
* Appends of all threads gather: one hop into the loop takes everything that queued since the last one.
* A call that appends while nothing else is under way uses the connection in its own thread (`Loan`), and wakes no other
  thread; whatever else comes, the loop goes on with it.
* In a forked child every call raises `Closed` before it waits for anything: the loop's thread is not there.
* An adaptor (`blocking`, `reading`, `Appending`, `Queueing`) makes the blocking twin of one method of `Log`: the same
  name, parameters and docstring, for type checkers and for help().
"""

from __future__ import annotations

import atexit
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from alpo.errors import AlpoError, Closed, Overloaded

from .appender import Appender
from .arguments import Parcel, Place, Unpickled, batch, need_append, place_of
from .handle import Handle
from .loan import Loan
from .log import Log, appender_of, begin, close_at_once, finish, withdraw
from .operator.asking import servers_of
from .pipeline import Unheard
from .reading import Batches, Records
from .record import Record
from .servers import Servers

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=int | None)
R = TypeVar("R", Batches, Records)
#: Open logs, to be closed when the interpreter ends, as leaving a `with` would.
_OPEN: set[BlockingLog] = set()


class Portal(Protocol):
    """The way into an event loop, as a `BlockingLog` uses it."""

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Run ``function()`` in the loop; returns its result. It is cancelled if the wait for it is interrupted."""

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]: ...

    def close(self) -> None:
        """End the loop, once all that was started in it has ended."""


def _waited(wait: Callable[[], T]) -> T:
    """Call ``wait()``, which waits for a future; returns and raises what it does. Ctrl-C at the end of that wait,
    before the future has its lock again, ends in an error of the lock: that is KeyboardInterrupt here."""
    try:
        return wait()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


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
            return _waited(future.result)
        except BaseException:
            future.cancel()  # does nothing if it has ended
            raise

    def start_task_soon(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]:
        return _waited(partial(self._portal.start_task_soon, function))

    def close(self) -> None:
        self.call(self._portal.stop)
        self._thread.join()


class Request:
    """An append on its way into the loop."""

    __slots__ = ("future", "parcel", "place", "sparse", "timeout_s", "waits")

    def __init__(
        self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None, future: SeenFuture, waits: bool
    ) -> None:
        """``waits``: its caller waits for the outcome."""
        self.parcel = parcel
        self.place = place
        self.sparse = sparse
        self.timeout_s = timeout_s
        self.future = future
        self.waits = waits


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
            return _waited(partial(super().result, timeout))
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


class BlockingLog(Unpickled):
    """One `Log` and the event loop that it runs in, which is started by the first call."""

    def __init__(self, log: Log, queue_max: int) -> None:
        self._log = log
        self._servers = servers_of(log)
        self._queue_max = queue_max
        self._queue: deque[Request] = deque()
        self._lock = threading.Lock()
        #: Futures that failed, and whose error no caller has seen.
        self._unheard = Unheard()
        #: True while a task that takes the queue runs in the loop, or is about to.
        self._running = False
        #: The latest task in the loop that takes the queue.
        self._taking: Future[None] | None = None
        self._portal: Portal | None = None
        self._opening = threading.Lock()
        #: The tasks that lend threads their connection, if the loop is one of real time.
        self._lender: Appender | None = None

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

    def _open_portal(self) -> Portal:
        """Start the log's own event loop."""
        self._lender = appender_of(self._log)
        return LoopThread()

    def _new_future(self) -> SeenFuture:
        """The future for one more append."""
        return AppendFuture(self._servers)

    def _require_portal(self) -> Portal:
        """The way into the loop, which is started if it was not yet. Raises `Closed`."""
        self._servers.require_open()
        return self._portal or self._open()

    def _open(self) -> Portal:
        """Start the loop and open the log in it, unless that was done. Raises `Closed`."""
        self._servers.require_open()
        with self._opening:
            if self._portal is None:
                self._servers.require_open()
                portal = self._open_portal()
                try:
                    portal.call(partial(begin, self._log))
                except BaseException:
                    portal.close()
                    raise
                self._portal = portal
                _OPEN.add(self)
            return self._portal

    def _close(self, drain: bool) -> Exception | None:
        """End the log and its loop; returns the first error that nobody was told, or None."""
        if self._servers.inherited:
            return None
        with self._opening:
            portal = self._portal
            if portal is None:
                return close_at_once(self._log)
            if self not in _OPEN:
                return None
            _OPEN.discard(self)
        try:
            if drain and self._taking is not None:
                _waited(self._taking.result)
            unheard = portal.call(partial(finish, self._log, drain))
        finally:
            portal.close()
        with self._lock:
            return unheard or self._unheard.take_first()

    @property
    def log(self) -> Log:
        """The log in the loop: for `run`. For libraries built on this log."""
        return self._log

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``function()`` in the loop; returns what it returns. Raises what it raises, and `Closed`. For libraries
        built on this log."""
        portal = self._require_portal()
        try:
            return portal.call(function)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        except (RuntimeError, CancelledError) as error:
            if self._servers.closed:
                raise Closed("this Log was closed meanwhile") from error
            raise

    # -- appending: from a thread's queue into the loop -------------------------------------------------------

    def _append(self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None) -> Handle[Any]:
        """Append and wait until it is done: here, or in the loop."""
        loan = self._lender.loan if self._lender is not None else None
        if loan is not None and place is None and not self._running:  # what was queued before goes first
            handle = self._append_here(loan, parcel, timeout_s)
            if handle is not None:
                return handle
        future = self._submit(parcel, place, sparse, timeout_s, waits=True)
        future.told = True
        try:
            return future.result()
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None  # without the frames of the waiting

    def _append_here(self, loan: Loan, parcel: Parcel, timeout_s: float | None) -> Handle[Any] | None:
        """Append in this thread; None if that is for the loop to do, and was not begun."""
        assert self._lender is not None
        try:
            handle = loan.append(parcel, timeout_s)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        if handle is None:
            return None
        if not handle.done:
            try:
                self.run(partial(self._lender.go_on, loan, handle))
            except Closed:
                if not handle.done:  # in a forked child
                    raise
        if handle.error is not None:
            raise handle.error.with_traceback(None)
        return handle

    def _submit_nowait(
        self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None
    ) -> Future[Handle[Any]]:
        """Submit an append like `_submit`, unless the queue is full: then raises `Overloaded`."""
        if len(self._queue) >= self._queue_max:
            raise Overloaded("the local queue is full: wait_room() waits for room")
        return self._submit(parcel, place, sparse, timeout_s)

    def _submit(
        self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None, waits: bool = False
    ) -> SeenFuture:
        """Queue an append and see to it that a task in the loop takes the queue. Raises TypeError, ValueError,
        `Closed`."""
        need_append(place, timeout_s)
        portal = self._require_portal()
        request = Request(parcel, place, sparse, timeout_s, self._new_future(), waits)
        with self._lock:
            self._queue.append(request)
            start = not self._running
            self._running = True
        if start:
            try:
                self._taking = portal.start_task_soon(self._take_queue)
            except BaseException as error:
                self._abandon()
                if isinstance(error, RuntimeError) and self._servers.closed:  # closed meanwhile
                    raise _unsent() from error
                raise
        return request.future

    async def _take_queue(self) -> None:
        """Give the log all appends that queued (a task in the loop)."""
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                request = self._queue.popleft()
            if not request.future.set_running_or_notify_cancel():
                continue  # cancelled by its caller: not sent
            try:
                handle = await self._log.enter(request.parcel, request.place, request.sparse, request.timeout_s)
            except (AlpoError, ValueError) as error:
                self._fail(request.future, error)
            except BaseException:
                self._fail(request.future, _unsent())
                self._abandon()
                raise
            else:
                handle.add_done_callback(partial(self._settled, request.future))
                if self._lender is not None:
                    self._lender.note_lone(request.waits and not self._queue)

    def _settled(self, future: SeenFuture, handle: Handle[Any]) -> None:
        """Hand a finished append's outcome to its future (a callback of the handle)."""
        if handle.error is not None:
            self._fail(future, handle.error)
        else:
            future.set_result(handle)

    def _fail(self, future: SeenFuture, error: Exception) -> None:
        future.set_exception(error)
        with self._lock:
            self._unheard.note(future)

    def _abandon(self) -> None:
        """Fail all appends that queued with `Closed`: they will never be sent."""
        with self._lock:
            abandoned = list(self._queue)
            self._queue.clear()
            self._running = False
        for request in abandoned:
            if request.future.set_running_or_notify_cancel():
                self._fail(request.future, _unsent())

    async def _withdraw(self, handles: Iterable[Handle]) -> None:
        """Take back what was not sent yet."""
        withdraw(self._log, handles)

    async def _wait_room(self) -> None:
        """Wait for room in the log's queue, then in the queue on the way to it."""
        await self._log.wait_room()
        while len(self._queue) >= self._queue_max:  # the log has room: the queue will be taken soon
            await anyio.sleep(0.001)
            await self._log.wait_room()

    # -- reading ----------------------------------------------------------------------------------------------

    def _records(self, records: Records) -> Generator[Record, None, None]:
        batches, stop = records.batches, records.batches.stop
        try:
            while (found := self._next(batches)) is not None:
                for record in found:
                    if self._servers.inherited or (stop is not None and stop.is_set()):
                        break
                    yield record
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None  # without the frames of the waiting
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
        """The next list of records; None at the end. Raises `Closed`, and as `Log.read`."""
        try:
            return self.run(batches.__anext__)
        except StopAsyncIteration:
            return None
        except Closed:
            self._servers.require_here()
            if batches.follows:
                return None
            raise

    def _give_back(self, batches: Batches) -> None:
        """Close the iterator, so that its connection can be used again."""
        if not self._servers.closed:
            with suppress(Closed):  # the log was closed meanwhile, with all its connections
                self.run(batches.aclose)


def _unsent() -> Closed:
    """The error of an append that was in the queue when the log was closed."""
    return Closed("this Log was closed: it was not sent")


def _close_all() -> None:
    # Appends are not waited for after Ctrl-C, as at the end of a `with`. An interactive shell (`ps1`) outlives Ctrl-C.
    drain = not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) or hasattr(sys, "ps1")
    with ExitStack() as stack:
        for log in list(_OPEN):
            stack.callback(log.close if drain else partial(log._close, drain))


atexit.register(_close_all)


# -- adaptors: the blocking twin of a method of `Log` ---------------------------------------------------------


def blocking(
    call: Callable[Concatenate[Log, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[BlockingLog, P], T]:
    """A method that runs the method ``call`` of `Log` in the loop and returns its result."""
    @_twin_of(call)
    def blocking_call(self: BlockingLog, /, *given: Any, **named: Any) -> Any:
        return self.run(partial(getattr(self._log, call.__name__), *given, **named))

    return blocking_call


# Type checkers carry the overloads of a method through a call that takes nothing but the method: so these two take the
# rest in a call of its own, `Appending(single)(Log.append)`.


class Appending:
    """A maker of methods that append what ``make_parcel`` makes of their first argument, together with others' appends.
    """

    def __init__(self, make_parcel: Callable[..., Parcel]) -> None:
        self._make_parcel = make_parcel

    def __call__(
        self, call: Callable[Concatenate[Log, P], Coroutine[Any, Any, T]]
    ) -> Callable[Concatenate[BlockingLog, P], T]:
        """The blocking twin of ``call``."""
        make_parcel, is_batch = self._make_parcel, self._make_parcel is batch

        @_twin_of(call)
        def append(
            self: BlockingLog, /, *given: Any, serial: int | None = None, expect_last: int | None = None,
            timeout_s: float | None = None, **named: Any,
        ) -> Any:
            place, sparse = place_of(serial, expect_last), is_batch and expect_last is None
            handle = self._append(make_parcel(*given, **named), place, sparse, timeout_s)
            return handle.lsns if is_batch and handle.lsn is not None else handle.lsn

        return append


class Queueing:
    """A maker of methods like those of `Appending` that return at once, with the future of the finished handle.
    ``doc``: their docstring."""

    def __init__(self, make_parcel: Callable[..., Parcel], doc: str) -> None:
        self._make_parcel = make_parcel
        self._doc = doc

    def __call__(
        self, call: Callable[Concatenate[Log, P], Handle[L]]
    ) -> Callable[Concatenate[BlockingLog, P], Future[Handle[L]]]:
        """The blocking twin of ``call``."""
        make_parcel, is_batch = self._make_parcel, self._make_parcel is batch

        @_twin_of(call, f"Future[{inspect.signature(call).return_annotation}]", self._doc)
        def append_nowait(
            self: BlockingLog, /, *given: Any, serial: int | None = None, timeout_s: float | None = None, **named: Any
        ) -> Future[Handle[Any]]:
            return self._submit_nowait(make_parcel(*given, **named), serial, is_batch, timeout_s)

        return append_nowait


def reading(
    call: Callable[Concatenate[Log, P], R], show: Callable[[BlockingLog, R], Generator[T, None, None]]
) -> Callable[Concatenate[BlockingLog, P], Generator[T, None, None]]:
    """A method that returns the generator that ``show`` makes of the async iterator of ``call``."""
    @_twin_of(call, show.__annotations__["return"])
    def read(self: BlockingLog, /, *given: Any, **named: Any) -> Any:
        return show(self, getattr(self._log, call.__name__)(*given, **named))

    return read


def _twin_of(
    call: Callable[..., Any], returns: str = "", doc: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the blocking twin of ``call``: the same name, parameters and docstring, as help() and IDEs show them.

    ``returns``: the annotation of the twin's result, where that is of another type; ``doc``: a docstring of its own.
    """
    signature = inspect.signature(call)
    if returns:
        signature = signature.replace(return_annotation=returns)

    def decorate(twin: Callable[..., Any]) -> Callable[..., Any]:
        twin.__name__, twin.__qualname__ = call.__name__, f"SyncLog.{call.__name__}"
        twin.__doc__ = doc or call.__doc__
        twin.__annotations__ = {**call.__annotations__, "return": signature.return_annotation}
        twin.__signature__ = signature  # type: ignore[attr-defined]
        return twin

    return decorate
