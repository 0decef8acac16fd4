"""`alpo-sim sweep`: many seeds on Spark's executors."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alpo import __version__
from alpo_cli.exits import Failed
from alpo_cli.inputs import a_new_directory
from alpo_cli.options import Target, only_json
from alpo_cli.output import Step, counted, escape, print_json, slow_progress, table
from alpo_cli.pipeline import spark

from .output import MutationAndWorld, Seconds, Servers, find_mutation
from .worlds import parse_range

if TYPE_CHECKING:
    from alpo.spark.jobs.fan import Runner

    from ..sweeps import Worlds

#: Most failures shown on a terminal.
_TOLD_MAX = 20
#: A seed is a number of 64 bits in a sweep's files.
_SEED_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options. ``first``, ``last``: seeds."""

    first: int
    last: int
    to: Path
    servers: int | None
    seconds: int | None
    mutation: str
    range_seeds: int
    shrink_max: int
    shrink_s: float
    master: str


@only_json
def sweep(
    target: Target,
    seeds: Annotated[str, typer.Argument(metavar="A..B", show_default=False, help="The seeds, both ends included.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", show_default=False,
                                     help="Where the results go: a directory that all executors see.")],
    servers: Servers = None,
    seconds: Seconds = None,
    mutation: MutationAndWorld = "",
    range_seeds: Annotated[int, typer.Option("--range-seeds", metavar="N", min=1, max=1_000_000,
                                             help="Seeds of one task and one file.")] = 25,
    shrink_max: Annotated[int, typer.Option("--shrink-max", metavar="N", min=0, max=1_000_000,
                                            help="Failures of each check that are shrunk; 0: none.")] = 20,
    shrink_s: Annotated[float, typer.Option("--shrink-s", metavar="S", min=1, max=86_400,
                                            help="Time to shrink one failure in; then the best so far.")] = 60,
    master: Annotated[str, typer.Option("--master", metavar="URL", show_default="spark-submit's, else local[*]",
                                        help="Where Spark runs the tasks.")] = "",
) -> None:
    """Run many worlds on Spark, and shrink what fails. A failure is saved with the command that repeats it.

    Needs alpo[spark]. It goes on where it was stopped, also by a kill: started again with the same seeds, options and
    directory it does what is missing. Another wish takes another directory, and so do other versions of the code.

    Exit code 1 if a seed failed. With --mutation seeds are to fail: exit code 1 if none did so by a check that is
    meant to see it (alpo-sim mutants lists them).

    Examples:

      alpo-sim sweep 1..20000 --to /mnt/sweep
      alpo-sim sweep 1..500 --servers 5 --seconds 20 --to five --json | jq .failed
      alpo-sim sweep 1..10 --mutation M3 --to caught && alpo-sim replay caught/failures/*.txt
    """
    first, last = parse_range(seeds)
    if last > _SEED_MAX:
        raise typer.BadParameter(f"{seeds!r} is too large: at most {_SEED_MAX}")
    a_new_directory(to, "--to")
    _run(target, Wanted(first, last, to, servers, seconds, mutation, range_seeds, shrink_max, shrink_s, master))


def _run(target: Target, wanted: Wanted) -> None:
    """Run missing seeds, shrink failures, and print the result. Raises Failed if a seed failed, or no mutation was
    caught."""
    find_mutation(wanted.mutation)
    spark.require()
    from .. import sweeps
    from ..sweeps import Worlds, code_digest

    began_s = time.monotonic()
    worlds = Worlds(wanted.servers, wanted.seconds, wanted.mutation, code_digest())
    wish = {
        "seeds": [wanted.first, wanted.last], "servers": wanted.servers, "seconds": wanted.seconds,
        "mutation": wanted.mutation, "alpo": __version__, "code": worlds.code,
    }
    with sweeps.opened(wanted.to, wish):
        done = sweeps.done_ranges(wanted.to)
        found = sum(last - first + 1 for first, last in done)
        missing = sweeps.missing_ranges(done, wanted.first, wanted.last, wanted.range_seeds)
        columns = ("seed", "outcome", "invariant", "detail", "repeat", "steps", "cpu_s")
        if missing or _to_shrink(wanted, _failed(sweeps.read_rows(wanted.to, columns).to_pylist())):
            with slow_progress() as step, spark.runner("alpo-sim sweep", wanted.master) as runner:
                _work(wanted, worlds, missing, runner, step)
        rows = sweeps.read_rows(wanted.to, columns).to_pylist()
    if [row["seed"] for row in rows] != list(range(wanted.first, wanted.last + 1)):
        raise Failed(f"{wanted.to} does not hold every seed once: were files put there, or taken away?")
    told = _told(wanted, rows, found, time.monotonic() - began_s)
    if target.json:
        print_json(told)
    else:
        _print(wanted, told)
    _judge(wanted, told)


