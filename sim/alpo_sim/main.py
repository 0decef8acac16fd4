"""The entry point of `alpo-sim`, and the table of its commands.

A file of its own: help comes from this table and loads no command.
"""

from __future__ import annotations

from typing import Annotated

from alpo_cli.frame import App, Entry, lazy
from alpo_cli.options import version_option
from alpo_cli.output import stand_in_for_closed_streams

_WORLDS, _SCENARIOS, _PROOFS = "Random worlds", "Scenarios", "All of it"


def _entry(place: str, panel: str, help: str) -> Entry:
    return Entry(place.partition(":")[2], f"alpo_sim.commands.{place}", panel, help)


#: Every command, in the order of the help. The words are the first sentence of the command's own help.
TABLE = (
    _entry("worlds:run", _WORLDS, "Run one world"),
    _entry("worlds:seeds", _WORLDS, "Run many worlds, and stop at the first that breaks"),
    _entry("sweep:sweep", _WORLDS, "Run many worlds on Spark, and shrink what fails"),
    _entry(
        "scenarios:shrink", _SCENARIOS,
        "Run a seed that fails, and leave out of its schedule what is not needed to fail",
    ),
    _entry("scenarios:replay", _SCENARIOS, "Replay schedules"),
    _entry("scenarios:draw", _SCENARIOS, "Draw a run: servers as lanes, messages as arrows, terms as colours"),
    _entry("proofs:mutants", _PROOFS, "Break every rule, one at a time, until a check notices"),
    _entry("proofs:explore", _PROOFS, "Search every interleaving within bounds, breadth first"),
    _entry("elections:elections", _PROOFS, "Measure elections: tables and plots"),
)

app = App(name="alpo-sim", cls=lazy(TABLE), add_completion=True)


@app.callback(help="""
Whole clusters of the real protocol core on virtual time, under random faults, each run from one seed.

Examples:

    alpo-sim run --seed 7

    alpo-sim seeds 1..1000

    alpo-sim shrink 8 --mutation M3 -o found.txt && alpo-sim replay -v found.txt

    alpo-sim draw 7 -o run.svg
""")
def root(version: Annotated[bool, version_option("alpo-sim")] = False) -> None:
    """Take the options that stand before the command."""


def main() -> None:
    """Run the command line."""
    stand_in_for_closed_streams()
    app(prog_name="alpo-sim")


if __name__ == "__main__":
    main()
