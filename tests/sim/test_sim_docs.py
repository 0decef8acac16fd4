"""The simulator's page names every command, check, mutation and scenario there is."""

from __future__ import annotations

import re
from pathlib import Path

from alpo_sim.checks import INVARIANTS
from alpo_sim.main import TABLE
from alpo_sim.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "simulator.md").read_text()


def test_every_command_is_on_the_page() -> None:
    names = [entry.name for entry in TABLE]
    assert {"run", "seeds", "shrink", "replay", "draw", "mutants", "explore", "elections"} <= set(names)
    assert [name for name in names if f"alpo-sim {name}" not in PAGE] == []


def test_every_check_is_on_the_page() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE, re.MULTILINE))
    assert {name: rows.get(name) for name in INVARIANTS} == INVARIANTS


def test_every_mutation_is_on_the_page_with_its_harm() -> None:
    rows = re.findall(r"^\| ([MNSGPWH]\d+[a-z]?) \| .+? \| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    told = {name: (title, harm) for name, title, harm in rows}
    assert told == {m.name: (m.title, m.harm) for m in MUTATIONS.values()}


def test_every_mutation_is_caught_by_a_check_that_there_is() -> None:
    assert [m.name for m in MUTATIONS.values() if not set(m.caught_by) <= set(INVARIANTS)] == []


def test_every_scenario_is_told_of() -> None:
    told = PAGE + (ROOT / "docs" / "protocol.md").read_text()
    assert [file.name for file in sorted((ROOT / "tests" / "scenarios").glob("*.txt")) if file.name not in told] == []
