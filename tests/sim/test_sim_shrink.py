"""A failing seed becomes a small schedule that fails in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from alpo_sim.commands.worlds import world_of
from alpo_sim.main import app
from alpo_sim.mutations import MUTATIONS
from alpo_sim.replay import Replay, recorded, unmet
from alpo_sim.scenario import Scenario, Tick
from alpo_sim.scenario_text import parse, write
from alpo_sim.shrink import CannotReplay, Shrinker, permuted, retimed, without_servers
from alpo_sim.stage import Boot
from alpo_sim.world import run_world

FOLDER = Path(__file__).parent.parent / "scenarios"
#: Breaks within a second or so, one seed in three.
MUTATION = "M3"


def failing() -> tuple[int, Scenario, str]:
    """The first seed that fails, its record, and what broke; the mutation must be in force."""
    for seed in range(1, 30):
        world = world_of(seed, None, 60, MUTATION, record=True)
        verdict = run_world(world)
        if not verdict.ok and verdict.virtual_s < 8:
            return seed, recorded(world.stage, MUTATION), verdict.invariant
    raise AssertionError(f"no seed shows {MUTATION}")


@pytest.mark.soak
@pytest.mark.pure
def test_a_failing_seed_becomes_a_small_schedule_that_fails_in_the_same_way() -> None:
    with MUTATIONS[MUTATION].applied():
        _, schedule, invariant = failing()
        small = Shrinker(schedule, invariant).run()
        assert len(small.lines) < min(100, len(schedule.lines) / 4)
        again = parse(write(small))
        assert unmet(again, Replay(again).run()) == []
    assert unmet(small, Replay(small, strict=False).run()) != []


@pytest.mark.pure
def test_the_best_so_far_is_valid_when_time_is_up() -> None:
    with MUTATIONS[MUTATION].applied():
        _, schedule, invariant = failing()
        small = Shrinker(schedule, invariant, limit_s=0).run()
        assert unmet(small, Replay(parse(write(small))).run()) == []


def test_what_does_not_fail_cannot_be_shrunk() -> None:
    schedule = parse((FOLDER / "leader-crash.txt").read_text(encoding="utf-8"))
    with pytest.raises(CannotReplay, match="every check held"):
        Shrinker(schedule, "one log").run()


def test_other_forms() -> None:
    schedule = parse((FOLDER / "rank-by-id.txt").read_text(encoding="utf-8"))
    orders = list(permuted(schedule))
    assert len(orders) == 6
    assert all(len(each.lines) == len(schedule.lines) for each in orders)
    fewer = without_servers(schedule, (1,))
    assert fewer.servers == 2
    assert 0 < len(fewer.lines) < len(schedule.lines)
    tidy = retimed(schedule, 1000)
    assert [line.what.at_us for line in tidy.lines[:3]] == [0, 1000, 2000]
    assert isinstance(tidy.lines[0].what, Tick) and not any(isinstance(line.what, Boot) for line in tidy.lines)


def test_a_seed_that_does_not_fail_is_said(tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["shrink", "3", "--seconds", "1", "-o", str(tmp_path / "x.txt")])
    assert result.exit_code == 1
    assert "does not fail" in result.output
    result = runner.invoke(app, ["shrink", "3", "--mutation", "M99", "-o", str(tmp_path / "x.txt")])
    assert result.exit_code == 2
    result = runner.invoke(app, ["shrink", "3", "-o", str(tmp_path / "nowhere" / "x.txt")])
    assert result.exit_code == 2


@pytest.mark.pure
def test_the_command_writes_a_file_that_replays(tmp_path: Path) -> None:
    with MUTATIONS[MUTATION].applied():
        seed, _, _ = failing()
    file = tmp_path / "found.txt"
    arguments = ["shrink", str(seed), "--mutation", MUTATION, "--limit-s", "3", "-o", str(file)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert f"# Made by: alpo-sim shrink {seed} --mutation {MUTATION}" in file.read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["replay", str(file)]).exit_code == 0
