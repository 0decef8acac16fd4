"""Every scenario file has the outcome that it states, and only because of its mutation if it has one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alpo.core.members import MemberList
from alpo_sim.checks.members import MemberChecks
from alpo_sim.main import app
from alpo_sim.mutations import MUTATIONS
from alpo_sim.narrate import comments, lsn_words, narrated, serial_words
from alpo_sim.options import Options
from alpo_sim.replay import Replay, recorded, unmet
from alpo_sim.scenario import Expect, Scenario
from alpo_sim.scenario_text import parse, write
from alpo_sim.world import World, run_world

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
DRAFT = {"rank-by-id": "M1", "match-by-id": "M3", "guarantee-on-any-majority": "M2"}


def read(file: Path) -> Scenario:
    return parse(file.read_text(encoding="utf-8"))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize("file", [
    pytest.param(file, marks=[pytest.mark.pure] * bool(read(file).mutation), id=file.stem) for file in FILES
])
def test_it_comes_out_as_it_says(file: Path) -> None:
    scenario = read(file)
    if scenario.mutation:
        with MUTATIONS[scenario.mutation].applied():
            assert unmet(scenario, Replay(scenario).run()) == []
    else:
        assert unmet(scenario, Replay(scenario).run()) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_core_as_it_is_keeps_every_rule(file: Path) -> None:
    scenario = read(file)
    outcome = Replay(scenario, strict=False).run()
    assert outcome.invariant == "", outcome.detail
    if scenario.mutation:
        assert unmet(scenario, outcome) != []


def test_the_first_list_is_that_of_the_servers_that_founded_the_cluster() -> None:
    """The first server to start loses its disk, and the others start with another list. The checks must use that list,
    or they take a member for a server without entries."""
    replay = Replay(read(FOLDER / "start-on-a-lost-disk.txt"))
    replay.run()
    (lists,) = (each for each in replay.stage.watchers if isinstance(each, MemberChecks))
    states = [host.replica.first_start.state for host in replay.stage.hosts.values() if host.replica is not None]
    founded = [MemberList.from_plain(state.first_list) for state in states if state.cluster]
    assert founded == [lists.guaranteed[0][1]]


def test_the_three_flaws_of_the_draft_are_there() -> None:
    for name, mutation in DRAFT.items():
        scenario = read(FOLDER / f"{name}.txt")
        assert scenario.mutation == mutation
        assert len(scenario.lines) < 40


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_record_of_a_world_replays_to_the_step(seed: int) -> None:
    world = World(Options.draw(seed, seconds=2), record=True)
    run_world(world)
    once = Replay(recorded(world.stage), patterns=True)
    outcome = once.run()
    assert (outcome.problem, outcome.steps) == ("", world.stage.steps)
    assert once.safety.guaranteed == world.safety.guaranteed
    as_file = replace(recorded(world.stage), lines=tuple(outcome.done))
    again = Replay(parse(write(as_file)))
    assert (again.run().problem, again.stage.steps) == ("", world.stage.steps)
    assert again.safety.guaranteed == world.safety.guaranteed


@pytest.mark.pure
def test_what_happens_is_told_line_by_line() -> None:
    scenario = read(FOLDER / "rank-by-id.txt")
    with MUTATIONS["M1"].applied():
        told = comments(*narrated(scenario))
    assert len(told) == len(scenario.lines)
    assert any("leads term 2" in each for each in told)
    assert told[-1].startswith("LEADER COMPLETENESS")


SMALL = """alpo-sim scenario 1
servers 1
founded
prompt
500.001 tick 1
expect leader 1 term 1
expect guaranteed 1
expect last 1 1
expect knows 1 1
expect logs equal
"""


def test_serials_and_lsns_in_words() -> None:
    assert (serial_words(4, 3), serial_words(4, 1)) == ("serials 4 to 6", "serial 4")
    assert (lsn_words(range(7, 10)), lsn_words([7]), lsn_words([7, 8, 10])) == ("7 to 9", "7", "7, 8, 10")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("passive 1", "is leader"), ("leader 1 term 2", "in term 1"), ("guaranteed 2", "1 entries are guaranteed"),
        ("last 1 2", "ends at 1"), ("knows 1 0", "up to 1"), ("broken one log", "every check held"),
    ],
)
def test_an_expectation_can_fail(wrong: str, says: str) -> None:
    assert unmet(parse(SMALL), Replay(parse(SMALL)).run()) == []
    scenario = parse(SMALL + f"expect {wrong}\n")
    (complaint,) = unmet(scenario, Replay(scenario).run())
    assert says in complaint


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1 tick 1", "comes at 500.001 ms"), ("1 boot 1", "is up"), ("1 wipe 1", "is up"),
        ("1 step 1", "nothing waits"), ("1 persist 1", "no writes"), ("1 serve 1", "reads nothing"),
        ("1 crash 1 kept=1", "0 writes"),
        ("1 deliver 1>1 HandOver", "no HandOver is on its way"),
    ],
)
def test_what_is_impossible_is_said(line: str, says: str) -> None:
    scenario = parse(SMALL.replace("500.001 tick 1", line))
    outcome = Replay(scenario).run()
    assert says in outcome.problem
    assert "impossible" in unmet(scenario, outcome)[0]
    assert Replay(scenario, strict=False).run().problem == ""


# -- commands -----------------------------------------------------------------------------------------------


def test_replay_says_whether_it_came_out_as_expected(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(SMALL, encoding="utf-8")
    bad.write_text(SMALL.replace("term 1", "term 2"), encoding="utf-8")
    assert run("replay", str(good))[0] == 0
    code, output = run("replay", str(good), str(bad))
    assert code == 1
    assert "good.txt: as expected" in output and "bad.txt: WRONG" in output
    assert "1 leads term 1" in run("replay", "--verbose", str(good))[1]


@pytest.mark.pure
def test_replay_without_the_mutation() -> None:
    files = [str(FOLDER / f"{name}.txt") for name in DRAFT]
    assert run("replay", *files)[0] == 0
    assert run("replay", "--whole-core", *files)[0] == 0


def test_a_malformed_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.txt"
    file.write_text(SMALL.replace("tick 1", "tock 1"), encoding="utf-8")
    code, output = run("replay", str(file))
    assert code == 2
    assert f"{file}:5: 'tock' is no action; there are: boot" in output
    assert run("replay", str(tmp_path / "none.txt"))[0] == 2
    file.write_text(SMALL.replace("servers 1", "servers 1\nmutation M99"), encoding="utf-8")
    code, output = run("replay", str(file))
    assert code == 2
    assert "M99" in output


def test_expecting_nothing_to_break_is_the_default() -> None:
    assert Scenario(1).expects == (Expect("ok"),)
