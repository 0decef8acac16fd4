"""Operations on a registry: `Admit`, `Readmit`, `Remove`, and the `Operation` that a program writes of its own.

Laws:

* An operation is pure and quick: it looks at the rows, and returns a `Step` or raises. It may be called again, on other
  rows, before anything of it is in the log.
* An exception drops that operation alone: its caller gets it, and no row is changed. `Reject` is the planned one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from .errors import Reject
from .rows import Change, need_id, row_bytes


class Step(NamedTuple):
    """An operation's effect: rows to write, as JSON can hold them, ids of rows to take away (those that are not there
    do no harm), and what `Registry.apply` returns once all of it is in the log."""

    put: Mapping[str, Any] = {}
    remove: Iterable[str] = ()
    result: Any = True


class Operation(Protocol):
    """An operation on the rows of a registry."""

    def apply(self, rows: Any, /) -> Step:
        """The effect on these rows (`Rows`, an immutable mapping: what is written, plus the operations before this one
        in its batch). Raises `Reject`, or what it likes."""


class Admit(NamedTuple):
    """Admit ``id`` with this row: True, or `Reject` if it is admitted already."""

    id: str
    value: Any = None

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            raise Reject(f"{self.id!r} is admitted already")
        return Step({self.id: self.value})


class Readmit(NamedTuple):
    """Ask whether ``id`` is admitted: True, and its row stays as it is; False: it is not, and must not come back.

    A registry in upgrade admits whom it does not know, with this row.
    """

    id: str
    value: Any = None

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            return Step()
        need_id(self.id)
        return Step({self.id: self.value}) if getattr(rows, "upgrade", False) else Step(result=False)


class Remove(NamedTuple):
    """Remove ``id``: True; False if it is not there, so that a repeated one does no harm."""

    id: str

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            return Step(remove=(self.id,))
        need_id(self.id)
        return Step(result=False)


def changes_of(step: object) -> dict[str, Change]:
    """The effect of a step on rows, as it is logged. Raises TypeError, ValueError, `TooLarge`."""
    if not isinstance(step, Step):
        raise TypeError(f"an operation's apply returns a Step, not {type(step).__name__}")
    put, remove, _ = step
    changes: dict[str, Change] = {need_id(id): row_bytes(value) for id, value in put.items()} if put else {}
    if remove:
        if isinstance(remove, str):
            raise TypeError(f"remove is several ids, not one: remove=({remove!r},)")
        for id in remove:
            if changes.get(need_id(id)) is not None:
                raise ValueError(f"a step either writes row {id!r} or removes it")
            changes[id] = None
    return changes
