"""Random worlds: `alpo-sim run`, one seed; `alpo-sim seeds`, many seeds on all cores."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from alpo_cli.inputs import a_new_file
from alpo_cli.output import counted

from ..checks import INVARIANTS
from ..narrate import Tracer
from ..options import Options
from ..spread import spread
from ..stage import Clock
from ..world import Verdict, World, run_world
from .output import CORES, Jobs, Mutation, Seconds, Servers, bar, flags, mutated, writing

Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="What everything is drawn from; drawn itself if not given.")
]
Logs = Annotated[
    bool, typer.Option("--logs", help="Hosts that keep several logs, which operators create, rename and delete.")
]
SECONDS = 60


def run(
    seed: Seed = None,
    servers: Servers = None,
    seconds: Seconds = None,
    mutation: Mutation = None,
    logs: Logs = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write every step, message and fault here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run one world. Exit 1, and the invariant that broke, if one does.

    Examples:

      alpo-sim run --seed 7
      alpo-sim run --seed 7 --servers 5 --trace run.txt
      alpo-sim run --seed 7 --mutation M1
      alpo-sim run --seed 7 --logs
    """
    if logs and mutation:
        raise typer.BadParameter("a mutation has a world of its own, with several logs if that is what it is about")
    if trace is not None:
        a_new_file(trace, "--trace")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    with mutated(mutation or ""):
        world = drawn(seed, servers, seconds, True) if logs else world_of(seed, servers, seconds, mutation)
        if trace is None:
            verdict = run_world(world)
        else:
            with writing(trace), trace.open("w", encoding="utf-8") as file:
                world.stage.watchers.append(Tracer(world.stage, file))
                verdict = run_world(world)
    if as_json:
        typer.echo(json.dumps(to_json(verdict, mutation)))
    else:
        _show(verdict, repeat(verdict, mutation, servers, seconds, logs))
    raise typer.Exit(0 if verdict.ok else 1)


def drawn(seed: int, servers: int | None, seconds: int | None, logs: bool, *, record: bool = False) -> World:
    """The world that is drawn from a seed; ``logs``: with several logs."""
    if not logs:
        return World(Options.draw(seed, servers=servers, seconds=seconds or SECONDS), record=record)
    from ..logs.world import LogsWorld, draw

    return LogsWorld(draw(seed, servers=servers, seconds=seconds or SECONDS), record=record)


def world_of(
    seed: int, servers: int | None, seconds: int | None, mutation: str | None, *, record: bool = False
) -> World:
    """The world of a seed. With a mutation: the world in which the mutation shows, of a size and length of its own.

    ``record``: keep all actions in `Stage.record`.
    """
    if not mutation:
        return drawn(seed, servers, seconds, False, record=record)
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


def repeat(
    verdict: Verdict, mutation: str | None, servers: int | None, seconds: int | None, logs: bool = False
) -> str:
    """The command line that repeats a run."""
    return f"alpo-sim run --seed {verdict.options.seed}{flags(servers, seconds, mutation, logs)}"


def _show(verdict: Verdict, again: str) -> None:
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
    typer.echo(f"repeat  {again}", err=True)


SAY_EVERY_S = 30.0


def run_seed(seed: int, servers: int | None, seconds: int | None, logs: bool = False) -> Verdict:
    """Run the world of one seed."""
    return run_world(drawn(seed, servers, seconds, logs))


def verdicts(
    first: int, last: int, jobs: int, servers: int | None, seconds: int | None, until_s: float = math.inf,
    logs: bool = False,
) -> Iterator[Verdict]:
    """Yield a verdict for each seed, in order. No run begins after ``until_s`` of the monotonic clock."""
    seeds = takewhile(lambda seed: time.monotonic() < until_s, range(first, last + 1))
    yield from spread((partial(run_seed, seed, servers, seconds, logs) for seed in seeds), jobs, 2)


def parse_range(text: str) -> tuple[int, int]:
    """The ends of "A..B", or of "A". Raises `typer.BadParameter`."""
    first, dots, last = text.partition("..")
    try:
        ends = int(first), int(last) if dots else int(first)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no range of seeds; write 1..1000, or one number") from None
    if ends[0] > ends[1] or ends[0] < 0:
        raise typer.BadParameter(f"{text!r} is empty")
    return ends


def seeds(
    which: Annotated[
        str | None, typer.Argument(metavar="[A..B]", help="The seeds, both ends included; fresh ones if not given.")
    ] = None,
    jobs: Jobs = CORES,
    servers: Servers = None,
    seconds: Seconds = None,
    limit_s: Annotated[float | None, typer.Option("--limit-s", min=1, help="Begin no new seed after so long.")] = None,
    logs: Logs = False,
) -> None:
    """Run many worlds, and stop at the first that breaks. Exit 1 then, with the command that repeats it.

    Examples:

      alpo-sim seeds 1..1000
      alpo-sim seeds 1..200 --servers 5 --jobs 2
      alpo-sim seeds --limit-s 600
      alpo-sim seeds 1..500 --logs
    """
    if which is None and limit_s is None:
        raise typer.BadParameter("say which seeds (1..1000), or for how long (--limit-s 600) to take fresh ones")
    if which is None:
        first = random.SystemRandom().randrange(1 << 40)
        last = first + 10**9
        typer.echo(f"fresh seeds from {first} on")
    else:
        first, last = parse_range(which)
    until_s = math.inf if limit_s is None else time.monotonic() + limit_s
    told_s = time.monotonic()
    began, done, steps, cpu_s, acknowledged = time.monotonic(), 0, 0, 0.0, 0
    with bar() as progress:
        task = progress.add_task("seeds", total=last - first + 1 if which is not None else None)
        for verdict in verdicts(first, last, jobs, servers, seconds, until_s, logs):
            done += 1
            steps += verdict.steps
            cpu_s += verdict.cpu_s
            acknowledged += verdict.acknowledged
            progress.advance(task)
            if not progress.console.is_terminal and time.monotonic() - told_s >= SAY_EVERY_S:
                told_s = time.monotonic()
                typer.echo(f"{counted(done, 'seed')} so far, {steps:,} core steps", err=True)
            if not verdict.ok:
                progress.stop()
                typer.echo(f"BROKEN  seed {verdict.options.seed}: {verdict.invariant}: {verdict.detail}", err=True)
                typer.echo(f"repeat  {repeat(verdict, None, servers, seconds, logs)}", err=True)
                raise typer.Exit(1)
    if not done:
        raise typer.Exit(0)
    wall_s = time.monotonic() - began
    typer.echo(
        f"{counted(done, 'seed')}, every check held: {steps:,} core steps,"
        f" {counted(acknowledged, 'append')} acknowledged; "
        f"{done / wall_s:.2f} seeds/s, {cpu_s / done:.2f} core-seconds a seed, {steps / cpu_s:,.0f} steps a core-second"
    )
