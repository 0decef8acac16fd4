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
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from alpo.client.sync import SyncLog
from alpo.client.sync import connect_sync as connect_log
from alpo.tls import Tls

from .errors import Changed, LockLost
from .recipes import Lock
from .state import Rows, State, Update
from .variable import UNSET, Value, Variable
from .watching import Watch

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    call: Callable[Concatenate[State, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[SyncState, P], T]:
    """A method that runs the method ``call`` of `State` in the loop and returns its result."""
    @wraps(call)
    def blocking(self: SyncState, /, *given: P.args, **named: P.kwargs) -> T:
        return self._run(partial(call, self._state, *given, **named))

    return blocking


class SyncState:
    """The state in ``log``, blocking; may be used from several threads. Arguments, results and errors are those of
    `State`.

    Use it in a ``with``; or as it is, and `close` it at the end: then it opens with the first call, and ends with its
    log, or with the interpreter, at the latest.
    """

    def __init__(
        self, log: SyncLog, *, create: bool = True, expect: str | None = None, timeout_s: float | None = None,
        snapshots: Literal["auto", "off"] = "auto", cache: str | PathLike[str] | None = None,
    ) -> None:
        self._log = log
        self._state = State(
            log.log, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache
        )
        self._owns_log = False

    def __repr__(self) -> str:
        return f"<SyncState as of LSN {self._state.lsn}, in {self._log!r}>"

    def __enter__(self) -> Self:
        self._run(self._state.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._state.close_at_once() and not self._log.closed:
                self._log.run(self._state.close)
        finally:
            if self._owns_log:
                self._log.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close, as leaving the ``with`` does; may be called again, and from any thread. Raises as `SyncLog.close`, if
        `connect_sync` made this state."""
        self.__exit__(None, None, None)

    def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``function()`` in the loop; returns what it returns."""
        return self._log.run(function)

    @property
    def log(self) -> SyncLog:
        """The log that holds this state."""
        return self._log

    @property
    def lsn(self) -> int:
        """The LSN up to which this process has folded the log; 0 before it has begun."""
        return self._state.lsn

    @property
    def time(self) -> datetime:
        """The time of the entry at `lsn`, on the log's clock."""
        return self._state.time

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
        update = Update(self._state, name)
        while True:
            wanted = function(self._run(update.fetch))
            try:
                return self._run(partial(update.store, wanted))
            except Changed:
                continue

    def watch(self, prefix: str = "", *, every: bool = False) -> Generator[Variable, None, None]:
        """Iterate over the variables that begin with ``prefix`` as they are now, and then whenever they change: see
        `Watch`. It ends when the state is closed."""
        watch: Watch = self._state.watch(prefix, every=every)
        self._run(watch.__aenter__)
        try:
            while (change := self._run(partial(_next, watch))) is not None:
                yield change
        finally:
            if not self._log.closed:
                self._run(partial(watch.__aexit__, None, None, None))

    def rows(self, owner: str, fence: int | None = None) -> SyncRows:
        """The rows of the variable ``owner``; to write them takes its ``fence``."""
        return SyncRows(self, self._state.rows(owner, fence))

    def lock(self, name: str, ttl_s: float = 10.0, value: Value = b"") -> SyncLock:
        """The lock ``name``, for a ``with``: see `alpo.state.recipes.Lock`."""
        return SyncLock(self, Lock(self._state, name, ttl_s, value))


async def _next(watch: Watch) -> Variable | None:
    try:
        return await anext(watch)
    except StopAsyncIteration:  # no future can hold it
        return None


class SyncRows:
    """The rows of one variable, blocking: see `Rows`."""

    def __init__(self, state: SyncState, rows: Rows) -> None:
        self._state = state
        self._rows = rows
        self.name = rows.name

    def __repr__(self) -> str:
        return f"<Sync{repr(self._rows)[1:]}"

    def fetch(self, row: str, *, local: bool = False, at_least: int | None = None) -> Variable:
        """The row, as `SyncState.fetch` gives a variable."""
        return self._state._run(partial(self._rows.fetch, row, local=local, at_least=at_least))

    def names(self, *, local: bool = False) -> list[str]:
        """The names of all rows, sorted, without the owner's."""
        return self._state._run(partial(self._rows.names, local=local))

    def put(
        self, row: str, value: Value | None = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> int:
        """Write a row, whatever is there: see `Rows.put`."""
        return self._state._run(partial(self._rows.put, row, value, json=json, lease_s=lease_s))


class SyncLock:
    """A lock that one process holds at a time, for a ``with``: see `Lock`. If it is lost, `LockLost` is raised at the
    end of the ``with``; `require` tells it earlier."""

    def __init__(self, state: SyncState, lock: Lock) -> None:
        self._state = state
        self._lock = lock

    def __repr__(self) -> str:
        return f"<Sync{repr(self._lock)[1:]}"

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = not self.held
        self.release()
        if lost and error is None:
            raise LockLost(f"the lock {self._lock.name!r} was lost")

    @property
    def name(self) -> str:
        """The name of the lock, and of its variable."""
        return self._lock.name

    @property
    def token(self) -> int:
        """The LSN at which this process got the lock: a fence. Raises `LockLost` if it has none."""
        return self._lock.token

    @property
    def held(self) -> bool:
        """True while this process has the lock, as far as it can tell without asking."""
        return self._state._run(self._held)

    async def _held(self) -> bool:
        return self._lock.held

    def require(self) -> None:
        """Raise `LockLost` unless the lock is `held`."""
        if not self.held:
            raise LockLost(f"the lock {self._lock.name!r} was lost")

    def holder(self) -> Variable:
        """The lock's variable: its value is the holder's; None if nobody has it."""
        return self._state._run(self._lock.holder)

    def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the lock, and take it: see `Lock.acquire`."""
        self._state._run(partial(self._lock.acquire, timeout_s))

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; returns True if so."""
        return self._state._run(self._lock.try_acquire)

    def release(self) -> bool:
        """Give the lock back, if it is still ours: see `Lock.release`."""
        return not self._state.log.closed and self._state._run(self._lock.release)


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
