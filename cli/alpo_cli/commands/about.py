"""`alpo help` and `alpo version`: --help and --version as commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from alpo import __version__

from ..frame import Wrong, did_you_mean
from ..options import Target, only_json
from ..output import print_json


def help_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", show_default=False,
                                                        help="A command, or a group and its command.")] = None,
) -> None:
    """Show the help of a command.

    Examples:

        alpo help append

        alpo help member add
    """
    here: Any = ctx.find_root()
    for word in command or ():
        names = here.command.list_commands(here) if isinstance(here.command, typer.core.TyperGroup) else []
        found = here.command.get_command(here, word) if word in names else None
        if found is None:
            raise Wrong(f"{here.command_path} has no command {word!r}{did_you_mean(word, names)}")
        here = typer.Context(found, info_name=word, parent=here)
    typer.echo(here.get_help())


@only_json
def version(target: Target) -> None:
    """Print the version.

    Examples:

        alpo version

        alpo version --json | jq -r .version
    """
    if target.json:
        print_json({"version": __version__})
    else:
        print(f"alpo {__version__}")
