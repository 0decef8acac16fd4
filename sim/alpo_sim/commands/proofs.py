"""Proofs: `alpo-sim mutants`, every rule broken on purpose, and the page of the manual that it writes
(docs/generated/mutations.md, which a test compares with what is written here); `alpo-sim explore`, all that can happen
within bounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import TimeElapsedColumn
from rich.table import Table

from alpo_cli.inputs import a_new_file
from alpo_cli.output import counted

from ..checks import INVARIANTS
from ..explore import SPACES, Wanted
from ..explore.messages import Messages
from ..explore.reigns import Reigns
from ..explore.search import Found, search
from ..explore.ways import NoSchedule, lines, schedule
from ..mutations import MUTATIONS, Caught, hunts
from ..mutations import Mutation as BrokenRule
from ..mutations.mutation import require_pure
from ..narrate import comments, narrated
from ..scenario_text import write
from .output import CORES, Jobs, Mutation, bar, writing


class Noticed(NamedTuple):
    """The check that broke first, in the world of seed ``worlds``."""

    check: str
    worlds: int


def page(noticed: Mapping[str, Noticed]) -> str:
    """The page, as Markdown. ``noticed``: what noticed each mutation, by its name."""
    checks = [f"| {name} | {what} |" for name, what in INVARIANTS.items()]
    mutations = [_row(mutation, noticed[mutation.name]) for mutation in MUTATIONS.values()]
    return "\n".join((
        "# Checks and mutations", "",
        "Made by `alpo-sim mutants -o docs/generated/mutations.md`; see [the simulator](../simulator.md).", "",
        "## Checks", "",
        "| check | what holds |", "|---|---|", *checks, "",
        "## Mutations", "",
        "*Left out*: checks that would notice sooner, and are switched off so that the harm itself shows.",
        "*Worlds*: how many seeds (1, 2, 3 …) of the mutation's own world ran until one failed.", "",
        "| | rule | broken so | what goes wrong | caught by | left out | worlds |", "|---|---|---|---|---|---|---:|",
        *mutations, "",
    ))


def _row(mutation: BrokenRule, noticed: Noticed) -> str:
    cells = (mutation.name, mutation.rule, mutation.title, mutation.harm, noticed.check, ", ".join(mutation.blind))
    return "| " + " | ".join((*cells, str(noticed.worlds))) + " |"


def mutants(
    only: Annotated[str, typer.Option("--only", metavar="M1,M2", help="These alone.")] = "",
    jobs: Jobs = CORES,
    seeds_max: Annotated[
        int | None, typer.Option("--seeds-max", min=1, help="Worlds after which a mutation counts as not caught.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the manual's page of all checks and mutations.")
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
            raise typer.BadParameter("a page has all mutations; leave --only out", param_hint="--output")
        a_new_file(out, "--output")
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
        _show_hunts(results, wall_s)
    raise typer.Exit(0 if all(each.ok for each in results) else 1)


def _to_json(caught: Caught) -> dict[str, Any]:
    mutation = MUTATIONS[caught.name]
    about = {"rule": mutation.rule, "title": mutation.title, "harm": mutation.harm, "blind": list(mutation.blind)}
    return about | caught._asdict() | {"ok": caught.ok}


def _show_hunts(results: list[Caught], wall_s: float) -> None:
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


Bound = Annotated[int | None, typer.Option(min=0, help="Bound; the world's own by default.", show_default=False)]


def explore(
    world: Annotated[str, typer.Option("--world", help=f"{', '.join(SPACES)}, or all.")] = "all",
    servers: Annotated[int, typer.Option("--servers", min=2, max=5)] = 3,
    terms: Bound = None, entries: Bound = None, timers: Bound = None, crashes: Bound = None, wipes: Bound = None,
    writes: Bound = None, requests: Bound = None,
    late: Annotated[bool, typer.Option("--late", help="Messages also reach later processes of their target.")] = False,
    limit_s: Annotated[float, typer.Option("--limit-s", min=0.1, help="Processor time for each world.")] = 300.0,
    mutation: Mutation = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write what is found as a scenario file, and end there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a world on stdout.")] = False,
) -> None:
    """Search every interleaving within bounds, breadth first. Exit 1, with a shortest way there, if a check fails.

    Losses, copies and orders of messages are not bounded. Bounds: --terms; --entries appended; --timers that run out,
    --crashes and --wipes in all; --writes under way on one server (0: on disk at once); --requests of clients.

    Examples:

      alpo-sim explore --limit-s 60
      alpo-sim explore --world start --wipes 1
      alpo-sim explore --world reigns --mutation M2 -o found.txt
    """
    names = list(SPACES) if world == "all" else [world]
    if names[0] not in SPACES:
        raise typer.BadParameter(f"no world {world!r}: there are {', '.join(SPACES)}, all", param_hint="--world")
    if mutation is not None and mutation not in MUTATIONS:
        raise typer.BadParameter(f"no mutation {mutation!r}: there are {', '.join(MUTATIONS)}", param_hint="--mutation")
    if output is not None:
        a_new_file(output, "--output")
    require_pure()
    wanted = Wanted(servers, terms, entries, timers, crashes, wipes, writes, requests, late)
    with MUTATIONS[mutation].applied() if mutation else nullcontext():
        sound = True
        for name in names:
            space = SPACES[name](wanted)
            found = _one(name, space, limit_s, as_json)
            if found.broken is not None:
                sound = False
                if output is not None:
                    _write(output, space, found, mutation or "")
                    break
    raise typer.Exit(0 if sound else 1)


def _write(output: Path, space: Messages | Reigns, found: Found, mutation: str) -> None:
    """Write the way that was found as a scenario file, or say on stderr why it cannot be a schedule."""
    assert found.broken is not None
    notes = (f"Found by: alpo-sim explore, {len(found.way)} steps from the beginning: {found.broken.invariant}.",)
    try:
        scenario = schedule(space, found.way, mutation, notes)
    except NoSchedule as why:
        typer.echo(f"{output} is not written: what was found cannot be had as a schedule: {why}", err=True)
        return
    text = write(scenario, comments(*narrated(scenario)))
    with writing(output):
        output.write_text(text, encoding="utf-8")
    typer.echo(f"{output}: {counted(len(scenario.lines), 'line')}, {scenario.expects[0].invariant} breaks", err=True)


def _one(name: str, space: Messages | Reigns, limit_s: float, as_json: bool) -> Found:

    def tell(found: Found) -> None:
        typer.echo(f"{name}: {_numbers(found)}", err=True)

    began = time.monotonic()
    found = search(space, limit_s, tell)
    if as_json:
        fields = {"world": name, "bounds": space.bounds._asdict(), "broken": found.broken and found.broken.invariant}
        numbers = {k: v for k, v in found._asdict().items() if k not in ("broken", "way")}
        typer.echo(json.dumps(fields | numbers | {"way": list(lines(space, found.way))}))
        return found
    bounds = " ".join(f"{key}={value}" for key, value in space.bounds._asdict().items())
    typer.echo(f"{name}: {bounds}\n  {_numbers(found)}; {time.monotonic() - began:.0f} s")
    if found.broken is not None:
        typer.echo(f"  BROKEN  {found.broken.invariant}: {found.broken.detail}, after {len(found.way)} steps", err=True)
        for line in lines(space, found.way):
            typer.echo(f"  {line}", err=True)
    elif found.exhausted:
        typer.echo("  all of it: every check held")
    else:
        typer.echo(f"  time is up: every check held in what was visited, all states {found.depth} steps deep and less")
    return found


def _numbers(found: Found) -> str:
    speed = found.states / max(found.seconds, 0.001)
    return (
        f"{found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, "
        f"{found.frontier:,} not followed yet, {speed:,.0f} states/s"
    )
