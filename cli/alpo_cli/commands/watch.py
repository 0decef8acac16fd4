"""`alpo watch`: the members of a cluster, live.

A file of its own: help does without the package that does the work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Target, with_target
from ..running import run


@with_target
def watch(
    target: Target,
    count: Annotated[int | None, typer.Option("--count", min=1,
                                              help="End after N lines; print lines on a terminal too.")] = None,
) -> None:
    """Watch a cluster, live: who leads, what is wrong, how far each log goes, appends a second.

    On a terminal it fills the screen, and keys change what it shows: ? lists them, q ends it. Elsewhere, and with
    --json or --count, it prints a line a second. Servers that do not answer are asked again, for ever.

    Examples:
        alpo watch
        alpo watch --count 1
        alpo watch --json | jq --unbuffered -r '[.time, .leader, .appends_per_s] | @tsv'
    """
    from ..watch.showing import drawable, in_lines, on_terminal

    if target.json or count is not None or not drawable():
        run(in_lines, target, count)
    else:
        run(on_terminal, target)
