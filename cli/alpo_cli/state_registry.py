"""Work of `alpo registry`: a registry made for a strict first start, or looked at from outside.

Law: nobody here ever leads a registry, so nobody who does is disturbed.
"""

from __future__ import annotations

from json import dumps
from typing import Any

from alpo.registry import Registry, View
from alpo.registry.rows import Header
from alpo.state import Changed, If, Put, State

from .exits import Failed
from .options import Target
from .output import Sink, escape, json_line, print_json, say, table
from .running import run
from .state_open import opened, write


def init(target: Target, name: str) -> None:
    """Make a registry that nobody has led yet. Raises Failed if it is there already."""
    header = Put(name, Header(None, False, False).encoded())

    async def step(state: State) -> View:
        before = await Registry.view(state, name)
        if before.token:
            raise _there(name, before.token)
        try:
            await state.commit([If(name, version=0)], [header])
        except Changed as error:
            raise _there(name, error.version) from error
        return await Registry.view(state, name)

    view = run(write(target, {"name": name, "leader": None, "version": None, "token": None, "count": None}, step))
    if target.json:
        print_json(_fields(view))
    else:
        say(f"registry {escape(name)} is there now, and nobody has led it yet")


def _there(name: str, lsn: int) -> Failed:
    return Failed(f"there is a registry {escape(name)} already, whose leader took over at LSN {lsn}")


def _fields(view: View) -> dict[str, Any]:
    return {
        "name": view.name, "leader": view.leader, "version": view.version, "token": view.token,
        "count": len(view.rows),
    }


async def look(target: Target, name: str) -> View:
    """The registry as it is now. Raises Failed if there is none."""
    async with opened(target) as state:
        view = await Registry.view(state, name)
    if not view.token:
        raise Failed(f"there is no registry {escape(name)}")
    return view


def show(target: Target, name: str) -> None:
    """Print who leads the registry, and how large it is."""
    view = run(look, target, name)
    if target.json:
        print_json(_fields(view))
        return
    leader = "-" if view.leader is None else _text(view.leader)
    table("", ["field", "value"], [
        ["registry", name], ["leader", leader], ["took over at LSN", str(view.token)], ["as of LSN", str(view.version)],
        ["rows", str(len(view.rows))],
    ])


async def rows(target: Target, name: str) -> None:
    """Print every row: its id, and its value as JSON."""
    view = await look(target, name)
    sink = Sink()
    lines = []
    for id in sorted(view.rows):
        if target.json:
            lines.append(json_line({"id": id, "value": view.rows[id]}))
        else:
            lines.append(f"{id}\t{escape(_text(view.rows[id])) if sink.terminal else _text(view.rows[id])}")
    await sink.write("".join(f"{line}\n" for line in lines).encode())


def _text(value: Any) -> str:
    return dumps(value, ensure_ascii=False, separators=(",", ":"))
