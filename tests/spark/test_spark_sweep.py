"""`alpo-sim sweep`: on executors as here, resumed after a kill, failures found and shrunk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pipeline_kit import fields as fields_of
from pipeline_kit import over
from pipeline_kit import pipeline as printed_by

from alpo.spark.jobs.fan import on_spark, run_here
from alpo_sim import sweeps
from alpo_sim.commands.output import mutated
from alpo_sim.main import app
from alpo_sim.replay import Replay, unmet
from alpo_sim.scenario_text import parse
from alpo_sim.sweeps import Worlds, code_digest, row_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = ("--servers", 3, "--seconds", 1)
pipeline, fields = partial(printed_by, app=app), partial(fields_of, app=app)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, without a Spark of its own."""
    over(monkeypatch, run_here)


def rows(directory: Path, *left_out: str) -> list[dict[str, Any]]:
    table = sweeps.read_rows(directory)
    return [{key: value for key, value in row.items() if key not in left_out} for row in table.to_pylist()]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("seeds-*")}


def test_a_mutation_is_found_and_shrunk_over_spark_and_replays_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executors hash strings otherwise than this process does: what a seed does must not depend on it."""
    over(monkeypatch, on_spark(spark.sparkContext))
    wanted = ("sweep", "1..3", "--mutation", "N5", "--to", tmp_path, "--range-seeds", 2)
    told = fields(*wanted)
    worlds = Worlds(None, None, "N5", code_digest())
    with mutated("N5"):
        again = [row_of(worlds, seed) for seed in range(1, 4)]
    assert rows(tmp_path, "cpu_s") == [{key: row[key] for key in row if key != "cpu_s"} for row in again]
    broke = [row["seed"] for row in again if row["outcome"] == "broke"]
    assert broke == [2] and [failure["seed"] for failure in told["failures"]] == broke
    for failure in told["failures"]:
        assert failure["repeat"] == f"alpo-sim run --seed {failure['seed']} --mutation N5"
        scenario = parse(Path(failure["scenario"]).read_text())
        assert f"shrink {failure['seed']} --mutation N5" in scenario.notes[0]
        with mutated("N5"):
            assert unmet(scenario, Replay(scenario).run()) == []


def test_a_clean_sweep_is_told_and_not_done_twice(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = pipeline("sweep", "1..5", *QUICK, "--to", tmp_path, "--range-seeds", 2)
    assert "5, 0 of them found done" in out and "BROKEN" not in out
    (first, *_) = rows(tmp_path)
    assert (first["seed"], first["outcome"], first["servers"], first["code"]) == (1, "held", 3, code_digest())
    assert json.loads(first["options"])["seconds"] == 1
    assert dict(first["events"])["leader"] >= 1 and sum(dict(first["faults_by_kind"]).values()) == first["faults"]
    before = files(tmp_path)
    over(monkeypatch, lambda do, tasks, on_done=None: pytest.fail("nothing is left to do"))
    told = fields("sweep", "1..5", *QUICK, "--to", tmp_path)
    assert (told["seeds"], told["seeds_found"], told["failed"], told["mutation"]) == (5, 5, 0, None)
    assert files(tmp_path) == before


def test_only_what_is_missing_is_done(here: None, tmp_path: Path) -> None:
    fields("sweep", "1..7", *QUICK, "--to", tmp_path, "--range-seeds", 2)
    whole, kept = rows(tmp_path, "cpu_s"), files(tmp_path)
    gone = sweeps.range_name(3, 4)
    (tmp_path / gone).unlink()
    (tmp_path / f"{gone}.0.tmp").write_bytes(b"half")
    told = fields("sweep", "1..7", *QUICK, "--to", tmp_path, "--range-seeds", 1)
    assert told["seeds_found"] == 5 and rows(tmp_path, "cpu_s") == whole
    now = files(tmp_path)
    assert {name: now[name] for name in kept if name != gone} == {n: kept[n] for n in kept if n != gone}
    assert not list(tmp_path.glob("*.tmp"))


def test_ranges_left_over() -> None:
    assert sweeps.missing_ranges([], 1, 5, 2) == [(1, 2), (3, 4), (5, 5)]
    assert sweeps.missing_ranges([(1, 2), (5, 5)], 1, 7, 10) == [(3, 4), (6, 7)]
    assert sweeps.missing_ranges([(3, 4)], 0, 4, 2) == [(0, 1), (2, 2)]
    assert sweeps.missing_ranges([(0, 9)], 0, 9, 3) == []


KILLED = """
import os, signal, sys
from alpo_sim import sweeps
from alpo_sim.main import app
from alpo.spark.jobs.fan import run_here
from contextlib import contextmanager

@contextmanager
def here(name, master):
    yield run_here

import alpo_cli.pipeline.spark
alpo_cli.pipeline.spark.runner = here
left = int(sys.argv[1])

def link(*names, before=os.link):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    before(*names)

