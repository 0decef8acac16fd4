"""The contents of a registry: `Rows`, an immutable mapping, how they and the header look in the log, and the errors;
`Mirror` keeps header and rows up to date; `View` is what processes see that do not lead, and `ViewWatch` gives one
after the other.

Laws:

* The header is the variable that bears the registry's name. Its last write is the election of its leader.
* As with `alpo.errors`: each error says what is known, and survives pickling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONEncoder, loads
from typing import Any, NamedTuple

from alpo.errors import AlpoError, TooLarge
from alpo.rsm.errors import NewerFormat
from alpo.rsm.watching import Watching
from alpo.state.codec import NAME_BYTES_MAX, ROW_MARK, valid_name
from alpo.state.machine import Cell, Machine
from alpo.state.state import State
from alpo.state.variable import VALUE_BYTES_MAX, need_name

#: Format of headers and rows that this release writes, and the newest that it reads.
FORMAT = 1
#: A row that is written as bytes, or taken away.
Change = bytes | None
_encode = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_UNCHANGED: Any = object()


class Deposed(AlpoError):
    """Another process leads this registry now, and the operation is not in the log. Repeating never helps: end, or
    recover anew. ``token``: ours; ``version``: the LSN at which the other took over (0: somebody took the header away).
    """

    def __init__(self, message: str, *, name: str, token: int, version: int) -> None:
        super().__init__(message)
        self.name = name
        self.token = token
        self.version = version


class NotInitialised(AlpoError):
    """There is no registry of this name, and a strict one makes none. Nothing was written. Either this is the wrong
    cluster, or its data is lost, or it is the first start."""


class Damaged(AlpoError):
    """Rows without a header, or a header or row that nobody can read: whatever the log holds under this name is no
    registry. Nothing was written."""


class Reject(AlpoError):
    """An operation's own "no": it raises this in its ``apply``, and changes nothing."""


class Overlay(Mapping[str, bytes]):
    """The rows that ``changes`` make of those in ``base``, both of which may change."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: Mapping[str, bytes], changes: Mapping[str, Change]) -> None:
        self._base = base
        self._changes = changes

    def __contains__(self, id: object) -> bool:
        change = self._changes.get(id, _UNCHANGED)  # type: ignore[call-overload]
        return id in self._base if change is _UNCHANGED else change is not None

    def __getitem__(self, id: str) -> bytes:
        value = self._changes.get(id, _UNCHANGED)
        if value is _UNCHANGED:
            return self._base[id]
        if value is None:
            raise KeyError(id)
        return bytes(value)

    def __iter__(self) -> Iterator[str]:
        for id in self._base:
            if self._changes.get(id, b"") is not None:
                yield id
        for id, value in self._changes.items():
            if value is not None and id not in self._base:
                yield id

    def __len__(self) -> int:
        grown = sum((value is not None) - (id in self._base) for id, value in self._changes.items())
        return len(self._base) + grown


class Rows(Mapping[str, Any]):
    """The rows of a registry: id -> value, in no particular order. It cannot be changed, and every look at a value
    makes it anew from its JSON: changing what it gives changes nothing.

    ``upgrade``: whether the registry admits whoever says that it was admitted before.
    """

    __slots__ = ("_values", "upgrade")

    def __init__(self, values: Mapping[str, bytes], upgrade: bool = False) -> None:
        self._values = values
        self.upgrade = upgrade

    def __contains__(self, id: object) -> bool:
        return id in self._values

    def __getitem__(self, id: str) -> Any:
        return row_json(id, self._values[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Rows({dict(self)!r})" if len(self) <= 10 else f"<Rows: {len(self)}>"


def row_json(id: str, value: bytes) -> Any:
    """The value of a row. Raises `Damaged`."""
    try:
        return loads(value)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"row {id!r} is no JSON: {error}") from error


def row_bytes(value: object) -> bytes:
    """JSON of a row, in UTF-8 and without spaces. Raises TypeError, ValueError, `TooLarge`."""
    data = _encode(value).encode()
    if len(data) > VALUE_BYTES_MAX:
        raise TooLarge(f"a row of {len(data)} bytes, where {VALUE_BYTES_MAX} is the most")
    return data


def need_id(id: object) -> str:
    """``id``, once checked: it may name a row. Raises TypeError, ValueError."""
    if not isinstance(id, str):
        raise TypeError(f"the id of a row is str, not {type(id).__name__}")
    if not valid_name(id) or ROW_MARK in id:
        raise ValueError(f"an id is 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters, not {id[:60]!r}")
    return id


class Header(NamedTuple):
    """A header: what the leader says of itself, and how it recovered."""

    leader: Any
    strict: bool
    upgrade: bool

    def encoded(self) -> bytes:
        """The header's value: JSON. Raises TypeError, ValueError, `TooLarge`."""
        flags = {"strict": self.strict, "upgrade": self.upgrade}
        return row_bytes({"leader": self.leader, "format": FORMAT, "flags": flags})


def header_of(name: str, cell: Cell) -> Header:
    """The header that this variable holds. Raises `Damaged`, `NewerFormat`."""
    try:
        fields = loads(cell.value)
        number, flags = fields["format"], fields["flags"]
        if type(number) is int and number > FORMAT:
            text = f"registry {name!r} is in format {number}; this release knows {FORMAT}"
            raise NewerFormat(f"{text}: use a newer release", lsn=cell.version, format=number)
        if number == FORMAT:
            return Header(fields["leader"], bool(flags["strict"]), bool(flags["upgrade"]))
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise Damaged(f"the variable {name!r} is no header of a registry")


