"""`alpo session list` and `alpo session drop`: the clients that the cluster remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from alpo.core.entries import is_random

from ..completing import complete_clients
from ..connecting import connected
from ..exits import Failed
from ..frame import App
from ..options import Target, check_client, remember, with_target
from ..output import escape, print_json, rfc3339, say, table
from ..running import run

if TYPE_CHECKING:
    from alpo.client.operator.sessions import SessionInfo

app = App(
    callback=remember,
    help="Sessions: the clients that the cluster remembers."
         "\n\nExamples:\n\n    alpo session list",
)


async def list_them(target: Target, every: bool) -> None:
    """Print the named sessions, or all, as a table or JSON lines. Raises the library's errors."""
    async with connected(target) as log:
        sessions = await log.sessions()
    shown = [s for s in sessions if every or not is_random(s.client)]
    if target.json:
        for s in shown:
            print_json(_keys(s))
        return
    columns = ["client", "epoch", "last serial", "last id", "last append"]
    table("", columns, [[s.client, str(s.epoch or "-"), str(s.last_serial), str(s.last_id), rfc3339(s.last_time)]
                        for s in shown])
    if others := len(sessions) - len(shown):
        say(f"and {others:,} of clients without a name (--all lists them too)")


def _keys(session: SessionInfo) -> dict[str, Any]:
    return {"client": session.client, "epoch": session.epoch, "last_serial": session.last_serial,
            "last_id": session.last_id, "time": rfc3339(session.last_time)}


async def drop_one(target: Target, name: str, epoch: int | None) -> None:
    """Drop the name's session. Raises the library's errors."""
    async with connected(target) as log:
        dropped = await log.drop_session(name, epoch)
    if target.json:
        print_json({"client": name, "epoch": dropped})
    else:
        say(f"session {escape(name)} (epoch {dropped}) is forgotten")


async def look_at(target: Target, name: str, epoch: int | None) -> None:
    """Print what dropping the name would forget. Raises Failed if that would be refused."""
    async with connected(target) as log:
        found = next((session for session in await log.sessions() if session.client == name), None)
    if found is None or is_random(name):
        raise Failed(f"there is no session {escape(name)}")
    if epoch not in (None, found.epoch):
        raise Failed(f"the session {escape(name)} has epoch {found.epoch}")
    if target.json:
        print_json({**_keys(found), "dry_run": True})
    else:
        say(f"would forget session {escape(name)} (epoch {found.epoch}): {found.last_serial:,} serials, the last at"
            f" {rfc3339(found.last_time)}; nothing was changed")


@app.command("list")
@with_target
def list_(
    target: Target,
    every: Annotated[bool, typer.Option("--all/--named", show_default=False,
                                        help="Also those of clients without a name, or (default) the named alone."
                                        )] = False,
) -> None:
    """List the sessions of named clients: client, epoch, last serial, last append.

    With --all also those of clients without a name: each `alpo append` without --client, each program that gave none.

    Examples:

        alpo session list

        alpo session list --all --json | jq -r .client
    """
    run(list_them, target, every)


@app.command()
@with_target
def drop(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_clients,
                                       help="The client name to forget.")],
    epoch: Annotated[int | None, typer.Option("--epoch", min=1, show_default=False,
                                              help="Only if this is its current epoch.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", show_default=False,
                                          help="Only say what would be forgotten.")] = False,
) -> None:
    """Forget a named session; a program that still uses it is fenced.

    After this the cluster can no longer tell a late retry of that client from a new append.

    Examples:

        alpo session drop billing-7 --dry-run

        alpo session drop billing-7

        alpo session drop billing-7 --epoch 42
    """
    check_client(name, "NAME")
    run(look_at if dry_run else drop_one, target, name, epoch)
