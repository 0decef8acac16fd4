"""`alpo-sim shrink`: a failing seed as a small schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from alpo_cli.inputs import a_new_file
from alpo_cli.output import counted

from ..narrate import comments, narrated
from ..replay import recorded
from ..scenario import Scenario
from ..scenario_text import write
from ..shrink import CannotReplay, Progress, Shrinker
from ..world import Verdict, run_world
from .output import MutationAndWorld, Seconds, Servers, flags, writing
from .output import mutated
from .run import repeat, world_of


def shrink(
    seed: Annotated[int, typer.Argument(metavar="SEED", min=0, help="A seed that fails.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The scenario file to write.", show_default=False)],
    servers: Servers = None,
    seconds: Seconds = None,
    mutation: MutationAndWorld = "",
    limit_s: Annotated[float, typer.Option("--limit-s", min=1, help="Time to shrink in; then the best so far.")] = 120,
) -> None:
    """Run a seed that fails, and leave out of its schedule what is not needed to fail. Exit 1 if it does not fail.

    Examples:

      alpo-sim shrink 4711 -o found.txt
      alpo-sim shrink 4711 --servers 5 --seconds 20 -o found.txt
      alpo-sim shrink 2 --mutation M3 -o tests/scenarios/match-by-id.txt
    """
    a_new_file(output, "--output")
    console = Console(stderr=True)
    with mutated(mutation):
        with console.status(f"running seed {seed} …"):
            world = world_of(seed, servers, seconds, mutation, record=True)
            verdict = run_world(world)
        command = repeat(verdict, mutation or None, servers, seconds)
        if verdict.ok:
            typer.echo(f"seed {seed} does not fail: every check held ({command})", err=True)
            raise typer.Exit(1)
        typer.echo(f"seed {seed}: {verdict.invariant}: {verdict.detail}")
        schedule = recorded(world.stage, mutation)
        try:
            found = shrunk(schedule, verdict, limit_s, console)
        except CannotReplay as error:
            typer.echo(
                f"on the core alone it does not fail ({error}). What clients or the world itself complain of (no "
                f"progress; an answer that a client cannot have had) is not in a schedule: look at {command} --trace",
                err=True,
            )
            raise typer.Exit(1) from error
        text = file_text(found, seed, servers, seconds, mutation)
    with writing(output):
        output.write_text(text, encoding="utf-8")
    size = f"{counted(len(found.lines), 'line')}, {counted(found.servers, 'server')}"
    typer.echo(f"{output}: {size} (from {counted(len(schedule.lines), 'line')})")


def file_text(found: Scenario, seed: int, servers: int | None, seconds: int | None, mutation: str) -> str:
    """The text of a shrunk scenario's file, with the command it was made by and comments on what its lines bring about.
    The mutation must be in force."""
    origin = f"Made by: alpo-sim shrink {seed}{flags(servers, seconds, mutation)}"
    return write(replace(found, notes=(origin,)), comments(*narrated(found)))


def shrunk(schedule: Scenario, verdict: Verdict, limit_s: float, console: Console) -> Scenario:
    """Shrink a schedule, and show the progress. Raises `CannotReplay`."""
    with console.status("replaying …") as status:
        def show(progress: Progress) -> None:
            if progress.replays % 10 == 0:
                status.update(f"{progress.lines:,} lines left after {progress.replays:,} replays: {progress.phase} …")

        return Shrinker(schedule, verdict.invariant, limit_s=limit_s, on_progress=show).run()
