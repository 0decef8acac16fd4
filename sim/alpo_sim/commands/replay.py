"""`alpo-sim replay`: scenario files on the core alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from alpo_cli.exits import UsageProblem
from alpo_cli.output import counted

from ..narrate import Narrator, narrated
from ..replay import Outcome, unmet
from ..scenario import Expect, Scenario
from ..scenario_text import parse, write
from ..words import ScenarioError
from .output import mutated


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