def _work(wanted: Wanted, worlds: Worlds, missing: list[tuple[int, int]], runner: Runner, step: Step) -> None:
    from .. import sweeps
    from ..sweeps import RangeTask, ShrinkTask, run_range, shrink_seed

    to = str(wanted.to.resolve())
    runner(
        run_range, [RangeTask(to, worlds, *ends) for ends in missing], lambda done, all: step("sweeping", done, all)
    )
    failed = _failed(sweeps.read_rows(wanted.to, ("seed", "outcome", "invariant")).to_pylist())
    runner(
        shrink_seed, [ShrinkTask(to, worlds, seed, wanted.shrink_s) for seed in _to_shrink(wanted, failed)],
        lambda done, all: step("shrinking", done, all),
    )


def _failed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["outcome"] != "held"]


def _to_shrink(wanted: Wanted, failed: list[dict[str, Any]]) -> list[int]:
    """Seeds to shrink: the first ``shrink_max`` of every invariant, except those already shrunk."""
    seen: Counter[str] = Counter()
    seeds = []
    for row in failed:
        seen[row["invariant"]] += 1
        if seen[row["invariant"]] <= wanted.shrink_max and _scenario(wanted, row["seed"]) is None:
            seeds.append(row["seed"])
    return seeds


def _scenario(wanted: Wanted, seed: int) -> Path | None:
    from ..sweeps import found_path

    paths = (found_path(wanted.to, seed, replayable=replayable) for replayable in (True, False))
    return next((path for path in paths if path.exists()), None)


def _told(wanted: Wanted, rows: list[dict[str, Any]], found: int, took_s: float) -> dict[str, Any]:
    failures = []
    for row in _failed(rows):
        path = _scenario(wanted, row["seed"])
        failures.append({
            "seed": row["seed"], "invariant": row["invariant"], "detail": row["detail"],
            "scenario": str(path) if path is not None and path.suffix == ".txt" else None, "repeat": row["repeat"],
        })
    return {
        "sweep": str(wanted.to), "first_seed": wanted.first, "last_seed": wanted.last, "seeds": len(rows),
        "seeds_found": found, "held": len(rows) - len(failures), "failed": len(failures),
        "mutation": wanted.mutation or None, "steps": sum(row["steps"] for row in rows),
        "core_seconds": round(sum(row["cpu_s"] for row in rows), 1), "seconds": round(took_s, 3), "failures": failures,
    }


def _print(wanted: Wanted, told: dict[str, Any]) -> None:
    for failure in told["failures"][:_TOLD_MAX]:
        print(escape(f"BROKEN  seed {failure['seed']}: {failure['invariant']}: {failure['detail']}"))
        print(escape(f"  repeat    {failure['repeat']}"))
        if failure["scenario"]:
            print(escape(f"  scenario  {failure['scenario']}"))
    if len(told["failures"]) > _TOLD_MAX:
        print(f"and {len(told['failures']) - _TOLD_MAX:,} more; --json lists all")
    table(f"sweep {wanted.to}", ["", ""], [
        ["seeds", f"{told['seeds']:,}, {told['seeds_found']:,} of them found done"],
        ["every check held", f"{told['held']:,}"],
        ["failed", f"{told['failed']:,}"],
        ["core steps", f"{told['steps']:,}"],
        ["core-seconds", f"{told['core_seconds']:,}"],
        ["took", f"{told['seconds']:.1f} s"],
    ])


def _judge(wanted: Wanted, told: dict[str, Any]) -> None:
    mutation = find_mutation(wanted.mutation)
    if mutation is None:
        if told["failed"]:
            raise Failed(f"{told['failed']:,} of {counted(told['seeds'], 'seed')} failed")
        return
    if not any(failure["invariant"] in mutation.caught_by for failure in told["failures"]):
        raise Failed(
            f"mutation {wanted.mutation} was not caught in {counted(told['seeds'], 'seed')}"
            f" (by {' or '.join(mutation.caught_by)})"
        )
