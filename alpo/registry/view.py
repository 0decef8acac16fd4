"""`View`: a registry as processes see it that do not lead; and `ViewWatch`, which gives one after the other."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from alpo.client.arguments import AsyncIterated
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed
from alpo.state.shapes import Cell
from alpo.state.state import State

from .errors import Damaged
from .header import header_of, need_header, rows_of
from .mirror import Mirror
from .rows import Rows


@dataclass(frozen=True, slots=True)
class View:
    """A registry as of LSN ``version``; it never changes.

    ``leader``: what its leader said of itself; ``token``: the LSN at which it took over (0: there is no such registry
    yet, and no leader or row). ``changed``: ids of rows that were written or removed since the view before, of a watch;
    in its first, and without one, all.
    """

    name: str
    leader: Any
    rows: Rows
    version: int
    token: int
    changed: frozenset[str]
    _state: State = field(repr=False, compare=False)

    def watch(self) -> ViewWatch:
        """The registry as it is now, and then whenever it changed: an async iterator, for ``async with``."""
        return ViewWatch(self._state, self.name)


async def look(state: State, name: str) -> View:
    """The registry as it is now, linearizable. Raises as `Registry.view`."""
    machine = await state.folded()
    rows = rows_of(name, machine)
    return _view(state, name, need_header(name, machine, rows), rows, machine.lsn, frozenset(rows))


def _view(
    state: State, name: str, cell: Cell | None, rows: dict[str, bytes], lsn: int, changed: frozenset[str]
) -> View:
    leader = None if cell is None else header_of(name, cell).leader
    return View(name, leader, Rows(rows), lsn, 0 if cell is None else cell.version, changed, state)


class ViewWatch(AsyncIterated):
    """An async iterator over views of one registry. Enter it with ``async with``: else iterating raises RuntimeError.

    Of changes that come faster than views are taken, the next view has all: none is missed in the end. A batch of the
    leader is in a view whole, or not at all. Each view copies the table of rows, 1 ms for 55,000 or so.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        self._mirror = Mirror(state, name)
        self._mirror.on_header = self._new_header
        self._mirror.on_row = self._note
        self._mirror.on_jump = self._jumped
        self._mirror.on_end = self._end
        self._changed: set[str] = set()
        self._new = True
        self._entered = False
        self._error: AlpoError | None = None
        self._news = News()

    def __repr__(self) -> str:
        return f"<ViewWatch of registry {self._name!r}>"

    async def __aenter__(self) -> Self:
        self._mirror.open(await self._state.folded())
        self._changed.update(self._mirror.values)
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the watch: a task that waits for its next view stops iterating. Raises RuntimeError in another loop."""
        self._state.need_home()
        self._new, self._error = False, Closed("this watch was left")
        self._mirror.leave()
        self._news.tell()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> View:
        self._state.need_home()
        if not self._entered:
            raise RuntimeError("enter a watch with async with before iterating over it")
        while not self._new:
            if isinstance(self._error, Closed):
                raise StopAsyncIteration
            if self._error is not None:
                raise copy(self._error)
            await self._news.wait()
        self._new = False
        changed, self._changed = frozenset(self._changed), set()
        mirror = self._mirror
        if mirror.header is None and mirror.values:
            raise Damaged(f"registry {self._name!r} has {len(mirror.values)} rows and no header")
        return _view(self._state, self._name, mirror.header, dict(mirror.values), self._state.lsn, changed)

    # -- told by the mirror ---------------------------------------------------------------------------------

    def _new_header(self, cell: Cell | None) -> None:
        self._new = True
        self._news.tell()

    def _note(self, id: str) -> None:
        if id:
            self._changed.add(id)
        self._new = True
        self._news.tell()

    def _jumped(self, before: dict[str, bytes]) -> None:
        after = self._mirror.values
        self._changed.update(id for id in {**before, **after} if before.get(id) != after.get(id))
        self._new = True
        self._news.tell()

    def _end(self, error: AlpoError) -> None:
        self._error = error
        self._news.tell()
