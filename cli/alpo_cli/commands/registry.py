"""`alpo registry`: a registry made, or looked at; module `state_registry` of the parent package does the work."""

from __future__ import annotations

from typing import Annotated

import typer

from ..frame import App
from ..options import Target, remember, with_target
from ..running import run

app = App(
    callback=remember,
    help="Registries: who is admitted, as one leading process decides it."
         "\n\nExamples:\n\n    alpo registry show agents",
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="1 to 512 bytes of UTF-8.")]


@app.command()
@with_target
def init(target: Target, name: Name) -> None:
    """Make a registry, for a first start of strict processes.

    A strict process never makes a registry itself: it cannot tell a first start from the wrong cluster, or from data
    that is lost. If there is one of this name already, the exit code is 1. It makes the state, too, if there is none.

    Examples:

        alpo registry init agents
    """
    from .. import state_registry as work
    from ..state_open import check_name

    check_name(name)
    work.init(target, name)


@app.command()
@with_target
def show(target: Target, name: Name) -> None:
    """Show who leads a registry, since when, and how many rows it has.

    Examples:

        alpo registry show agents

        alpo registry show agents --json | jq -r .leader.host
    """
    from .. import state_registry as work
    from ..state_open import check_name

    check_name(name)
    work.show(target, name)


@app.command()
@with_target
def rows(target: Target, name: Name) -> None:
    """Print the rows of a registry, sorted: id, a tab, and the value as JSON.

    Examples:

        alpo registry rows agents

        alpo registry rows agents --json | jq -r 'select(.value.cpus > 16) | .id'
    """
    from .. import state_registry as work
    from ..state_open import check_name

    check_name(name)
    run(work.rows, target, name)
