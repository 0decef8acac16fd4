"""`alpo-sim draw`: a run as a space-time diagram."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from alpo_cli.exits import UsageProblem
from alpo_cli.inputs import a_new_file, ending_of

from ..draw.layout import Picture, of_scenario, of_world
from ..draw.svg import svg_of
from ..scenario_text import parse
from ..words import ScenarioError
from .output import MutationAndWorld, Seconds, Servers, writing
from .output import mutated
from .run import world_of

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
        picture, notes = _scenario(Path(what))
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


def _scenario(path: Path) -> tuple[Picture, list[str]]:
    try:
        scenario = parse(path.read_text("utf-8"))
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, ScenarioError) as error:
        raise UsageProblem(f"{path}: {error}") from None
    with mutated(scenario.mutation):
        return of_scenario(scenario)
