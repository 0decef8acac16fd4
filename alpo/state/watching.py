"""`Watch`: the variables under a prefix as they are now, and then whenever they change."""

from __future__ import annotations

from collections import OrderedDict, deque

from alpo.rsm.errors import Behind
from alpo.rsm.folder import Folder
from alpo.rsm.machine import time_of
from alpo.rsm.watching import Watching

from .codec import ROW_MARK
from .folder import Watcher
from .machine import Cell, Machine
from .variable import Variable, variable_of

#: Most changes that wait for a watch of every change.
EVERY_MAX = 10_000


class Watch(Watching[Variable]):
    """An async iterator over variables whose names begin with a prefix: first those that are there, then each that
    changed. Enter it with ``async with``: else iterating raises RuntimeError.

    Of changes that come faster than they are taken, the latest of each variable is given; with ``every`` all of them,
    or `Behind` is raised. A variable that is gone has the value None. Renewals of leases are no changes. Rows are given
    only if the prefix names their owner (`State.rows`).
    """

    def __init__(self, folder: Folder[Machine, Watcher], prefix: str, every: bool) -> None:
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
