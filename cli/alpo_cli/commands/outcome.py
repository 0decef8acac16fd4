"""`alpo outcome`: what became of an append."""

from __future__ import annotations

from typing import Annotated

import typer

import alpo
from alpo.core.entries import INT_MAX

from ..completing import complete_clients
from ..connecting import connected
from ..options import Target, check_client, with_target
from ..output import print_json
from ..running import run

_WORDS = {"not_appended": "not appended", "too_old": "too old to tell"}


async def ask(target: Target, client: str, serial: int, epoch: int) -> alpo.Outcome:
    """Ask the cluster for an append's outcome. Raises the library's errors."""
    async with connected(target) as log:
        return await log.outcome(client, serial, epoch=epoch)


@with_target
def outcome(
    target: Target,
    client: Annotated[str, typer.Argument(metavar="CLIENT", show_default=False, autocompletion=complete_clients,
                                          help="A name, or a random client's id.")],
    serial: Annotated[int, typer.Argument(metavar="SERIAL", min=1, max=INT_MAX, show_default=False,
                                          help="As the message of exit 3 gives it.")],
    epoch: Annotated[int, typer.Option("--epoch", metavar="E", min=0, max=INT_MAX, show_default="any",
                                       help="Of a name: the epoch that it was sent under, as that message gives"
                                            " it.")] = 0,
) -> None:
    """Tell what became of an append: appended at an LSN, not appended, or too old to tell.

    It is told as of now: what is still on its way to the cluster may be appended later. To make sure that the payloads
    are in the log, once, send them again: alpo append --client --serial --epoch.

    Examples:

        alpo outcome billing-7 42 --epoch 7

        alpo outcome '~01890a5d-ac96-774b-bcce-b302099a8057' 1 --json | jq -r .outcome
    """
    check_client(client, "CLIENT")
    found = run(ask, target, client, serial, epoch)
    if target.json:
        print_json({"outcome": found.outcome, "lsn": found.lsn, "birth": found.birth})
    else:
        print(_WORDS.get(found.outcome, f"appended at LSN {found.lsn}"))
