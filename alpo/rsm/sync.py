"""The blocking twins of what lives in a loop: `Twin` and `blocking`, and `SyncReplicated`, the twin of a `Replicated`.

Laws:

* Every call is that of the same name of the object itself, which does the work in the log's own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from alpo.client.sync import SyncLog

from .replicated import Replicated
from .watching import Watching

P = ParamSpec("P")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R", bound=Replicated[Any, Any])
Y = TypeVar("Y", bound="SyncReplicated[Any]")


class Twin(Generic[S_co]):
    """The blocking twin of an object that lives in the loop of ``log``: `blocking` makes its methods."""

    def __init__(self, log: SyncLog, it: S_co) -> None:
        self._log = log
        self._it = it

    def __repr__(self) -> str:
        return f"<Sync{repr(self._it)[1:]}"


def blocking(
    call: Callable[Concatenate[S_co, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Twin[S_co], P], T]:
    """The blocking twin of the method ``call``: it runs that in the loop, and returns its result."""
    @wraps(call)
    def blocks(self: Twin[S_co], /, *given: P.args, **named: P.kwargs) -> T:
        return self._log.run(partial(call, self._it, *given, **named))

    return blocks


class SyncReplicated(Twin[R]):
    """The blocking twin of a `Replicated`; may be used from several threads.

    Use it in a ``with``; or as it is, and `close` it at the end: then it opens with the first call, and ends with its
    log, or with the interpreter, at the latest.
    """

    def __init__(self, log: SyncLog, it: R) -> None:
        super().__init__(log, it)
        self._owns_log = False

    def __enter__(self) -> Self:
        self._log.run(self._it.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._it.close_at_once() and not self._log.closed:
                self._log.run(self._it.close)
        finally:
            if self._owns_log:
                self._log.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close, as leaving the ``with`` does; may be called again, and from any thread. Raises as `SyncLog.close`, if
        `connect_sync` made this."""
        self.__exit__(None, None, None)

    @property
    def log(self) -> SyncLog:
        """The log that holds this."""
        return self._log

    @property
    def lsn(self) -> int:
        """The LSN up to which this process has folded the log; 0 before it has begun."""
        return self._it.lsn

    @property
    def time(self) -> datetime:
        """The time of the entry at `lsn`, on the log's clock."""
        return self._it.time


def owning_sync(twin: Y) -> Y:
    """``twin``, from now on the one that ends its log."""
    twin._owns_log = True
    return twin


def each_of(log: SyncLog, watch: Watching[T]) -> Generator[T, None, None]:
    """Iterate over what ``watch`` gives; it is entered, and closed at the end."""
    log.run(watch.__aenter__)
    try:
        while (change := log.run(partial(_next, watch))) is not None:
            yield change
    finally:
        if not log.closed:
            log.run(partial(watch.__aexit__, None, None, None))


async def _next(watch: Watching[T]) -> T | None:
    try:
        return await anext(watch)
    except StopAsyncIteration:  # no future can hold it
        return None
