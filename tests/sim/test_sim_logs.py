"""Several logs on the same hosts: worlds in which every check holds, and in which enough happens."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from alpo.core.hosting.words import Deleted, HostMessage
from alpo_sim.logs.world import LogsWorld, draw
from alpo_sim.main import app
from alpo_sim.world import run_world


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 150))])
def test_every_check_holds(seed: int) -> None:
    verdict = run_world(LogsWorld(draw(seed, seconds=20)))
    assert verdict.ok, verdict


def test_a_server_that_left_and_started_again_runs_the_logs_that_still_need_it() -> None:
    verdict = run_world(LogsWorld(draw(530091, seconds=10)))
    assert verdict.ok, verdict


def test_a_mark_is_judged_by_the_list_that_its_leader_counted_by() -> None:
    """A paused leader counts, steps down, and takes another leader's list, in one step."""
    verdict = run_world(LogsWorld(draw(567511, seconds=10)))
    assert verdict.ok, verdict


class Heard(LogsWorld):
    """World that counts what servers that have left are told of deletions."""

    words = 0

    def _heard(self, id: int, peer: int, epoch: int, message: HostMessage) -> None:
        self.words += isinstance(message, Deleted)
        super()._heard(id, peer, epoch, message)


def test_a_server_that_left_hears_that_its_logs_are_deleted() -> None:
    world = Heard(draw(530005, seconds=10))
    verdict = run_world(world)
    assert verdict.ok and world.words, verdict


def test_logs_are_created_written_and_deleted_under_faults() -> None:
    """Else the checks would hold of nothing."""
    founded = deleted = acknowledged = lost = failed = 0
    for seed in (8, 11, 6, 18):
        world = LogsWorld(draw(seed, seconds=15))
        verdict = run_world(world)
        assert verdict.ok, verdict
        founded += len([log for log in world.logs.values() if log.lists.latest is not None])
        deleted += len(world.done)
        acknowledged += sum(log.history.acknowledged for log in world.logs.values())
        lost += world.faults.counts.get("lose store", 0)
        failed += world.faults.counts.get("fail log", 0)
    assert founded > 8 and deleted > 4 and acknowledged > 100 and lost > 1 and failed > 1


def test_a_seed_runs_alike_each_time() -> None:
    one, two = (LogsWorld(draw(6, seconds=5)) for _ in range(2))
    assert run_world(one)._replace(cpu_s=0) == run_world(two)._replace(cpu_s=0)
    assert one.directory.listings == two.directory.listings
    assert {n: log.history.acknowledged for n, log in one.logs.items()} == {
        n: log.history.acknowledged for n, log in two.logs.items()
    }


def test_they_are_had_from_the_command_line() -> None:
    result = CliRunner().invoke(app, ["run", "--seed", "6", "--seconds", "5", "--logs"])
    assert result.exit_code == 0 and "every check held" in result.output
    result = CliRunner().invoke(app, ["seeds", "6..7", "--seconds", "3", "--logs", "--jobs", "1"])
    assert result.exit_code == 0 and "2 seeds, every check held" in result.output
    result = CliRunner().invoke(app, ["run", "--logs", "--mutation", "L1"])
    assert result.exit_code == 2 and "a mutation has a world of its own" in result.output
