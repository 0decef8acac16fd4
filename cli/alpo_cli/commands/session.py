"""`alpo session list` and `alpo session drop`: who has appended, and forgetting a name."""

from __future__ import annotations

from typing import Annotated

import typer

import alpo

from ..frame import App
from ..options import Target, check_client, remember, with_target
from ..output import print_json, rfc3339, say, table
from ..running import run

app = App(
    callback=remember,
    help="Sessions: the clients that the cluster remembers."
         "\n\nExamples:\n\n    alpo session list",
)


async def list_all(target: Target) -> None:
    """Print every session, as a table or a JSON line each."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        sessions = await log.sessions()
    if target.json:
        for s in sessions:
            print_json({"client": s.client, "epoch": s.epoch, "last_serial": s.last_serial, "last_id": s.last_id,
                        "time": rfc3339(s.last_time)})
        return
    columns = ["client", "epoch", "last serial", "last id", "last append"]
    table("", columns, [[s.client, str(s.epoch or "-"), str(s.last_serial), str(s.last_id), rfc3339(s.last_time)]
                        for s in sessions])


async def drop_one(target: Target, name: str, epoch: int | None) -> None:
    """Forget the name; raises what the library raises."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        dropped = await log.drop_session(name, epoch)
    if target.json:
        print_json({"client": name, "epoch": dropped})
    else:
        say(f"session {name} (epoch {dropped}) is forgotten")


@app.command("list")
@with_target
def list_(target: Target) -> None:
    """List the sessions: client, epoch, last serial, last append.

    Examples:

        alpo session list

        alpo session list --json | jq -r .client
    """
    run(list_all, target)


@app.command()
@with_target
def drop(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The client name to forget.")],
    epoch: Annotated[int | None, typer.Option("--epoch", min=1, show_default=False,
                                              help="Only if this is its current epoch.")] = None,
) -> None:
    """Forget a named session; a program that still uses it is fenced.

    After this the cluster can no longer tell a late retry of that client from a new append.

    Examples:

        alpo session drop billing-7

        alpo session drop billing-7 --epoch 42
    """
    check_client(name, "NAME")
    run(drop_one, target, name, epoch)
