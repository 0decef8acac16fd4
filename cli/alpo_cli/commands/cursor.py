"""`alpo cursor set`, `list` and `drop`: named reader positions that hold cleaning back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import alpo
from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX
from alpo.core.machine.cursors import NAME_WANTED, valid_cursor
from alpo.core.settings import size_text as size

from ..completing import complete_cursors
from ..connecting import connected
from ..exits import UsageProblem
from ..frame import App
from ..options import Target, remember, with_target
from ..output import escape, print_json, say, table
from ..running import run

app = App(
    callback=remember,
    help="Cursors: named positions of readers. What a reader needs is not cleaned."
         "\n\nExamples:\n\n    alpo cursor list",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_cursors,
                        help=f"1 to {CLIENT_BYTES_MAX} bytes of UTF-8.")
]


def _check(name: str) -> None:
    if not valid_cursor(name):
        raise UsageProblem(f"NAME: {NAME_WANTED}")


async def _set(target: Target, name: str, lsn: int) -> dict[str, Any]:
    """Set a cursor; returns its new position as JSON keys."""
    async with connected(target) as log:
        await log.set_cursor(name, lsn)
        return {**await _fields(log, target, name), "lsn": lsn}


async def _drop(target: Target, name: str) -> dict[str, Any]:
    """Drop a cursor; returns its last position as JSON keys."""
    async with connected(target) as log:
        before = await _fields(log, target, name)
        return {**before, "lsn": await log.drop_cursor(name) or None}


async def _fields(log: alpo.Log, target: Target, name: str) -> dict[str, Any]:
    """JSON keys of a cursor, null for unknown values. Asks the cluster only if they are to be printed."""
    listed = await log.cursors() if target.json else []
    found = next((cursor for cursor in listed if cursor.name == name), None)
    return _keys(found) if found is not None else {"name": name, "lsn": None, "lag_bytes": None, "lag_s": None}


def _keys(cursor: alpo.CursorInfo) -> dict[str, Any]:
    return {"name": cursor.name, "lsn": cursor.lsn, "lag_bytes": cursor.lag_bytes, "lag_s": cursor.lag_s}


async def _list(target: Target) -> list[alpo.CursorInfo]:
    async with connected(target) as log:
        return await log.cursors()


@app.command("set")
@with_target
def set_(
    target: Target, name: Name,
    lsn: Annotated[int, typer.Argument(metavar="LSN", min=1, max=INT_MAX, show_default=False,
                                       help="The next LSN that the reader needs.")],
) -> None:
    """Set a cursor, new or not: everything from LSN on is kept for its reader.

    Examples:

        alpo cursor set nightly-export 120001
    """
    _check(name)
    fields = run(_set, target, name, lsn)
    if target.json:
        print_json(fields)
    else:
        say(f"cursor {escape(name)} is at LSN {lsn}")


@app.command("list")
@with_target
def list_(target: Target) -> None:
    """List the cursors: where each stands and how far it lags.

    Examples:

        alpo cursor list

        alpo cursor list --json | jq 'select(.lag_s > 86400) | .name'
    """
    found = run(_list, target)
    if target.json:
        for c in found:
            print_json(_keys(c))
        return
    table("", ["cursor", "LSN", "holds", "lag"],
          [[c.name, str(c.lsn), size(c.lag_bytes), f"{c.lag_s:.0f} s"] for c in found])


@app.command()
@with_target
def drop(target: Target, name: Name) -> None:
    """Forget a cursor: what only its reader needed may be cleaned.

    Examples:

        alpo cursor drop nightly-export
    """
    _check(name)
    fields = run(_drop, target, name)
    if target.json:
        print_json(fields)
    else:
        say(f"cursor {escape(name)} is forgotten")
