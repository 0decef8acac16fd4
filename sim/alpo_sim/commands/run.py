"""`alpo-sim run`: one seed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from alpo_cli.inputs import a_new_file
from alpo_cli.output import counted

from ..checks import INVARIANTS
from ..narrate import Tracer
from ..options import Options
from ..stage import Clock
from ..world import Verdict, World, run_world
from .output import Mutation, Seconds, Servers, flags, writing
from .output import mutated

Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="What everything is drawn from; drawn itself if not given.")
]
SECONDS = 60


def run(
    seed: Seed = None,
    servers: Servers = None,
    seconds: Seconds = None,
    mutation: Mutation = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write every step, message and fault here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run one world. Exit 1, and the invariant that broke, if one does.

    Examples:

      alpo-sim run --seed 7
      alpo-sim run --seed 7 --servers 5 --trace run.txt
      alpo-sim run --seed 7 --mutation M1
    """
    if trace is not None:
        a_new_file(trace, "--trace")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    with mutated(mutation or ""):
        world = world_of(seed, servers, seconds, mutation)
        if trace is None:
            verdict = run_world(world)
        else:
            with writing(trace), trace.open("w", encoding="utf-8") as file:
                world.stage.watchers.append(Tracer(world.stage, file))
                verdict = run_world(world)
    if as_json:
        typer.echo(json.dumps(to_json(verdict, mutation)))
    else:
        show(verdict, mutation, servers, seconds)
    raise typer.Exit(0 if verdict.ok else 1)


def world_of(
    seed: int, servers: int | None, seconds: int | None, mutation: str | None, *, record: bool = False
) -> World:
    """The world of a seed. With a mutation: the world in which the mutation shows, of a size and length of its own.

    ``record``: keep all actions in `Stage.record`.
    """
    if not mutation:
        return World(Options.draw(seed, servers=servers, seconds=seconds or SECONDS), record=record)
    from ..mutations import MUTATIONS

    options = MUTATIONS[mutation].options(seed)
    if servers is not None:
        options = replace(options, servers=servers)
    if seconds is not None:
        options = replace(options, seconds=seconds)
    world = MUTATIONS[mutation].makes(options)
    if record and world.stage.record is None:  # clocks were set so far, and nothing else happened
        world.stage.record = [Clock(0, h.id, h.rate, h.wall_offset_ms) for h in world.stage.hosts.values()]
    return world


def to_json(verdict: Verdict, mutation: str | None = None) -> dict[str, object]:
    """The object that `alpo-sim run --json` prints."""
    fields = verdict._asdict() | {"options": verdict.options.describe(), "ok": verdict.ok}
    return fields | ({"mutation": mutation} if mutation else {})


def repeat(verdict: Verdict, mutation: str | None, servers: int | None, seconds: int | None) -> str:
    """The command line that repeats a run."""
    return f"alpo-sim run --seed {verdict.options.seed}{flags(servers, seconds, mutation)}"


def show(verdict: Verdict, mutation: str | None, servers: int | None, seconds: int | None) -> None:
    """Print the result of a run; the invariant that broke goes to stderr."""
    o = verdict.options
    typer.echo(
        f"seed {o.seed}: {counted(o.servers, 'server')}, election timeout {o.election_timeout_us // 1000} ms, "
        f"{counted(verdict.faults, 'fault')} in {verdict.virtual_s:.1f} s of virtual time"
    )
    typer.echo(
        f"{verdict.steps:,} core steps in {verdict.cpu_s:.2f} s;"
        f" {counted(verdict.acknowledged, 'append')} acknowledged,"
        f" {counted(verdict.reads, 'read')}, {counted(verdict.entries, 'entry')} guaranteed"
        f" in {counted(verdict.terms, 'term')}"
    )
    if verdict.ok:
        typer.echo("every check held")
        return
    typer.echo(f"BROKEN  {verdict.invariant}: {verdict.detail}", err=True)
    typer.echo(f"        {INVARIANTS.get(verdict.invariant, '')}", err=True)
    typer.echo(f"repeat  {repeat(verdict, mutation, servers, seconds)}", err=True)
