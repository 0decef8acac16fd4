"""The generated page of the manual, docs/generated/mutations.md: all checks, and all mutations with what noticed each.

`alpo-sim mutants -o FILE` writes it. A test compares the page in the repository with what is written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..checks import INVARIANTS
from . import MUTATIONS, Mutation

_ROW = re.compile(r"^\| ([A-Z]\d+[a-z]?) \|.*\| ([^|]+) \| ([^|]*) \| (\d+) \|$", re.MULTILINE)


class Noticed(NamedTuple):
    """The check that broke first, in the world of seed ``worlds``."""

    check: str
    worlds: int


def page(noticed: Mapping[str, Noticed]) -> str:
    """The page, as Markdown. ``noticed``: what noticed each mutation, by its name."""
    checks = [f"| {name} | {what} |" for name, what in INVARIANTS.items()]
    mutations = [_row(mutation, noticed[mutation.name]) for mutation in MUTATIONS.values()]
    return "\n".join((
        "# Checks and mutations", "",
        "Made by `alpo-sim mutants -o docs/generated/mutations.md`; see [the simulator](../simulator.md).", "",
        "## Checks", "",
        "| check | what holds |", "|---|---|", *checks, "",
        "## Mutations", "",
        "*Left out*: checks that would notice sooner, and are switched off so that the harm itself shows.",
        "*Worlds*: how many seeds (1, 2, 3 …) of the mutation's own world ran until one failed.", "",
        "| | rule | broken so | what goes wrong | caught by | left out | worlds |", "|---|---|---|---|---|---|---:|",
        *mutations, "",
    ))


def _row(mutation: Mutation, noticed: Noticed) -> str:
    cells = (mutation.name, mutation.rule, mutation.title, mutation.harm, noticed.check, ", ".join(mutation.blind))
    return "| " + " | ".join((*cells, str(noticed.worlds))) + " |"


def noticed_in(text: str) -> dict[str, Noticed]:
    """Read back from a page what noticed each mutation."""
    return {name: Noticed(check, int(worlds)) for name, check, _, worlds in _ROW.findall(text)}
