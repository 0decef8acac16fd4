"""The exhaustive search: exact numbers of states, the same in every process, and broken rules that it must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alpo.core.machine.journal import Session
from alpo_sim.explore import SPACES, Wanted
from alpo_sim.explore.messages import Bounds, Messages
from alpo_sim.explore.reigns import ReignBounds, Reigns
from alpo_sim.explore.search import Found, State, search
from alpo_sim.explore.state import LEFT_OUT, WAYS
from alpo_sim.explore.ways import lines
from alpo_sim.main import app
from alpo_sim.mutations import MUTATIONS
from alpo_sim.scenario import Expect
from alpo_sim.scenario_text import parse

pytestmark = pytest.mark.pure  # servers are frozen and thawed
ROOT = Path(__file__).parents[2]
SMALL = ("--world", "elections", "--terms", "1", "--timers", "1", "--entries", "0", "--crashes", "0", "--writes", "0")


def explored(world: str, wanted: Wanted, states_max: int = 1 << 62) -> Found:
    return search(SPACES[world](wanted), states_max=states_max)


def caught(world: str, wanted: Wanted, mutation: str) -> tuple[str, int]:
    """The check that fails under the mutation, and after how many steps."""
    with MUTATIONS[mutation].applied():
        space = SPACES[world](wanted)
        found = search(space)
        assert found.broken is not None
        told = list(lines(space, found.way))
        assert told[0].startswith("  1  ") and told[-1].startswith(f"{len(found.way):3}  ")
    return found.broken.invariant, len(found.way)


@pytest.mark.parametrize(
    ("world", "wanted", "states", "depth"),
    [
        ("elections", Wanted(terms=1, timers=1, entries=0, crashes=0, writes=1), 6946, 19),
        ("elections", Wanted(terms=1, timers=1, entries=0, crashes=1, writes=0), 6839, 14),
        ("start", Wanted(wipes=0), 58, 6),
        ("start", Wanted(wipes=0, writes=1), 503, 12),
        ("start", Wanted(wipes=0, crashes=1), 802, 7),
        ("sessions", Wanted(servers=2, terms=1, requests=1), 221, 5),
        ("replacement", Wanted(servers=2, terms=1, timers=1), 19, 3),
        ("reigns", Wanted(terms=1), 433, 5),
    ],
)
def test_a_small_world_is_searched_to_its_end(world: str, wanted: Wanted, states: int, depth: int) -> None:
    found = explored(world, wanted)
    assert found.exhausted
    assert (found.states, found.depth) == (states, depth)


def test_every_process_finds_the_same() -> None:
    told = []
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "alpo_sim.main", "explore", *SMALL, "--json"], cwd=ROOT, check=True,
            capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed},
        )
        told.append({key: value for key, value in json.loads(done.stdout).items() if key != "seconds"})
    assert told[0] == told[1]
    assert told[0]["frontier"] == 0 and told[0]["broken"] is None


@pytest.mark.parametrize(
    ("world", "wanted", "mutation", "invariant", "steps"),
    [
        ("start", Wanted(terms=1, timers=1, wipes=0), "N5", "first start", 8),
        pytest.param("replacement", Wanted(timers=1), "M12", "alarm", 4, marks=pytest.mark.soak),
        ("replacement", Wanted(timers=1), "N1", "members", 5),
        ("sessions", Wanted(terms=1, requests=2), "S2", "sessions", 4),
        ("sessions", Wanted(terms=1, requests=2), "P95", "refused for good", 4),
        pytest.param("sessions", Wanted(terms=2, requests=1), "M9", "equal tables", 4, marks=pytest.mark.soak),
        pytest.param("sessions", Wanted(terms=1, requests=2), "S4", "acknowledged", 4, marks=pytest.mark.soak),
    ],
)
def test_a_broken_rule_is_found_by_a_shortest_way(
    world: str, wanted: Wanted, mutation: str, invariant: str, steps: int
) -> None:
    assert caught(world, wanted, mutation) == (invariant, steps)


def test_the_search_ends_at_its_limit_and_says_what_is_left() -> None:
    found = explored("elections", Wanted(terms=2, timers=2), states_max=500)
    assert found.broken is None and not found.exhausted
    assert found.states >= 500 and found.frontier > 0


def test_what_is_left_out_of_a_state_is_there_to_be_left_out() -> None:
    """A name that the core no longer has would hide that its successor counts."""
    space = Messages(Bounds(terms=1, entries=0, timers=1))
    found: dict[str, set[str]] = {"Session": set(Session.__slots__)}
    search(space)
    for local, facts in enumerate(space.servers.facts):
        replica = space.servers.take(facts.me.id, local).replica
        assert replica is not None
        election, leadership = replica.election, replica.leadership
        peers = leadership.peers.values() if leadership is not None else ()
        reign: tuple[object, ...] = ()
        if replica.reign is not None:
            reign = (*vars(replica.reign).values(), replica.reign.changes.newcomers)
        for part in (replica, *vars(replica).values(), election.round, election.cycle, *peers, *reign):
            if hasattr(part, "__dict__"):
                found.setdefault(type(part).__name__, set()).update(vars(part))
    for name, attributes in LEFT_OUT.items():
        assert set(attributes) <= found[name], name
    assert set().union(*found.values()) >= WAYS


def test_a_lost_disk_is_replaced() -> None:
    """One way through the space "replacement": a new disk is listed, brought up to date, and votes."""
    space = SPACES["replacement"](Wanted(terms=1, timers=1))
    state, shown, been = space.first(), [], set()

    def states(kind: str, server: int, what: int = 0) -> list[State]:
        found = []
        for step in space.successors(state):
            action = space.actions[step.action]
            if step.state is None or step.state in been or action.kind != kind:
                continue
            if not server or action[1:] == (server, what):
                found.append(step.state)
        return found

    (state,) = states("wipe", 2)
    (state,) = states("miss", 1, 2)
    for _ in range(30):
        replica = space.servers.take(2, state[1]).replica
        assert replica is not None
        shown.append(replica.status_text)
        been.add(state)
        state = (states("deliver", 0) or [state])[-1]  # what was sent last arrives first
    assert list(dict.fromkeys(shown)) == ["EMPTY", "RECOVERING", "VOTING"]


def test_an_election_in_one_action_is_won() -> None:
    space = Reigns(ReignBounds(terms=1, requests=0))
    leads = [
        space.servers.facts[step.state[at]].leads
        for step in space.successors(space.first()) if step.state is not None for at in range(3)
    ]
    assert sum(leads) == 6


@pytest.mark.parametrize(
    ("arguments", "mutation", "invariant"),
    [
        (["start", "--terms", "1", "--timers", "1", "--wipes", "0"], "N5", "first start"),
        (["sessions", "--terms", "1", "--requests", "2"], "S4", "acknowledged"),
        (["replacement", "--timers", "1"], "N1", "members"),
    ],
)
def test_what_is_found_is_written_as_a_scenario(
    arguments: list[str], mutation: str, invariant: str, tmp_path: Path
) -> None:
    file = tmp_path / "found.txt"
    done = CliRunner().invoke(app, ["explore", "--world", *arguments, "--mutation", mutation, "-o", str(file)])
    assert done.exit_code == 1, done.output
    assert parse(file.read_text()).expects == (Expect("broken", invariant=invariant),)
    assert CliRunner().invoke(app, ["replay", str(file)]).exit_code == 0
    assert CliRunner().invoke(app, ["replay", "--whole-core", str(file)]).exit_code == 0


def test_what_no_schedule_shows_is_not_written(tmp_path: Path) -> None:
    """M9 leaves out the check by which the search finds it."""
    file = tmp_path / "found.txt"
    bounds = ["--terms", "2", "--requests", "1"]
    done = CliRunner().invoke(app, ["explore", "--world", "sessions", *bounds, "--mutation", "M9", "-o", str(file)])
    assert done.exit_code == 1 and not file.exists()
    assert "found.txt is not written: what was found cannot be had as a schedule" in done.output
