"""Test what `make bench` computes and refuses, without measuring; one short run of it is among the slow tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import against_yardstick as bench
import pytest
from bench_sides import REPOSITORY, Alpo, Case, Turn
from peer_load import KINDS
from peer_servers import PEERS
from processor_time import AnAppend, Meter, Sample, an_append, tree


def use(proc: Path, pid: int, threads: dict[int, int], children: str = "") -> None:
    """Lay out a process in a ``/proc`` of our own: nanoseconds of each thread."""
    for thread, ns in threads.items():
        task = proc / str(pid) / "task" / str(thread)
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"{ns} 77 3\n")
        (task / "children").write_text(children if thread == pid else "")


def test_a_thread_that_has_ended_counts_as_when_last_seen(tmp_path: Path) -> None:
    use(tmp_path, 10, {10: 1_000, 11: 200})
    meter = Meter(tmp_path)
    meter.sample([10])
    for name in ("schedstat", "children"):
        (tmp_path / "10/task/11" / name).unlink()
    (tmp_path / "10/task/11").rmdir()
    use(tmp_path, 10, {10: 1_500, 12: 40})
    meter.sample([10, 99])
    assert [sample.used_ns for sample in meter.samples] == [{10: 1_200}, {10: 1_740, 99: 0}]


def test_a_tree_is_a_process_and_all_below_it(tmp_path: Path) -> None:
    use(tmp_path, 10, {10: 1}, "11 12 ")
    use(tmp_path, 11, {11: 1}, "13 ")
    use(tmp_path, 12, {12: 1})
    assert tree(10, tmp_path) == [10, 11, 13, 12]


def test_an_append_takes_what_servers_used_and_of_the_load_what_its_middle_says() -> None:
    """The load (9) first imports for a second's worth, then uses half of what the servers use."""
    samples = [
        Sample(at, {1: 5_000 + at * 4_000, 2: at * 1_000, 3: at * 3_000, 9: (10**6 + at * 4_000) * (at > 0)})
        for at in range(11)
    ]
    assert an_append(samples, [[1], [2], [3]], 9, 10) == AnAppend(servers=8.0, leader=4.0, follower=2.0, load=4.0)
    assert an_append(samples, [[1, 2], [3]], 9, 10) == AnAppend(servers=8.0, leader=5.0, follower=3.0, load=4.0)
    seldom = [Sample(at, {1: at * 1_000, 9: min(at, 7) * 1_000}) for at in (0, 3, 7, 10)]  # Ends the load at 7 s.
    assert an_append(seldom, [[1]], 9, 1) == AnAppend(servers=10.0, leader=10.0, follower=0.0, load=10.0)
    assert an_append(samples[:1], [[1]], 9, 10) is None
    assert an_append([Sample(0, {}), Sample(1, {})], [[1]], 9, 10) is None


class Fake(Alpo):
    """A side with figures of its own."""

    def __init__(self, name: str, *figures: float, cpu_us: float | None = None) -> None:
        super().__init__(name, Path(sys.executable), None)
        self.figures = iter(figures)
        self.cpu_us = None if cpu_us is None else AnAppend(cpu_us, 4, 3, 2)

    def turn(self, case: Case, seconds: float) -> Turn:
        return Turn(next(self.figures), self.cpu_us)


class Bare:
    """The yardstick, which is no ALPO."""

    name = "yardstick"

    def turn(self, case: Case, seconds: float) -> Turn:
        return Turn(0.5, AnAppend(100, 50, 25, 10))


def test_sides_are_compared_with_the_yardstick_and_elsewhere_with_here(capsys: pytest.CaptureFixture[str]) -> None:
    sides: list[bench.Side] = [Bare(), Fake("alpo", 1.0, 0.6, 0.5, cpu_us=150), Fake("before", 0.9, 0.8, 1.0)]
    found = bench.as_fields(bench.CASES["lone"], bench.measure(bench.CASES["lone"], sides, 1.0, 3))
    assert capsys.readouterr().err.count("round 3 of 3") == 3
    assert found["sides"]["alpo"]["of"] == {"yardstick": {"ratio": 1.2, "range": [1.0, 2.0], "cpu_ratio": 1.5}}
    assert found["sides"]["before"]["of"]["alpo"] == {"ratio": 1.5, "range": [0.9, 2.0], "cpu_ratio": None}
    shown = bench.table(found, {"nats": "not installed"})
    assert "1.20 of yardstick [1.00-2.00], servers' time 1.50" in shown[3]
    assert "1.80 of yardstick" in shown[4] and "1.50 of alpo [0.90-2.00]" in shown[4]
    assert shown[5].split() == ["nats", "not", "installed"]


def test_the_blocking_client_is_compared_with_the_other_one_of_the_same_alpo() -> None:
    rows = bench.rows_of(bench.CASES["blocking"], [Bare(), Fake("alpo"), Fake("before")])
    assert [(row.name, row.bases) for row in rows] == [
        ("alpo", ()), ("alpo, blocking", ("alpo",)), ("before", ()), ("before, blocking", ("before",)),
    ]


@pytest.mark.parametrize(("arguments", "said"), [
    (["--cases", "lone,none"], "no case none; there are small, kib, lone"),
    (["--also", "nowhere"], "nowhere is no checkout of ALPO and no Python interpreter"),
    (["--also", f"alpo={REPOSITORY}"], "sides of the same name: alpo, alpo; give --also NAME=PATH"),
    (["--yardstick", "no/run.py"], "no yardstick at no/run.py: give --yardstick PATH/run.py (or none)"),
    (["--peers", "paxos"], "invalid choice: 'paxos'"),
])
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.sides_of(bench.parse(arguments))
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_peer_that_is_missing_is_left_out_or_refused_if_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench.peers_of(None, None) == ([], {})
    _, skipped = bench.peers_of([], None)
    assert skipped["etcd"] == skipped["nats"] == "not installed"
    with pytest.raises(SystemExit) as ended:
        bench.peers_of(["etcd"], None)
    assert ended.value.code == 2 and "install etcd-server" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "etcd").touch(0o755)
    [etcd], _ = bench.peers_of(["etcd"], tmp_path)
    assert etcd.name == "etcd" and PEERS.keys() == KINDS.keys()


@pytest.mark.soak
def test_a_short_run_prints_figures_of_each_side() -> None:
    command = [sys.executable, bench.__file__, "--yardstick", "none", "--rounds", "1", "--seconds", "1"]
    done = subprocess.run([*command, "--cases", "lone,blocking", "--also", f"again={REPOSITORY}"],
                          check=True, capture_output=True, text=True)
    lone, blocking = map(json.loads, done.stdout.splitlines())
    assert list(lone["sides"]) == ["alpo", "again"] and lone["sides"]["again"]["of"]["alpo"]["cpu_ratio"]
    assert all(side["cpu_us"]["load"] > 0 for side in [*lone["sides"].values(), *blocking["sides"].values()])
