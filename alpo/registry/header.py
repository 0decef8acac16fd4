"""The header of a registry: the variable that bears its name. Its last write is the election of its leader."""

from __future__ import annotations

from json import loads
from typing import Any, NamedTuple

from alpo.state.codec import ROW_MARK
from alpo.state.errors import NewerFormat
from alpo.state.machine import Machine
from alpo.state.shapes import Cell
from alpo.state.variable import need_name

from .errors import Damaged
from .rows import row_bytes

#: Format of headers and rows that this release writes, and the newest that it reads.
FORMAT = 1


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


def need_header(name: str, machine: Machine, rows: dict[str, bytes]) -> Cell | None:
    """The header's cell; None if there is no such registry. Raises `Damaged`, `NewerFormat`."""
    cell = machine.cells.get(name)
    if cell is not None:
        header_of(name, cell)
    elif rows:
        raise Damaged(f"registry {name!r} has {len(rows)} rows and no header: somebody took that away")
    return cell
