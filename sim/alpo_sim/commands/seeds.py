"""`alpo-sim seeds`: many seeds on all cores."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Annotated

import typer

from alpo_cli.output import counted

from ..options import Options
from ..spread import spread
from ..world import Verdict, World, run_world
from .output import CORES, Jobs, Seconds, Servers, bar
from .run import SECONDS, repeat

SAY_EVERY_S = 30.0


def run_seed(seed: int, servers: int | None, seconds: int | None) -> Verdict:
    """Run the world of one seed."""
    return run_world(World(Options.draw(seed, servers=servers, seconds=seconds or SECONDS)))


def verdicts(
    first: int, last: int, jobs: int, servers: int | None, seconds: int | None, until_s: float = math.inf
) -> Iterator[Verdict]:
    """Yield a verdict for each seed, in order. No run begins after ``until_s`` of the monotonic clock."""
    seeds = takewhile(lambda seed: time.monotonic() < until_s, range(first, last + 1))
    yield from spread((partial(run_seed, seed, servers, seconds) for seed in seeds), jobs, 2)


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
) -> None:
    """Run many worlds, and stop at the first that breaks. Exit 1 then, with the command that repeats it.

    Examples:

      alpo-sim seeds 1..1000
      alpo-sim seeds 1..200 --servers 5 --jobs 2
      alpo-sim seeds --limit-s 600
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
        for verdict in verdicts(first, last, jobs, servers, seconds, until_s):
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
                typer.echo(f"repeat  {repeat(verdict, None, servers, seconds)}", err=True)
                raise typer.Exit(1)
    if not done:
        raise typer.Exit(0)
    wall_s = time.monotonic() - began
    typer.echo(
        f"{counted(done, 'seed')}, every check held: {steps:,} core steps,"
        f" {counted(acknowledged, 'append')} acknowledged; "
        f"{done / wall_s:.2f} seeds/s, {cpu_s / done:.2f} core-seconds a seed, {steps / cpu_s:,.0f} steps a core-second"
    )
