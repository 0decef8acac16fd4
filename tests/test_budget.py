"""A budget for the size of ALPO: lines, files, options, words.

A change that needs more raises the number here, and its commit says why. A change that needs less lowers it: what is
left over by more than a twentieth is a fault, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[1]
#: The most that there may be of each. The directory of logs and hosting took 1,245 lines of alpo and 1,500 of sim;
#: servers that host several logs, with their messages, files and clients, 1,400 more of alpo, and 230 for what
#: operators see of them; `--log` is an option of every command of a cluster. Rights and sizes of one log took 340 words
#: of the manual. Logs in Spark, in simulated clusters and in files by their names took 140 lines of alpo. Logs in the
#: soak and in an upgrade took 430 lines of tests. Heartbeats that need no step, and one timer for all logs, took 160
#: lines of alpo, and their comparison with steps 50 of tests. What many logs cost
#: took 60 words. Waiting until a removed server has left all logs took 45 lines of cli, an
#: option, and 15 words; tests of that, of deletions under way and of the end of a backup took 75 lines, of a stop 20,
#: of large bodies 50, of groups that end sessions 34, of closes 24, with 27 lines of alpo. Where a lone append's
#: processor time goes took 100 words. Telling servers that have left of deletions took 85 lines of alpo, 150 of tests.
BUDGET = {
    "lines of alpo": 53_915,
    "lines of cli": 10_895,
    "lines of sim": 19_155,
    "lines of tests": 73_385,
    "files of alpo, cli and sim": 342,
    "options of alpo and alpo-pipeline": 702,
    "words of docs and README": 66_220,
}
#: The part of a number that may be left over.
SPARE = 1 / 20


def sources(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


def lines(folder: str) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in sources(folder))


def options_of(group: Any) -> int:
    """The number of options below a group of commands; those of all commands count once a command."""
    if hasattr(group, "commands"):
        return sum(options_of(command) for command in group.commands.values())
    return sum(parameter.param_type_name == "option" for parameter in group.params)


def options() -> int:
    from alpo_cli.app import app
    from alpo_cli.pipeline.app import app as pipeline

    return options_of(typer.main.get_command(app)) + options_of(typer.main.get_command(pipeline))


def words() -> int:
    """Words that people write; tables that commands write into ``docs/generated`` do not count."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return sum(len(re.findall(r"\S+", page.read_text("utf-8"))) for page in pages)


MEASURES: dict[str, Callable[[], int]] = {
    "lines of alpo": lambda: lines("alpo"),
    "lines of cli": lambda: lines("cli"),
    "lines of sim": lambda: lines("sim"),
    "lines of tests": lambda: lines("tests"),
    "files of alpo, cli and sim": lambda: sum(1 for folder in ("alpo", "cli", "sim") for _ in sources(folder)),
    "options of alpo and alpo-pipeline": options,
    "words of docs and README": words,
}


@pytest.mark.parametrize("what", BUDGET)
def test_there_is_no_more_than_the_budget_has(what: str) -> None:
    there, most = MEASURES[what](), BUDGET[what]
    assert there <= most, f"{there:,} {what}; the budget has {most:,}: make it less, or raise the number and say why"
    assert there >= most * (1 - SPARE), f"{there:,} {what} only: lower the budget, {most:,}, to what is needed"
