"""`alpo-sim mutants`: every rule broken on purpose, to see that the checks notice."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn
from rich.table import Table

from alpo_cli.inputs import a_new_file
from alpo_cli.output import counted

from ..mutations import MUTATIONS
from ..mutations.hunt import Caught, hunts
from ..mutations.page import Noticed, page
from .output import CORES, Jobs, bar, writing


def mutants(
    only: Annotated[str, typer.Option("--only", metavar="M1,M2", help="These alone.")] = "",
    jobs: Jobs = CORES,
    seeds_max: Annotated[
        int | None, typer.Option("--seeds-max", min=1, help="Worlds after which a mutation counts as not caught.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the manual's page of all checks and mutations.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Break every rule, one at a time, until a check notices. Exit 1 if one goes unnoticed.

    Each mutation has a world of its own, small and bad in the way that matters; of one whose harm is to be seen some
    checks are left out that would notice sooner. Repeat one with: alpo-sim run --mutation NAME --seed SEED.

    Examples:

      alpo-sim mutants
      alpo-sim mutants --only M1,S4 --jobs 1
      alpo-sim mutants -o docs/generated/mutations.md
    """
    if out is not None:
        if only:
            raise typer.BadParameter("a page has all mutations; leave --only out", param_hint="--out")
        a_new_file(out, "--out")
    names = [name.strip() for name in only.split(",") if name.strip()] or list(MUTATIONS)
    unknown = [name for name in names if name not in MUTATIONS]
    if unknown:
        raise typer.BadParameter(f"no mutation {unknown[0]!r}; there are: {', '.join(MUTATIONS)}", param_hint="--only")
    began, found = time.monotonic(), dict[str, Caught]()
    with bar(TimeElapsedColumn(), Console(stderr=True)) as progress:
        task = progress.add_task("mutations", total=len(names))
        for caught in hunts(names, min(jobs, len(names)), seeds_max):
            found[caught.name] = caught
            progress.advance(task)
    wall_s = time.monotonic() - began
    results = [found[name] for name in names]
    if out is not None:
        with writing(out):
            out.write_text(page({each.name: Noticed(each.invariant, each.seeds) for each in results}), "utf-8")
    if as_json:
        typer.echo(json.dumps({"mutations": [_to_json(each) for each in results], "seconds": round(wall_s, 1)}))
    else:
        _show(results, wall_s)
    raise typer.Exit(0 if all(each.ok for each in results) else 1)


def _to_json(caught: Caught) -> dict[str, Any]:
    mutation = MUTATIONS[caught.name]
    about = {"rule": mutation.rule, "title": mutation.title, "harm": mutation.harm, "blind": list(mutation.blind)}
    return about | caught._asdict() | {"ok": caught.ok}


def _show(results: list[Caught], wall_s: float) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "rule", "broken so", "caught by"):
        table.add_column(heading, no_wrap=heading != "broken so")
    for heading in ("seeds", "core s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        mutation = MUTATIONS[each.name]
        by = each.invariant if each.ok else f"NOT CAUGHT {each.invariant}".rstrip()
        table.add_row(each.name, mutation.rule, mutation.title, by, str(each.seeds), f"{each.cpu_s:.2f}")
    Console().print(table)
    caught = sum(each.ok for each in results)
    worlds = sum(each.seeds for each in results)
    typer.echo(
        f"{caught} of {counted(len(results), 'mutation')} caught, in {counted(worlds, 'world')}, "
        f"{sum(each.cpu_s for each in results):.1f} core-seconds, {wall_s:.1f} s"
    )
    for each in results:
        if not each.ok:
            what = f"{each.name} in {counted(each.seeds, 'world')}: {each.invariant} {each.detail}".rstrip(": ")
            typer.echo(f"NOT CAUGHT  {what}", err=True)
