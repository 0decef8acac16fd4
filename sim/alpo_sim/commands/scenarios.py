"""Schedules: `alpo-sim replay`, on the core alone; `alpo-sim shrink`, of a failing seed; `alpo-sim draw`, a picture."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from alpo_cli.exits import UsageProblem
from alpo_cli.inputs import a_new_file, ending_of
from alpo_cli.output import counted

from ..draw.layout import of_scenario, of_world
from ..draw.svg import svg_of
from ..narrate import Narrator, comments, narrated
from ..replay import Outcome, recorded, unmet
from ..scenario import Expect, Scenario
from ..scenario_text import parse, write
from ..shrink import CannotReplay, Progress, Shrinker
from ..words import ScenarioError
from ..world import Verdict, run_world
from .output import MutationAndWorld, Seconds, Servers, flags, mutated, writing
from .worlds import repeat, world_of


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Scenario files.", show_default=False)],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="What every line brings about.")] = False,
    whole_core: Annotated[
        bool,
        typer.Option("--whole-core", help="Without the mutation that the file names; lines that then cannot happen are "
                     "left out, and every check is to hold."),
    ] = False,
) -> None:
    """Replay schedules. Exit 0 if each comes out as its file expects, 1 if one does not, 2 if a file is no scenario.

    Examples:

      alpo-sim replay tests/scenarios/rank-by-id.txt
      alpo-sim replay -v tests/scenarios/rank-by-id.txt
      alpo-sim replay --whole-core tests/scenarios/*.txt
    """
    read = [(file, _read(file)) for file in files]
    wrong = 0
    for file, found in read:
        scenario = replace(found, mutation="", expects=(Expect("ok"),)) if whole_core else found
        with mutated(scenario.mutation):
            outcome, narrator = narrated(scenario, strict=not whole_core)
        if verbose:
            _tell(scenario, outcome, narrator)
        complaints = unmet(scenario, outcome)
        wrong += bool(complaints)
        for complaint in complaints:
            where = f"at {_line_text(scenario, outcome.at)!r}: " if outcome.problem or outcome.invariant else ""
            typer.echo(f"{file}: WRONG  {where}{complaint}", err=True)
        if not complaints:
            typer.echo(f"{file}: as expected  {summary(outcome)}")
    raise typer.Exit(1 if wrong else 0)


def summary(outcome: Outcome) -> str:
    """One line of text on the outcome of a replay."""
    lines, entries = counted(len(outcome.done), "line"), counted(outcome.guaranteed, "entry")
    done = f"{lines}, {outcome.steps} core steps, {entries} guaranteed; "
    return done + (f"{outcome.invariant} broke: {outcome.detail}" if outcome.invariant else "every check held")


def _read(file: Path) -> Scenario:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{file}: is not UTF-8") from error
    except ScenarioError as error:
        raise UsageProblem(f"{file}:{error.line}: {error.message}") from error


def _line_text(scenario: Scenario, at: int) -> str:
    if not 0 <= at < len(scenario.lines):
        return "the beginning"
    text = write(replace(scenario, lines=scenario.lines[at : at + 1], expects=()))
    return text.strip().splitlines()[-1]


def _tell(scenario: Scenario, outcome: Outcome, narrator: Narrator) -> None:
    for text in narrator.all.get(-1, []) if scenario.founded else []:
        typer.echo(f"      (before)  {text}")
    for at in range(outcome.at + 1):
        typer.echo(_line_text(scenario, at))
        for text in narrator.all.get(at, []):
            typer.echo(f"        {text}")


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


Output = Annotated[Path, typer.Option("--output", "-o", help="The picture: a name that ends in .svg.")]
From = Annotated[float | None, typer.Option("--from", metavar="MS", min=0, help="Begin at this virtual time.")]
To = Annotated[float | None, typer.Option("--to", metavar="MS", min=0, help="End at this virtual time.")]


def draw(
    what: Annotated[str, typer.Argument(metavar="SEED|SCENARIO", help="A seed, or a scenario file.")],
    output: Output,
    from_ms: From = None,
    to_ms: To = None,
    servers: Servers = None,
    seconds: Seconds = None,
    mutation: MutationAndWorld = "",
) -> None:
    """Draw a run: servers as lanes, messages as arrows, terms as colours.

    Of a seed, unless --from or --to says otherwise: its failure if it has one, else the first election and the first
    crash of a leader. Of a scenario: all of it.

    Examples:

      alpo-sim draw 7 -o run.svg
      alpo-sim draw 7 --servers 5 --from 2000 --to 2600 -o run.svg
      alpo-sim draw scenario.txt -o run.svg
    """
    ending_of(output, (".svg",), "--output")
    a_new_file(output, "--output", inputs=() if what.isdecimal() else (Path(what),))
    given: dict[str, float | str | None] = {
        "--from": from_ms, "--to": to_ms, "--servers": servers, "--seconds": seconds,
        "--mutation": mutation or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if what.isdecimal():
        if from_ms is not None and to_ms is not None and to_ms <= from_ms:
            raise typer.BadParameter("--to is not after --from", param_hint="--to")
        with mutated(mutation):
            picture, notes = of_world(
                world_of(int(what), servers, seconds, mutation, record=True), from_ms, to_ms
            )
    elif options:
        raise typer.BadParameter(f"{next(iter(options))} is for seeds; a scenario says it itself, and is drawn whole")
    else:
        scenario = _read(Path(what))
        with mutated(scenario.mutation):
            picture, notes = of_scenario(scenario)
    if not picture.sections:
        raise typer.BadParameter("nothing happens in that time", param_hint="--from")
    words = [word for name, value in options.items() for word in (name, f"{value:g}" if name in _TIMES else str(value))]
    title = shlex.join(["alpo-sim", "draw", what, *words, "-o", str(output)])
    with writing(output):
        output.write_text(svg_of(picture, title, notes), "utf-8")
    when, sections = picture.story.when_us, picture.sections
    first_ms, last_ms = when[sections[0].first] / 1000, when[sections[-1].points[-1]] / 1000
    typer.echo(f"{output}: {first_ms:,.1f} to {last_ms:,.1f} ms")
    if picture.story.failure is not None:
        typer.echo(f"BROKEN  {': '.join(picture.story.failure)}", err=True)


_TIMES = ("--from", "--to")