def need_registry(name: object) -> str:
    """``name``, once checked: it may name a registry. Raises TypeError, ValueError."""
    if ROW_MARK in need_name(name):
        raise ValueError(f"the name of a registry has no NUL, unlike {name!r}")
    return str(name)


def rows_of(name: str, machine: Machine) -> dict[str, bytes]:
    """The rows of a registry, as they are folded."""
    prefix = name + ROW_MARK
    start = len(prefix)
    return {key[start:]: cell.value for key, cell in machine.cells.items() if key.startswith(prefix)}


def need_header(name: str, cell: Cell | None, rows: Mapping[str, bytes]) -> Header | None:
    """The header that ``cell`` holds; None if there is no such registry. Raises `Damaged`, `NewerFormat`."""
    if cell is not None:
        return header_of(name, cell)
    if rows:
        raise Damaged(f"registry {name!r} has {len(rows)} rows and no header: somebody took that away")
    return None


class Mirror:
    """The registry ``name`` as this process has folded it, from `open` until `close`.

    ``on_header`` is called before a new header (None: it is gone) is taken over, and may `close` the mirror, which then
    stays as it was; ``on_row`` after each row that was written or removed, and with "" after the header; ``on_end``
    once the folding has ended.
    """

    def __init__(
        self, state: State, name: str, on_header: Callable[[Cell | None], None], on_end: Callable[[AlpoError], None],
        on_row: Callable[[str], None] = lambda id: None,
    ) -> None:
        self._state = state
        self._name = name
        self._prefix = name + ROW_MARK
        self._start = len(self._prefix)
        self._open = False
        self._on_header = on_header
        self._on_end = on_end
        self._on_row = on_row
        self.values: dict[str, bytes] = {}
        self.header: Cell | None = None
        #: LSN of the last write to the header or a row.
        self.version = 0

    @property
    def token(self) -> int:
        """LSN of the header's last write; 0 without a header."""
        return 0 if self.header is None else self.header.version

    def open(self, machine: Machine) -> None:
        """Take what is folded now, and then every change."""
        self._open = True
        self.header = machine.cells.get(self._name)
        self.values.update(rows_of(self._name, machine))
        self.version = self.token
        self._state.subscribe(self)

    def close(self) -> None:
        """Take no more changes; `leave` follows."""
        self._open = False

    def leave(self) -> None:
        """Close, and be told no more. Not to be called by what the mirror calls: it is in the middle of telling."""
        self._open = False
        self._state.unsubscribe(self)

    # -- told by the state ---------------------------------------------------------------------------------

    def note(self, name: str, cell: Cell | None, time_ms: int) -> None:
        """Take a change of one variable."""
        if not self._open:
            return
        if name.startswith(self._prefix):
            id = name[self._start:]
            if cell is None:
                self.values.pop(id, None)
            else:
                self.values[id] = cell.value
        elif name == self._name:
            self._on_header(cell)
            if not self._open:
                return
            self.header = cell
            id = ""
        else:
            return
        self.version = self._state.lsn
        self._on_row(id)

    def jumped(self, machine: Machine) -> None:
        """Take a whole new state: what differs has changed."""
        cells = machine.cells
        header = cells.get(self._name)
        if (0 if header is None else header.version) != self.token:
            self.note(self._name, header, machine.time_ms)
        for name in [self._prefix + id for id in self.values if self._prefix + id not in cells]:
            self.note(name, None, machine.time_ms)
        for id, value in rows_of(self._name, machine).items():
            if self.values.get(id) != value:
                self.note(self._prefix + id, cells[self._prefix + id], machine.time_ms)

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended."""
        if self._open:
            self._on_end(error)


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
    return _view(state, name, machine.cells.get(name), rows, machine.lsn, frozenset(rows))


def _view(
    state: State, name: str, cell: Cell | None, rows: dict[str, bytes], lsn: int, changed: frozenset[str]
) -> View:
    header = need_header(name, cell, rows)
    leader, token = (None, 0) if header is None or cell is None else (header.leader, cell.version)
    return View(name, leader, Rows(rows), lsn, token, changed, state)


class ViewWatch(Watching[View]):
    """An async iterator over views of one registry. Enter it with ``async with``: else iterating raises RuntimeError.

    Of changes that come faster than views are taken, the next view has all: none is missed in the end. A batch of the
    leader is in a view whole, or not at all. Each view copies the table of rows, 1 ms for 55,000 or so.
    """

    def __init__(self, state: State, name: str) -> None:
        super().__init__(state.need_home)
        self._state = state
        self._name = name
        self._mirror = Mirror(state, name, self._new_header, self.ended, self._note)
        self._changed: set[str] = set()
        self._new = True

    def __repr__(self) -> str:
        return f"<ViewWatch of registry {self._name!r}>"

    async def enter(self, until_s: float | None = None) -> None:
        self._mirror.open(await self._state.folded(until_s=until_s))
        self._changed.update(self._mirror.values)
        self._entered = True

    def _leave(self) -> None:
        self._mirror.leave()

    def _take(self) -> View | None:
        if not self._new:
            return None
        self._new = False
        changed, self._changed = frozenset(self._changed), set()
        mirror = self._mirror
        return _view(self._state, self._name, mirror.header, dict(mirror.values), self._state.lsn, changed)

    # -- told by the mirror ---------------------------------------------------------------------------------

    def _new_header(self, cell: Cell | None) -> None:
        """Let the mirror take it over: `_note` follows."""

    def _note(self, id: str) -> None:
        if id:
            self._changed.add(id)
        self._new = True
        self._news.tell()
