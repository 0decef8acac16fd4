"""`SyncState` and `SyncLock`: a state and its locks for programs without an event loop.

Laws:

* Every call is that of the same name of `State` and `Lock`, which do the work in the log's own loop.
* A lock that is lost cannot stop the thread that holds it: `SyncLock.require` tells, and so does the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self

from alpo.client.sync import SyncLog
from alpo.client.sync import connect_sync as connect_log
from alpo.rsm.sync import SyncReplicated, Twin, blocking, each_of, owning_sync
from alpo.tls import Tls

from .errors import Changed, LockLost
from .recipes import Lock
from .state import Rows, State, Update
from .variable import Value, Variable


class SyncState(SyncReplicated[State]):
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

    def __repr__(self) -> str:
        return f"<SyncState as of LSN {self._it.lsn}, in {self._log!r}>"

    fetch = blocking(State.fetch)
    names = blocking(State.names)
    status = blocking(State.status)
    store = blocking(State.store)
    put = blocking(State.put)
    expunge = blocking(State.expunge)
    add = blocking(State.add)
    keep = blocking(State.keep)
    commit = blocking(State.commit)
    settle = blocking(State.settle)
    snapshot = blocking(State.snapshot)

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
        yield from each_of(self._log, self._it.watch(prefix, every=every))

    def rows(self, owner: str, fence: int | None = None) -> SyncRows:
        """The rows of the variable ``owner``; to write them takes its ``fence``."""
        return SyncRows(self, self._it.rows(owner, fence))

    def lock(self, name: str, ttl_s: float = 10.0, value: Value = b"") -> SyncLock:
        """The lock ``name``, for a ``with``: see `alpo.state.recipes.Lock`."""
        return SyncLock(self, Lock(self._it, name, ttl_s, value))


class SyncRows(Twin[Rows]):
    """The rows of one variable, blocking: see `Rows`."""

    def __init__(self, state: SyncState, rows: Rows) -> None:
        super().__init__(state.log, rows)
        self.name = rows.name

    fetch = blocking(Rows.fetch)
    names = blocking(Rows.names)
    put = blocking(Rows.put)


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

    holder = blocking(Lock.holder)
    acquire = blocking(Lock.acquire)
    try_acquire = blocking(Lock.try_acquire)

    def release(self) -> bool:
        """Give the lock back, if it is still ours: see `Lock.release`."""
        return not self._log.closed and self._log.run(self._it.release)


def connect_sync(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    create: bool = True, expect: str | None = None, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None, log: str | None = None,
) -> SyncState:
    """The state in the log of a cluster, blocking: for a ``with``. Arguments as of `alpo.state.connect`."""
    made = connect_log(servers, client, timeout_s, tls=tls, log=log)
    return owning_sync(
        SyncState(made, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache)
    )
