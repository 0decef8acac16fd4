"""`Rows`: the rows of a registry as an immutable mapping; how they and the header look in the log; and the errors.

Laws:

* The header is the variable that bears the registry's name. Its last write is the election of its leader.
* As with `alpo.errors`: each error says what is known, and survives pickling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from json import JSONEncoder, loads
from typing import Any, NamedTuple

from alpo.errors import AlpoError, TooLarge
from alpo.state.codec import NAME_BYTES_MAX, ROW_MARK, valid_name
from alpo.state.errors import NewerFormat
from alpo.state.machine import Cell, Machine
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
