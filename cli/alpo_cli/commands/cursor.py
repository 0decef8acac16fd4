"""`alpo cursor set`, `list` and `drop`: named reader positions that hold cleaning back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import alpo
from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX
from alpo.core.machine.cursors import NAME_WANTED, valid_cursor
from alpo.core.settings import size_text as size

from ..exits import refuse
from ..options import Target, group, with_target
from ..output import escape
from ..running import ask, complete_cursors

app = group("Cursors: named positions of readers. What a reader needs is not cleaned.", "alpo cursor list")

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_cursors,
                                     help=f"1 to {CLIENT_BYTES_MAX} bytes of UTF-8.")]


def _check(name: str) -> None:
    refuse(not valid_cursor(name), f"NAME: {NAME_WANTED}")


async def _fields(log: alpo.Log, target: Target, name: str) -> dict[str, Any]:
    """JSON keys of a cursor, null for unknown values. Asks the cluster only if they are to be printed."""
    listed = await log.cursors() if target.json else []
    found = next((cursor for cursor in listed if cursor.name == name), None)
    return _keys(found) if found is not None else {"name": name, "lsn": None, "lag_bytes": None, "lag_s": None}


def _keys(cursor: alpo.CursorInfo) -> dict[str, Any]:
    return {"name": cursor.name, "lsn": cursor.lsn, "lag_bytes": cursor.lag_bytes, "lag_s": cursor.lag_s}


@app.command("set")
@with_target
def set_(
    target: Target, name: Name,
    lsn: Annotated[int, typer.Argument(min=1, max=INT_MAX, help="The next LSN that the reader needs.")],
) -> None:
    """Set a cursor, new or not: everything from LSN on is kept for its reader.

    Examples:
        alpo cursor set nightly-export 120001
    """
    _check(name)

    async def move(log: alpo.Log) -> dict[str, Any]:
        await log.set_cursor(name, lsn)
        return {**await _fields(log, target, name), "lsn": lsn}

    fields = ask(target, move)
    target.tell(fields, f"cursor {escape(name)} is at LSN {lsn}")


@app.command("list")
@with_target
def list_(target: Target) -> None:
    """List the cursors: where each stands and how far it lags.

    Examples:
        alpo cursor list
        alpo cursor list --json | jq 'select(.lag_s > 86400) | .name'
    """
    found = ask(target, lambda log: log.cursors())
    target.show(map(_keys, found), ["cursor", "LSN", "holds", "lag"],
                [[c.name, str(c.lsn), size(c.lag_bytes), f"{c.lag_s:.0f} s"] for c in found])


@app.command()
@with_target
def drop(target: Target, name: Name) -> None:
    """Forget a cursor: what only its reader needed may be cleaned.

    Examples:
        alpo cursor drop nightly-export
    """
    _check(name)

    async def forget(log: alpo.Log) -> dict[str, Any]:
        before = await _fields(log, target, name)
        return {**before, "lsn": await log.drop_cursor(name) or None}

    fields = ask(target, forget)
    target.tell(fields, f"cursor {escape(name)} is forgotten")
