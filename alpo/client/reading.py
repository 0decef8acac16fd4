"""The reading half of `Log`, the iterators that readers hold (over records, or lists of them), and the events that end
a `follow`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Literal, Protocol, TypeVar

import anyio

from .operator.asking import Asking
from .pages import Closing, PagePart, Pages, Query, end_lsn
from .record import Record, records_of
from .servers import Servers

T = TypeVar("T")
#: Seconds between two looks at an event of another thread.
LOOK_S = 0.05


class StopEvent(Protocol):
    """An event of anyio, trio or asyncio, which ends a `follow`."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


class SyncStopEvent(Protocol):
    """A `threading.Event`, or anything with its ``is_set``, which ends a blocking `follow`."""

    def is_set(self) -> bool: ...


def need_stop(stop: StopEvent) -> None:
    """Check that ``stop`` is an event of a loop. Raises TypeError."""
    _need_event(stop, "is_set", "wait")
    if isinstance(stop, threading.Event):
        raise TypeError("a threading.Event ends a blocking follow; here it is an event of anyio, trio or asyncio")


def polled(stop: SyncStopEvent | None) -> PolledEvent | None:
    """A `StopEvent` that a loop can wait for, made of an event that belongs elsewhere; None for None. Raises TypeError
    for anything but an event."""
    if stop is None:
        return None
    _need_event(stop, "is_set")
    return PolledEvent(stop)


def _need_event(stop: object, *methods: str) -> None:
    if not all(callable(getattr(stop, method, None)) for method in methods):
        raise TypeError(f"stop is an event, not {type(stop).__name__}")


class PolledEvent:
    """The `StopEvent` of an event that belongs to other threads, or to another loop: looked at every `LOOK_S` seconds.
    """

    def __init__(self, event: SyncStopEvent) -> None:
        self.is_set = event.is_set

    async def wait(self) -> None:
        while not self.is_set():
            await anyio.sleep(LOOK_S)


async def unless(stop: StopEvent, step: Callable[[], Awaitable[T]]) -> T | None:
    """Await ``step()`` and return its result; cancel it and return None if the event is set first. Raises what it
    raises."""
    result: T | None = None
    failure: Exception | None = None

    async def watch() -> None:
        await stop.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            result = await step()
        except Exception as error:  # raised below: the task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return None if stop.is_set() else result


class Batches(Closing):
    """An iterator over lists of records, returned by `Log.read_batches` and `Log.follow_batches`.

    One that is left early needs no closing: it keeps no connection. ``aclose``, or ``async with``, keeps the connection
    for the next read.
    """

    def __init__(self, servers: Servers, query: Query, timeout_s: float, stop: StopEvent | None = None) -> None:
        if stop is not None:
            need_stop(stop)
        self._pages = Pages(servers, query, timeout_s)
        self._query = query
        self.servers = servers
        self.stop = stop
        #: Number of last records wanted of one client, 0 if not asked for. Pages may hold more: `__anext__` cuts them
        #: down.
        self._last = query.last if query.client and not query.follow else 0
        self._held: list[Record] = []

    async def aclose(self) -> None:
        await self._pages.aclose()

    async def __anext__(self) -> list[Record]:
        while True:
            records = records_of(*await self._page())
            if self._last:
                self._held = (self._held + records)[-self._last :]
                records = self._held if self._pages.over else []
            if records:
                return records

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.servers}: {self._query}>"

    @property
    def follows(self) -> bool:
        """True if it waits for more at the end of the log; it ends when the log is closed."""
        return self._pages.follows

    @property
    def stopped(self) -> bool:
        """True once its stop event is set."""
        return self.stop is not None and self.stop.is_set()

    async def _page(self) -> PagePart:
        if self.stop is None:
            return await self._pages.__anext__()
        self.servers.require_here()
        page = None if self.stopped else await unless(self.stop, self._pages.__anext__)
        if page is None:
            await self.aclose()
            raise StopAsyncIteration
        return page


class Records(Closing):
    """An iterator over records, returned by `Log.read` and `Log.follow`.

    One that is left early needs no closing: it keeps no connection. ``aclose``, or ``async with``, keeps the connection
    for the next read.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._records: list[Record] = []
        self._servers = batches.servers
        self._stop = batches.stop

    async def __anext__(self) -> Record:
        if self._servers.inherited or (self._stop is not None and self._stop.is_set()):
            self._records = []
        if not self._records:
            self._records = await self.batches.__anext__()
            self._records.reverse()
        return self._records.pop()

    def __repr__(self) -> str:
        return repr(self.batches).replace("<Batches", "<Records", 1)

    async def aclose(self) -> None:
        self._records = []
        await self.batches.aclose()


class Reading(Asking):
    """The reading calls of a `Log`."""

    def read(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Records:
        """Iterate over the guaranteed payloads ``start`` … ``stop``, ends included: ``async for``, or ``for`` with a
        `SyncLog`.

        By default from the first available payload to the guaranteed end as of the call, linearizable. ``last``: only
        so many payloads before the end; ``since``: only from that time on; ``client``: only that client's.
        ``local=True``: what one server has, as far as it knows, without asking the leader: server ``server`` if given,
        else any. ``timeout_s`` is for each page, not the whole. Raises `OutOfRange`; `Unavailable` when no answer came
        in time, midway too.
        """
        return Records(self.read_batches(
            start, stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def read_batches(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Batches:
        """Iterate as `read` does, over lists of records as they come over the wire: the fast way to read much."""
        query = Query.of(start, stop, local, server, last, since, client, follow=False)
        return Batches(self._servers, query, self._seconds(timeout_s))

    def follow(
        self, start: int | Literal["end"] | None = None, *, stop: StopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Records:
        """Iterate as `read` does, but wait for more at the end; survives failovers, without a gap or a repeat.

        ``start="end"``: from the LSN that is next when the first record is asked for. ``stop``: an event of trio,
        asyncio or anyio; the loop ends once it is set, and when the log is closed. Raises `OutOfRange` when the log is
        trimmed beyond the position, `Unavailable` when no server answers for ``timeout_s``.
        """
        return Records(self.follow_batches(
            start, stop=stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | Literal["end"] | None = None, *, stop: StopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Batches:
        """Iterate as `follow` does, over lists of records as they come over the wire."""
        query = Query.of(start, None, local, server, last, since, client, follow=True)
        return Batches(self._servers, query, self._seconds(timeout_s), stop)

    async def last(self, timeout_s: float | None = None) -> Record | None:
        """The last record that can be read, linearizable; None if there is none. Raises as `read`."""
        async with self.read(last=1, timeout_s=timeout_s) as records:
            return await anext(records, None)

    async def end(self, timeout_s: float | None = None) -> int:
        """The LSN that the next payload gets: linearizable. Raises `Unavailable`."""
        return await end_lsn(self._servers, self._seconds(timeout_s)) + 1