os.link = link
app(sys.argv[2:])
"""


@pytest.mark.parametrize("writes", [3, *(pytest.param(writes, marks=pytest.mark.soak) for writes in (1, 2, 4))])
def test_killed_and_gone_on_with(here: None, tmp_path: Path, writes: int) -> None:
    """Killed as the ``writes``-th file is about to get its name: the wish, a range, a scenario."""
    wanted = ("sweep", "1..3", "--mutation", "N5", "--range-seeds", "2", "--to", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(writes), *wanted], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == -signal.SIGKILL, (done.stdout, done.stderr)
    found = sum(last - first + 1 for first, last in sweeps.done_ranges(tmp_path))
    assert found == min(3, 2 * max(0, writes - 2))
    assert list(tmp_path.rglob("*.tmp"))
    told = fields(*wanted)
    assert (told["seeds"], told["seeds_found"]) == (3, found) and told["failed"] == 1
    assert all(failure["scenario"] for failure in told["failures"])
    assert not list(tmp_path.rglob("*.tmp"))


def test_another_wish_is_refused(here: None, tmp_path: Path) -> None:
    fields("sweep", "1..2", *QUICK, "--to", tmp_path)
    for words, said in (
        (("1..3", *QUICK), "seeds was 1..2 and is now 1..3"),
        (("1..2", "--servers", 3, "--seconds", 2), "seconds was 1 and is now 2"),
        (("1..2", *QUICK, "--mutation", "M1"), "mutation was not given and is now M1"),
    ):
        assert said in pipeline("sweep", *words, "--to", tmp_path, code=2)
    wish = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps(wish | {"code": "0123456789abcdef"}))
    assert "code was 0123456789abcdef" in pipeline("sweep", "1..2", *QUICK, "--to", tmp_path, code=2)
    (tmp_path / "sweep.json").unlink()
    assert "no sweep.json" in pipeline("sweep", "1..2", *QUICK, "--to", tmp_path, code=2)


def test_one_sweep_at_a_time(here: None, tmp_path: Path) -> None:
    with sweeps.opened(tmp_path, {}):
        assert "another sweep is under way" in pipeline("sweep", "1..2", *QUICK, "--to", tmp_path, code=2)


def test_wrong_usage(here: None, tmp_path: Path) -> None:
    for words, said in (
        (("9..1",), "'9..1' is empty"), (("a..b",), "no range of seeds"), (("-1",), ""),
        (("1..2", "--mutation", "M99"), "no mutation 'M99'"), (("1..2", "--servers", "10"), ""),
        ((f"1..{1 << 63}",), "too large"),
    ):
        assert said in pipeline("sweep", *words, "--to", tmp_path / "new", code=2)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert "file" in pipeline("sweep", "1..2", "--to", tmp_path / "file", code=2)


def test_without_spark_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    out = pipeline("sweep", "1..2", *QUICK, "--to", tmp_path / "new", code=2)
    assert out == "alpo-sim: this needs Spark: pip install 'alpo[spark]'\n" and not (tmp_path / "new").exists()


def test_a_damaged_file_is_named(here: None, tmp_path: Path) -> None:
    fields("sweep", "1..4", *QUICK, "--to", tmp_path, "--range-seeds", 2)
    path = tmp_path / sweeps.range_name(3, 4)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert f"{path} cannot be read" in pipeline("sweep", "1..4", *QUICK, "--to", tmp_path, code=1)
    pq.write_table(pq.read_table(tmp_path / sweeps.range_name(1, 2)).slice(0, 1), path)
    assert f"{path} has 1 row;" in pipeline("sweep", "1..4", *QUICK, "--to", tmp_path, code=1)


def test_a_mutation_that_is_not_caught_is_a_failure(here: None, tmp_path: Path) -> None:
    """M2's worlds 1 to 3 hold; a sweep that finds nothing has not shown that the checks work."""
    out = pipeline("sweep", "1..2", "--mutation", "M2", "--seconds", 1, "--to", tmp_path, code=1)
    assert "mutation M2 was not caught in 2 seeds" in out


def test_other_code_on_an_executor_is_refused(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = chain([code_digest()], repeat("feedfeedfeedfeed"))  # the driver's, then executors'
    monkeypatch.setattr("alpo_sim.sweeps.code_digest", lambda: next(digests))
    assert "an executor has other code" in pipeline("sweep", "1..2", *QUICK, "--to", tmp_path, code=1)


def test_failures_of_the_core_are_told_and_count(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A world that ends by an error in the code, for which there is no scenario, counts as a failure."""
    from alpo_sim import world

    def fails(self: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(world.World, "run", fails)
    out = pipeline("sweep", "1..3", *QUICK, "--to", tmp_path, "--shrink-max", 1, code=1)
    assert "BROKEN  seed 1: crashed: KeyError: 'planted'" in out and "3 of 3 seeds failed" in out
    assert "alpo-sim run --seed 2 --servers 3 --seconds 1" in out
    assert "no scenario: on the core alone" in (tmp_path / "failures" / "seed-1.unreplayable").read_text()
    assert len(list((tmp_path / "failures").iterdir())) == 1
    fields("sweep", "1..3", *QUICK, "--to", tmp_path, code=1)
    assert len(list((tmp_path / "failures").iterdir())) == 3
