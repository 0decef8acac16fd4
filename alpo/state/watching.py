"""`Watch`: the variables under a prefix as they are now, and then whenever they change; and `Watching`, what it has in
common with other iterators over what is folded."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from copy import copy
from types import TracebackType
from typing import Generic, Self, TypeVar

from alpo.client.arguments import AsyncIterated
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed

from .codec import ROW_MARK
from .errors import Behind
from .folder import Folder
from .machine import Cell, Machine, time_of
from .variable import Variable, variable_of

T = TypeVar("T")
#: Most changes that wait for a watch of every change.
EVERY_MAX = 10_000


class Watching(AsyncIterated, Generic[T]):
    """An async iterator over what changes as the log is folded, from `enter` until `close` or until the folding ends.

    ``need_home`` raises RuntimeError in another event loop than that of the fold. Subclasses tell ``_news`` of each
    change.
    """

    def __init__(self, need_home: Callable[[], None]) -> None:
        self._need_home = need_home
        self._entered = False
        self._closed = False
        self._error: AlpoError | None = None
        self._news = News()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    @abstractmethod
    async def enter(self, until_s: float | None = None) -> None:
        """Enter by this time of the log's clock. For the library."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch: a task that waits for its next value stops iterating. Raises RuntimeError in another loop."""
        self._need_home()
        self._closed = True
        self._leave()
        self._news.tell()

    @abstractmethod
    def _leave(self) -> None:
        """Be told of no more changes."""

    @abstractmethod
    def _take(self) -> T | None:
        """The next value that waits, if there is one."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._need_home()
        if not self._entered:
            raise RuntimeError("enter a watch with async with before iterating over it")
        while not self._closed:
            found = self._take()
            if found is not None:
                return found
            if isinstance(self._error, Closed):
                break
            if self._error is not None:
                raise copy(self._error)
            await self._news.wait()
        raise StopAsyncIteration

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended, and why: it ends the iteration."""
        self._error = error
        self._news.tell()


class Watch(Watching[Variable]):
    """An async iterator over variables whose names begin with a prefix: first those that are there, then each that
    changed. Enter it with ``async with``: else iterating raises RuntimeError.

    Of changes that come faster than they are taken, the latest of each variable is given; with ``every`` all of them,
    or `Behind` is raised. A variable that is gone has the value None. Renewals of leases are no changes. Rows are given
    only if the prefix names their owner (`State.rows`).
    """

    def __init__(self, folder: Folder, prefix: str, every: bool) -> None:
        super().__init__(folder.tasks.need_home)
        self._folder = folder
        self._prefix = prefix
        self._rows = ROW_MARK in prefix
        self._every = every
        #: Variables that were there at the start; without ``every`` also changes.
        self._latest: OrderedDict[str, Variable] = OrderedDict()
        self._all: deque[Variable] = deque()
        #: Versions of what is there, as far as it was given or waits to be.
        self._known: dict[str, int] = {}
        self._behind = False

    def __repr__(self) -> str:
        return f"<Watch of {self._prefix!r}{', every change' if self._every else ''}>"

    async def enter(self, until_s: float | None = None) -> None:
        machine = await self._folder.now(until_s)
        self._folder.watch(self)
        for name in sorted(machine.cells):
            self.note(name, machine.cells[name], 0)
        self._entered = True

    def _leave(self) -> None:
        self._folder.unwatch(self)

    def _take(self) -> Variable | None:
        if self._latest:
            return self._latest.popitem(last=False)[1]
        if self._all:
            return self._all.popleft()
        if self._behind:
            raise Behind("changes were missed: watch anew")
        return None

    # -- told by the folder ---------------------------------------------------------------------------------

    def note(self, name: str, cell: Cell | None, time_ms: int) -> None:
        """Take a change of one variable."""
        if not name.startswith(self._prefix) or (ROW_MARK in name) != self._rows:
            return
        version = 0 if cell is None else cell.version
        if self._known.get(name, 0) == version:
            return
        if cell is None:
            del self._known[name]
            variable = Variable(name, time=time_of(time_ms))
        else:
            self._known[name] = version
            variable = variable_of(name, cell)
        if not (self._every and self._entered):
            self._latest[name] = variable
        elif len(self._all) < EVERY_MAX and not self._behind:
            self._all.append(variable)
        else:
            self._behind = True
        self._news.tell()

    def jumped(self, machine: Machine) -> None:
        """Take a whole new state: what differs has changed."""
        if self._every:
            self._behind = True
            self._news.tell()
            return
        for name in [name for name in self._known if name not in machine.cells]:
            self.note(name, None, machine.time_ms)
        for name, cell in machine.cells.items():
            self.note(name, cell, machine.time_ms)
