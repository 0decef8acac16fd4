"""`alpo settings show` and `set`: limits that all servers share, changed through the log. `alpo clock accept`: an
operator's word that the members' clocks are right, though they have leapt ahead."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, cast

import typer

import alpo

from ..exits import UsageProblem, refuse
from ..options import Target, group, with_target
from ..running import ask, run

app = group("Settings: limits that all servers share. They are kept in the log.", "alpo settings show")

clock = group("The log's clock: the time that entries are given.", "alpo clock accept")


def _text(value: float) -> str:
    return f"{value:.15g}"


def parse(assignments: list[str]) -> dict[str, float]:
    """Parse NAME=VALUE arguments. Raises UsageProblem."""
    from alpo.client.operator.members import parse_setting

    wanted: dict[str, float] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        refuse(not equals, f"{text!r} is not NAME=VALUE")
        refuse(name in wanted, f"{name} is given twice")
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
    values = cast(dict[str, float], ask(target, lambda log: log.settings()))
    target.show([values], ["setting", "value"], [[name, _text(value)] for name, value in values.items()])


@app.command("set")
@with_target
def set_(
    target: Target,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE …",
                                                     help="Settings and their new values; all of them or none.")],
) -> None:
    """Change settings, on all servers at once.

    If another operator changes one of them at the same moment, nothing is changed and the command says so.

    Examples:
        alpo settings set payload_bytes_max=4194304
        alpo settings set window=4096 window_total=500000
    """
    wanted = parse(assignments)

    async def change(log: alpo.Log) -> tuple[dict[str, float], dict[str, float]]:
        before = cast(dict[str, float], await log.settings())
        try:
            return before, cast(dict[str, float], await log.change_settings(wanted, expected=before))
        except ValueError as error:
            raise UsageProblem(str(error)) from error

    before, after = ask(target, change)
    target.tell(after, "\n".join(f"{name}: {_text(before[name])} -> {_text(after[name])}" for name in wanted))


@clock.command()
@with_target
def accept(target: Target) -> None:
    """Believe the members' clocks, though they have leapt ahead.

    If the clocks of a majority leap ahead by more than an hour, the log's clock goes on as if they had not, because
    leases and sessions would end, and entries be cleaned as too old. Look at the clocks first (`alpo doctor`). If they
    are right, as after a pause of virtual machines, say so here; if they are wrong, set them right, and do nothing.

    Examples:
        alpo clock accept
    """
    async def believe() -> None:
        from alpo.client.operator.members import accept_clocks
        from alpo.client.servers import Servers, given_log, given_tls

        with closing(Servers(target.servers, tls=given_tls(None), log=given_log(None))) as servers:
            leapt_ms = await accept_clocks(servers, target.timeout_s)
        target.tell({"leapt_ms": leapt_ms}, f"the log's clock goes on {leapt_ms / 1000:.0f} s later" if leapt_ms else
                    "the clocks were believed already: nothing is changed")

    run(believe)
