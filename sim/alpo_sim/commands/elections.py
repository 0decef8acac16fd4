"""`alpo-sim elections`: how long a cluster is without a leader, beside Raft and the draft of 2012.

A file of its own: only this command may import `alpo_elections`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alpo_cli.inputs import a_new_directory

from .output import CORES, Jobs, bar, writing


def elections(
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for elections.md, elections.csv and img/.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Of every case; the slowest get a part of it.")] = 10_000,
    jobs: Jobs = CORES,
    corner: Annotated[
        str | None, typer.Option("--corner", metavar="TROUBLE:SEED", help="Play one bad world, and say what it is.")
    ] = None,
) -> None:
    """Measure elections: tables and plots.

    Examples:

      alpo-sim elections -o docs/generated
      alpo-sim elections -o /tmp/elections --runs 200
      alpo-sim elections --corner 'slow disk:463'
    """
    if corner is not None:
        return _corner(corner)
    if out is None:
        raise typer.BadParameter("--out is missing: a folder to write to")
    a_new_directory(out, "--out")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    from alpo_elections.cases import cases, measured, runs_of
    from alpo_elections.corners import corner_rows
    from alpo_elections.report import write

    wanted = cases()
    with bar() as progress:
        task = progress.add_task("runs", total=sum(runs_of(case, runs) for case in wanted))
        cells = {c.case: c for c in measured(wanted, runs, jobs, lambda count: progress.advance(task, count))}
        corners = list(corner_rows(runs, jobs))
    with writing(out):
        paths = write(out, cells, corners, f"alpo-sim elections -o docs/generated --runs {runs}")
    for path in paths:
        typer.echo(path)


def _corner(text: str) -> None:
    from alpo_elections.cases import NAMES
    from alpo_elections.corners import FAMILIES, PROTOCOLS, TIMEOUT_S, draw, play

    family, _, number = text.rpartition(":")
    if family not in FAMILIES or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} is none; write e.g. 'slow disk:463', of {', '.join(FAMILIES)}")
    corner = draw(family, int(number))
    typer.echo(corner.describe())
    for protocol in PROTOCOLS:
        heard_s = play(corner, protocol).heard_s
        found = "no leader within 60 T" if heard_s is None else f"all follow a leader after {heard_s / TIMEOUT_S:.2f} T"
        typer.echo(f"{NAMES[protocol]}: {found}")
