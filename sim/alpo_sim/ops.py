"""Appends of a simulated client that are not yet resolved."""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """Append that is not yet resolved; ``body``: (count, joined payloads); ``expect``: the LSN that is to be the last,
    None if any will do."""

    serial: int
    body: tuple[int, bytes]
    expect: int | None = None


def consecutive(ops: list[Op]) -> bool:
    """True if the serials of ``ops`` leave none out."""
    return not ops or ops[-1].serial - ops[0].serial == len(ops) - 1
