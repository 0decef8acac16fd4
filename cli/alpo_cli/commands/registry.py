"""`alpo registry`: a registry made for a strict first start, or looked at from outside.

Law: nobody here ever leads a registry, so nobody who does is disturbed.
"""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..exits import Failed
from ..options import Target, group, with_target
from ..output import Sink, escape, json_line
from ..running import run

if TYPE_CHECKING:
    from alpo.registry import View
    from alpo.state import State

app = group("Registries: who is admitted, as one leading process decides it.", "alpo registry show agents")

Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 512 bytes of UTF-8.")]


@app.command()
@with_target
def init(target: Target, name: Name) -> None:
    """Make a registry, for a first start of strict processes.

    A strict process never makes a registry itself: it cannot tell a first start from the wrong cluster, or from data
    that is lost. If there is one of this name already, the exit code is 1. It makes the state, too, if there is none.

    Examples:
        alpo registry init agents
    """
    from alpo.registry import Registry
    from alpo.registry.rows import Header
    from alpo.state import Changed, If, Put

    from ..state_open import check_name, write

    check_name(name)
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
    target.tell(_fields(view), f"registry {escape(name)} is there now, and nobody has led it yet")


def _there(name: str, lsn: int) -> Failed:
    return Failed(f"there is a registry {escape(name)} already, whose leader took over at LSN {lsn}")


def _fields(view: View) -> dict[str, Any]:
    return {
        "name": view.name, "leader": view.leader, "version": view.version, "token": view.token,
        "count": len(view.rows),
    }


@app.command()
@with_target
def show(target: Target, name: Name) -> None:
    """Show who leads a registry, since when, and how many rows it has.

    Examples:
        alpo registry show agents
        alpo registry show agents --json | jq -r .leader.host
    """
    view = run(_look, target, name)
    leader = "-" if view.leader is None else _text(view.leader)
    target.show([_fields(view)], ["field", "value"], [
        ["registry", name], ["leader", leader], ["took over at LSN", str(view.token)], ["as of LSN", str(view.version)],
        ["rows", str(len(view.rows))],
    ])


@app.command()
@with_target
def rows(target: Target, name: Name) -> None:
    """Print the rows of a registry, sorted: id, a tab, and the value as JSON.

    Examples:
        alpo registry rows agents
        alpo registry rows agents --json | jq -r 'select(.value.cpus > 16) | .id'
    """
    view, sink = run(_look, target, name), Sink()
    lines = []
    for id in sorted(view.rows):
        if target.json:
            lines.append(json_line({"id": id, "value": view.rows[id]}))
        else:
            lines.append(f"{id}\t{escape(_text(view.rows[id])) if sink.terminal else _text(view.rows[id])}")
    run(sink.write, "".join(f"{line}\n" for line in lines).encode())


async def _look(target: Target, name: str) -> View:
    """The registry as it is now. Raises Failed if there is none."""
    from alpo.registry import Registry

    from ..state_open import check_name, opened

    check_name(name)
    async with opened(target) as state:
        view = await Registry.view(state, name)
    if not view.token:
        raise Failed(f"there is no registry {escape(name)}")
    return view


def _text(value: Any) -> str:
    return dumps(value, ensure_ascii=False, separators=(",", ":"))
