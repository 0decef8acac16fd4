"""`SyncState` and `SyncLock`: a state and its locks for programs without an event loop.

Laws:

* Every call is that of the same name of `State` and `Lock`, which do the work in the log's own loop.
* A lock that is lost cannot stop the thread that holds it: `SyncLock.require` tells, and so does the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from datetime import datetime
from functools import partial, wraps
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from alpo.client.sync import SyncLog
from alpo.client.sync import connect_sync as connect_log
from alpo.tls import Tls

from .errors import Changed, LockLost
from .recipes import Lock
from .state import Rows, State, Update
from .variable import Value, Variable
from .watching import Watch

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Twin(Generic[S]):
    """The blocking twin of an object that lives in the loop of ``log``: `_blocking` makes its methods."""

    def __init__(self, log: SyncLog, it: S) -> None:
        self._log = log
        self._it = it

    def __repr__(self) -> str:
        return f"<Sync{repr(self._it)[1:]}"


def _blocking(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Twin[S], P], T]:
    """The blocking twin of the method ``call``: it runs that in the loop, and returns its result."""
    @wraps(call)
    def blocking(self: Twin[S], /, *given: P.args, **named: P.kwargs) -> T:
        return self._log.run(partial(call, self._it, *given, **named))

    return blocking


class SyncState(Twin[State]):
    """The state in ``log``, blocking; may be used from several threads. Arguments, results and errors are those of
    `State`.

    Use it in a ``with``; or as it is, and `close` it at the end: then it opens with the first call, and ends with its
    log, or with the interpreter, at the latest.
    """

    def __init__(
        self, log: SyncLog, *, create: bool = True, expect: str | None = None, timeout_s: float | None = None,
        snapshots: Literal["auto", "off"] = "auto", cache: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(log, State(
            log.log, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache
        ))
        self._owns_log = False

    def __repr__(self) -> str:
        return f"<SyncState as of LSN {self._it.lsn}, in {self._log!r}>"

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
        `connect_sync` made this state."""
        self.__exit__(None, None, None)

    @property
    def log(self) -> SyncLog:
        """The log that holds this state."""
        return self._log

    @property
    def lsn(self) -> int:
        """The LSN up to which this process has folded the log; 0 before it has begun."""
        return self._it.lsn

    @property
    def time(self) -> datetime:
        """The time of the entry at `lsn`, on the log's clock."""
        return self._it.time

    fetch = _blocking(State.fetch)
    names = _blocking(State.names)
    status = _blocking(State.status)
    store = _blocking(State.store)
    put = _blocking(State.put)
    expunge = _blocking(State.expunge)
    add = _blocking(State.add)
    keep = _blocking(State.keep)
    commit = _blocking(State.commit)
    settle = _blocking(State.settle)
    snapshot = _blocking(State.snapshot)

    def update(self, name: str, function: Callable[[Variable], Any]) -> Variable:
        """Fetch, call ``function`` with the variable, in the caller's thread, and store what it returns: see
        `State.update`."""
        update = Update(self._it, name)
        while True:
            wanted = function(self._log.run(update.fetch))
            try:
                return self._log.run(partial(update.store, wanted))
            except Changed:
                continue

    def watch(self, prefix: str = "", *, every: bool = False) -> Generator[Variable, None, None]:
        """Iterate over the variables that begin with ``prefix`` as they are now, and then whenever they change: see
        `Watch`. It ends when the state is closed."""
        watch: Watch = self._it.watch(prefix, every=every)
        self._log.run(watch.__aenter__)
        try:
            while (change := self._log.run(partial(_next, watch))) is not None:
                yield change
        finally:
            if not self._log.closed:
                self._log.run(partial(watch.__aexit__, None, None, None))

    def rows(self, owner: str, fence: int | None = None) -> SyncRows:
        """The rows of the variable ``owner``; to write them takes its ``fence``."""
        return SyncRows(self, self._it.rows(owner, fence))

    def lock(self, name: str, ttl_s: float = 10.0, value: Value = b"") -> SyncLock:
        """The lock ``name``, for a ``with``: see `alpo.state.recipes.Lock`."""
        return SyncLock(self, Lock(self._it, name, ttl_s, value))


async def _next(watch: Watch) -> Variable | None:
    try:
        return await anext(watch)
    except StopAsyncIteration:  # no future can hold it
        return None


class SyncRows(Twin[Rows]):
    """The rows of one variable, blocking: see `Rows`."""

    def __init__(self, state: SyncState, rows: Rows) -> None:
        super().__init__(state.log, rows)
        self.name = rows.name

    fetch = _blocking(Rows.fetch)
    names = _blocking(Rows.names)
    put = _blocking(Rows.put)


class SyncLock(Twin[Lock]):
    """A lock that one process holds at a time, for a ``with``: see `Lock`. If it is lost, `LockLost` is raised at the
    end of the ``with``; `require` tells it earlier."""

    def __init__(self, state: SyncState, lock: Lock) -> None:
        super().__init__(state.log, lock)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = not self.held
        self.release()
        if lost and error is None:
            raise LockLost(f"the lock {self.name!r} was lost")

    @property
    def name(self) -> str:
        """The name of the lock, and of its variable."""
        return self._it.name

    @property
    def token(self) -> int:
        """The LSN at which this process got the lock: a fence. Raises `LockLost` if it has none."""
        return self._it.token

    @property
    def held(self) -> bool:
        """True while this process has the lock, as far as it can tell without asking."""
        return self._log.run(self._held)

    async def _held(self) -> bool:
        return self._it.held

    def require(self) -> None:
        """Raise `LockLost` unless the lock is `held`."""
        if not self.held:
            raise LockLost(f"the lock {self.name!r} was lost")

    holder = _blocking(Lock.holder)
    acquire = _blocking(Lock.acquire)
    try_acquire = _blocking(Lock.try_acquire)

    def release(self) -> bool:
        """Give the lock back, if it is still ours: see `Lock.release`."""
        return not self._log.closed and self._log.run(self._it.release)


def connect_sync(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    create: bool = True, expect: str | None = None, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None,
) -> SyncState:
    """The state in the log of a cluster, blocking: for a ``with``. Arguments as of `alpo.state.connect`."""
    log = connect_log(servers, client, timeout_s, tls=tls)
    state = SyncState(
        log, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache
    )
    state._owns_log = True
    return state
