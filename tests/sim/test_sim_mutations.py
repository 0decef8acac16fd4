"""Every mutation is caught, and the core as it is passes the very same worlds."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from some import some
from typer.testing import CliRunner

from alpo.core.ranks import Rank
from alpo_sim.checks import INVARIANTS
from alpo_sim.main import app
from alpo_sim.mutations import MUTATIONS, hunt, spared
from alpo_sim.mutations.mutation import BLIND, rewritten

pytestmark = pytest.mark.pure
#: First seed of the search, for mutations that show in few worlds only: a seed in which the mutation showed. When
#: worlds are drawn in another way, it shows some seeds later. `make soak` searches from seed 1 on (`alpo-sim mutants`).
FIRST = {
    "G2": 4, "M2": 3, "M3": 3, "M6": 3, "M9": 4, "M13": 2, "M14": 3, "S4": 2, "S4e": 4, "S9": 17, "S10": 21, "P3": 3,
    "P6": 2, "P7": 3, "P11": 3, "P12": 65, "P14": 6, "P16": 2, "P18": 3, "P19": 4, "P22": 2, "P33": 5, "P34": 31,
    "P42": 16, "P46": 4, "P57": 3, "P66": 4, "P67": 4, "P68": 4, "P71": 3, "P72": 3, "P81": 2, "P82": 2, "P83": 2,
    "P84": 2, "P85": 3, "P88": 4, "P92": 2, "W4": 9, "W8": 5, "W9": 51,
    "L5": 6, "L7": 3, "L8": 2, "L10": 21, "L11": 6, "L12": 3, "L13": 8, "L16": 3, "L17": 6,
}
#: One mutation for each different world; a few run every time, beside the fixed seeds, and all in the soak.
WORLDS = list({(m.options(FIRST.get(m.name, 1)), m.makes): m.name for m in MUTATIONS.values()}.values())


@pytest.mark.parametrize("name", some(MUTATIONS))
def test_caught(name: str) -> None:
    caught = hunt(name, first=FIRST.get(name, 1))
    print(f"{name}: {caught.invariant or 'nothing'} broke after {caught.seeds} worlds, {caught.cpu_s:.2f} core-seconds")
    assert caught.ok, caught


@pytest.mark.parametrize(("name", "worlds"), [
    *((name, 1) for name in WORLDS[::24]), *(pytest.param(name, 10, marks=pytest.mark.soak) for name in WORLDS),
])
def test_the_core_as_it_is_passes_the_same_worlds(name: str, worlds: int) -> None:
    spent = spared(name, worlds, first=FIRST.get(name, 1))
    assert spent.invariant == "", spent


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS.values() if "durable before sent" in m.blind])
def test_with_all_checks_on_what_is_not_durable_is_seen_as_it_leaves(mutation: Any) -> None:
    first = FIRST.get(mutation.name, 1)
    seen = [mutation.verdict(seed, blind=False).invariant for seed in range(first, first + 3)]
    assert "durable before sent" in seen or "first start" in seen


def everything() -> dict[tuple[str, ...], object]:
    """Whatever a mutation might replace: names of modules, of classes, and entries of dispatch tables."""
    found: dict[tuple[str, ...], object] = {}
    modules = [m for n, m in sorted(sys.modules.items()) if n.startswith(("alpo.core.", "alpo_sim."))]
    for module in modules:
        assert isinstance(module, ModuleType)
        for name, value in vars(module).items():
            found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.update({(module.__name__, name, key): held for key, held in vars(value).items()})
            elif isinstance(value, dict) and name.isupper():
                found.update({(module.__name__, name, str(key)): held for key, held in value.items()})
    return found


def changed(before: dict[tuple[str, ...], object]) -> list[tuple[str, ...]]:
    after = everything()
    return [key for key in before if after[key] is not before[key]]


def test_patches_are_undone() -> None:
    """A mutation leaves nothing behind, also if an exception ends it: the next mutation would include its patches."""
    before = everything()
    for name, mutation in MUTATIONS.items():
        with mutation.applied():
            assert len(changed(before)) >= len(mutation.patches), name
        with pytest.raises(KeyError), mutation.applied():
            raise KeyError
        assert changed(before) == [], name


def test_a_change_that_fits_the_core_no_longer_fails() -> None:
    with pytest.raises(LookupError, match=r"Rank\.log holds 'no such text' 0 times"):
        rewritten(Rank, "log", [("no such text", "")])


def test_names() -> None:
    for name, mutation in MUTATIONS.items():
        assert mutation.name == name and mutation.patches and mutation.harm
        assert set(mutation.caught_by) <= set(INVARIANTS) and mutation.caught_by
        assert set(mutation.blind) <= set(BLIND) and not set(mutation.blind) & set(mutation.caught_by)


# -- the command --------------------------------------------------------------------------------------------


def test_command_shows_a_table() -> None:
    result = CliRunner().invoke(app, ["mutants", "--only", "M5, S2", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "M5" in result.output and "S2" in result.output and "2 of 2 mutations caught" in result.output


def test_command_speaks_json() -> None:
    result = CliRunner().invoke(app, ["mutants", "--only", "M5", "--jobs", "1", "--json"])
    (found,) = json.loads(result.stdout)["mutations"]
    assert (found["name"], found["ok"], found["rule"]) == ("M5", True, "R14")


def test_command_fails_if_one_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MUTATIONS, "M5", replace(MUTATIONS["M5"], patches=()))
    result = CliRunner().invoke(app, ["mutants", "--only", "M5", "--jobs", "1", "--seeds-max", "2"])
    assert result.exit_code == 1
    assert "NOT CAUGHT" in result.output and "0 of 1 mutation caught" in result.output


def test_command_refuses_names_that_are_none() -> None:
    result = CliRunner().invoke(app, ["mutants", "--only", "M99"])
    assert result.exit_code == 2


def test_run_repeats_a_mutation_in_its_own_world() -> None:
    result = CliRunner().invoke(app, ["run", "--mutation", "M5", "--seed", "1"])
    assert result.exit_code == 1
    assert "leader completeness" in result.output and "--seed 1 --mutation M5" in result.output
