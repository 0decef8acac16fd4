"""Command line of `alpo import`; module `importing` of the parent package does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import Target, check_new_client, with_target
from ..running import run


@with_target
def import_(
    target: Target,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False,
                                                help="Where the lines are; without it, or -: stdin.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Append as this named client: a later run goes on where this one"
                                                    " ended.")] = None,
    json_lines: Annotated[bool, typer.Option("--json-lines", show_default=False,
                                             help="Lines are JSON objects, as `alpo read --json` and `alpo log export`"
                                                  " write them.")] = False,
) -> None:
    """Append each line of a file, or of stdin: the fastest way in, and one that can be gone on with.

    Not atomic. With --client the payload of line k has serial k: the same command again, after a stop of whatever kind,
    skips what is in the log and appends the rest, nothing twice. A name serves for one input, and for nothing else.

    Examples:

        alpo import access.log --client access-2026-01

        alpo log export monday.alpo | alpo import --json-lines

        zcat old.gz | alpo import --client old --json
    """
    if client is not None:
        check_new_client(client, "--client")
    named = None if file is None or str(file) == "-" else file
    from .. import importing as work

    run(work.import_all, target, work.Wanted(named, client, json_lines))
