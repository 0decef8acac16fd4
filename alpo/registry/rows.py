"""`Rows`: the rows of a registry as an immutable mapping, and what they look like in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from json import JSONEncoder, loads
from typing import Any

from alpo.errors import TooLarge
from alpo.state.codec import NAME_BYTES_MAX, ROW_MARK, valid_name
from alpo.state.variable import VALUE_BYTES_MAX

from .errors import Damaged

#: A row that is written as bytes, or taken away.
Change = bytes | None
_encode = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_UNCHANGED: Any = object()


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
