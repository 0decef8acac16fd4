"""The simulator's page names every command and scenario there is; its generated page is what the code makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer import BadParameter

from alpo_cli.exits import UsageProblem
from alpo_sim.checks import INVARIANTS
from alpo_sim.commands.proofs import Noticed, mutants, page
from alpo_sim.main import TABLE
from alpo_sim.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "simulator.md").read_text()
GENERATED = (ROOT / "docs" / "generated" / "mutations.md").read_text()
#: A row: the mutation, its rule and harm, the check that noticed it, other checks, worlds.
ROW = re.compile(r"^\| ([A-Z]\d+[a-z]?) \|.*\| ([^|]+) \| [^|]* \| (\d+) \|$", re.MULTILINE)


def test_every_command_is_on_the_page() -> None:
    names = [entry.name for entry in TABLE]
    assert {"run", "seeds", "shrink", "replay", "draw", "mutants", "explore", "elections"} <= set(names)
    assert [name for name in names if f"alpo-sim {name}" not in PAGE] == []


def test_the_generated_page_is_what_the_code_makes_of_what_noticed_each_mutation() -> None:
    """Every check, and every mutation with its rule and harm. To hunt them all anew takes minutes."""
    noticed = {name: Noticed(check, int(worlds)) for name, check, worlds in ROW.findall(GENERATED)}
    assert page(noticed) == GENERATED
    assert [name for name, seen in noticed.items() if seen.check not in MUTATIONS[name].caught_by] == []


def test_a_page_of_some_mutations_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="leave --only out"):
        mutants(only="M1", out=tmp_path / "page.md")
    with pytest.raises(UsageProblem, match="there is no directory"):
        mutants(out=tmp_path / "missing" / "page.md")


def test_every_mutation_is_caught_by_a_check_that_there_is() -> None:
    assert [m.name for m in MUTATIONS.values() if not set(m.caught_by) <= set(INVARIANTS)] == []


def test_every_scenario_is_told_of() -> None:
    assert [file.name for file in sorted((ROOT / "tests" / "scenarios").glob("*.txt")) if file.name not in PAGE] == []
