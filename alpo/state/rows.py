"""`Rows`: variables that belong to another one, and can be written only by whoever holds that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from .codec import ROW_MARK
from .machine import Machine
from .variable import UNSET, Expunge, If, Operation, Put, Value, Variable, need_name


class Home(Protocol):
    """The state that holds the rows, as far as they need it."""

    async def fetch(self, name: str, *, local: bool = False, at_least: int | None = None) -> Variable: ...

    async def commit(self, guards: Iterable[If], operations: Iterable[Operation]) -> int: ...

    async def folded(self, *, local: bool = False) -> Machine: ...


class Rows:
    """The rows of the variable ``owner``. ``fence``: `Variable.created` of the owner, a lock's token, say: every write
    is refused, with `Changed`, once the owner is gone or was made anew. Without a fence rows can only be read.

    A row's name is any name of a variable. Its `Variable` carries the whole name: owner, NUL, row.
    """

    def __init__(self, state: Home, owner: str, fence: int | None) -> None:
        self._state = state
        self._owner = _simple(owner)
        self._fence = fence

    def __repr__(self) -> str:
        return f"<Rows of {self._owner!r}{'' if self._fence is None else f', fence {self._fence}'}>"

    def name(self, row: str) -> str:
        """The whole name of a row, for `State.commit`. Raises TypeError, ValueError."""
        return need_name(f"{self._owner}{ROW_MARK}{_simple(row)}")

    async def fetch(self, row: str, *, local: bool = False, at_least: int | None = None) -> Variable:
        """The row, as `State.fetch` gives a variable."""
        return await self._state.fetch(self.name(row), local=local, at_least=at_least)

    async def names(self, *, local: bool = False) -> list[str]:
        """The names of all rows, sorted, without the owner's. Raises as `State.fetch`."""
        machine = await self._state.folded(local=local)
        begin = self._owner + ROW_MARK
        return sorted(name[len(begin) :] for name in machine.cells if name.startswith(begin))

    async def put(
        self, row: str, value: Value | None = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> int:
        """Write a row, whatever is there; None takes it away. Returns the LSN. Raises as `State.commit`."""
        name = self.name(row)
        if value is None and json is UNSET:
            return await self._commit(Expunge(name))
        return await self._commit(Put(name, cast(Value, value), json=json, lease_s=lease_s))

    async def _commit(self, operation: Operation) -> int:
        if self._fence is None:
            raise ValueError(f"rows of {self._owner!r} are written with a fence: State.rows(owner, fence=…)")
        return await self._state.commit([If(self._owner, created=self._fence)], [operation])


def _simple(name: str) -> str:
    """``name``, once checked: no row's. Raises TypeError, ValueError."""
    if ROW_MARK in need_name(name):
        raise ValueError(f"{name!r} is the name of a row")
    return name
