"""`alpo settings show` and `alpo settings set`: limits that all servers share, changed through the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..connecting import connected
from ..exits import UsageProblem
from ..frame import App
from ..options import Target, remember, with_target
from ..output import print_json, say, table
from ..running import run

if TYPE_CHECKING:
    pass

app = App(
    callback=remember,
    help="Settings: limits that all servers share. They are kept in the log."
         "\n\nExamples:\n\n    alpo settings show",
)


async def ask(target: Target) -> dict[str, float]:
    """The present settings. Raises the library's errors."""
    async with connected(target) as log:
        return cast(dict[str, float], await log.settings())


async def change(target: Target, wanted: dict[str, float]) -> None:
    """Change settings, and print old and new values. Raises the library's errors; UsageProblem for impossible
    values."""
    async with connected(target) as log:
        before = cast(dict[str, float], await log.settings())
        try:
            after = cast(dict[str, float], await log.change_settings(wanted, expected=before))
        except ValueError as error:
            raise UsageProblem(str(error)) from error
    if target.json:
        print_json(dict(after))
        return
    for name in wanted:
        say(f"{name}: {_text(before[name])} -> {_text(after[name])}")


def _text(value: float) -> str:
    return f"{value:.15g}"


def parse(assignments: list[str]) -> dict[str, float]:
    """Parse NAME=VALUE arguments. Raises UsageProblem."""
    from alpo.client.operator.members import parse_setting

    wanted: dict[str, float] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageProblem(f"{text!r} is not NAME=VALUE")
        if name in wanted:
            raise UsageProblem(f"{name} is given twice")
        try:
            wanted[name] = parse_setting(name, value)
        except ValueError as error:
            raise UsageProblem(str(error)) from error
    return wanted


@app.command()
@with_target
def show(target: Target) -> None:
    """Show the settings.

    Examples:

        alpo settings show

        alpo settings show --json | jq .payload_bytes_max
    """
    values = run(ask, target)
    if target.json:
        print_json(dict(values))
    else:
        table("", ["setting", "value"], [[name, _text(value)] for name, value in values.items()])


@app.command("set")
@with_target
def set_(
    target: Target,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE …", show_default=False,
                                                     help="Settings and their new values; all of them or none.")],
) -> None:
    """Change settings, on all servers at once.

    If another operator changes one of them at the same moment, nothing is changed and the command says so.

    Examples:

        alpo settings set payload_bytes_max=4194304

        alpo settings set window=4096 window_total=500000
    """
    run(change, target, parse(assignments))
