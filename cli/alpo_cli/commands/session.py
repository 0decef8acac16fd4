"""`alpo session list` and `alpo session drop`: the clients that the cluster remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from alpo.core.entries import is_random

from ..exits import Failed
from ..options import Target, check_client, group, with_target
from ..output import escape, rfc3339, say
from ..running import ask, complete_clients

if TYPE_CHECKING:
    from alpo.client.operator.sessions import SessionInfo

app = group("Sessions: the clients that the cluster remembers.", "alpo session list")


def _keys(session: SessionInfo) -> dict[str, Any]:
    return {"client": session.client, "epoch": session.epoch, "last_serial": session.last_serial,
            "last_id": session.last_id, "time": rfc3339(session.last_time)}


def _look_at(target: Target, name: str, epoch: int | None) -> None:
    """Print what dropping the name would forget. Raises Failed if that would be refused."""
    found = next((session for session in ask(target, lambda log: log.sessions()) if session.client == name), None)
    if found is None or is_random(name):
        raise Failed(f"there is no session {escape(name)}")
    if epoch not in (None, found.epoch):
        raise Failed(f"the session {escape(name)} has epoch {found.epoch}")
    target.tell(
        {**_keys(found), "dry_run": True},
        f"would forget session {escape(name)} (epoch {found.epoch}): {found.last_serial:,} serials, the last at"
        f" {rfc3339(found.last_time)}; nothing was changed",
    )


@app.command("list")
@with_target
def list_(
    target: Target,
    every: Annotated[bool, typer.Option("--all/--named",
                                        help="Also those of clients without a name, or (default) the named alone."
                                        )] = False,
) -> None:
    """List the sessions of named clients: client, epoch, last serial, last append.

    With --all also those of clients without a name: each `alpo append` without --client, each program that gave none.

    Examples:
        alpo session list
        alpo session list --all --json | jq -r .client
    """
    sessions = ask(target, lambda log: log.sessions())
    shown = [s for s in sessions if every or not is_random(s.client)]
    target.show(map(_keys, shown), ["client", "epoch", "last serial", "last id", "last append"],
                [[s.client, str(s.epoch or "-"), str(s.last_serial), str(s.last_id), rfc3339(s.last_time)]
                 for s in shown])
    if not target.json and (others := len(sessions) - len(shown)):
        say(f"and {others:,} of clients without a name (--all lists them too)")


@app.command()
@with_target
def drop(
    target: Target,
    name: Annotated[str, typer.Argument(autocompletion=complete_clients, help="The client name to forget.")],
    epoch: Annotated[int | None, typer.Option("--epoch", min=1, help="Only if this is its current epoch.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be forgotten.")] = False,
) -> None:
    """Forget a named session; a program that still uses it is fenced.

    After this the cluster can no longer tell a late retry of that client from a new append.

    Examples:
        alpo session drop billing-7 --dry-run
        alpo session drop billing-7
        alpo session drop billing-7 --epoch 42
    """
    check_client(name, "NAME")
    if dry_run:
        return _look_at(target, name, epoch)
    dropped = ask(target, lambda log: log.drop_session(name, epoch))
    target.tell({"client": name, "epoch": dropped}, f"session {escape(name)} (epoch {dropped}) is forgotten")
