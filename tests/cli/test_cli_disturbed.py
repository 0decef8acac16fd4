"""The real `alpo` when servers die: unknown outcomes and retries, failovers, clusters that stop and start, the demo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alpo_command import COMMAND, Alpo, read_line, until, write
from ports import free_port
from typer.testing import CliRunner

from alpo_cli.app import app
from alpo_cli.commands import import_
from alpo_cli.local_cluster import LocalCluster
from alpo_cli.output import Step


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    base = free_port(3)
    try:
        Alpo().run("cluster", "start", "--dir", tmp_path / "c", "--base-port", str(base), "--detach")
        yield LocalCluster.load(tmp_path / "c")
    finally:
        if LocalCluster.exists(tmp_path / "c"):
            LocalCluster.load(tmp_path / "c").stop(grace_s=0.0)


def followers(alpo: Alpo, cluster: LocalCluster) -> list[int]:
    members = alpo.lines("status")[0]["members"]
    return [member["id"] for member in members if member["state"] != "leader"]


@pytest.mark.parametrize("end", ["deadline", "ctrl-c"])
def test_an_unknown_outcome_can_be_retried(cluster: LocalCluster, end: str) -> None:
    alpo = Alpo(cluster.addresses)
    patience = "2" if end == "deadline" else "60"
    with alpo.under_way("append", "--json", "--timeout", patience) as appending:
        write(appending, b"first\n")
        first = json.loads(read_line(appending))
        for id in followers(alpo, cluster):
            assert cluster.get(id).send(signal.SIGKILL)
        write(appending, b"second\n")
        if end == "ctrl-c":
            _wait_until_sent(cluster)
            appending.send_signal(signal.SIGINT)
        assert appending.wait(40) == 3
        unknown = json.loads(read_line(appending))
        assert appending.stderr is not None
        said = appending.stderr.read().decode()
    assert unknown == {**first, "lsn": None, "serial": 2, "duplicate": None}
    retry = ["append", "--client", first["client"], "--serial", "2", "--epoch", "0"]
    assert f"--client '{first['client']}' --serial 2 --epoch 0" in said
    Alpo().run("cluster", "start", "--dir", cluster.directory, "--detach")
    lsn = alpo.lines(*retry, "second")[0]["lsn"]
    assert lsn == 2
    assert alpo.lines(*retry, "second")[0] == {**first, "lsn": 2, "serial": 2, "duplicate": True}
    assert alpo.says(*retry, "other", code=1)
    assert alpo.out("read") == "first\nsecond\n"


def test_why_members_cannot_be_asked_is_told_though_others_answer(cluster: LocalCluster) -> None:
    alpo = Alpo(cluster.addresses)
    killed = followers(alpo, cluster)
    for id in killed:
        assert cluster.get(id).send(signal.SIGKILL)
    until(lambda: "Nobody leads" in alpo.run("status").stderr.decode())
    why = [f"server {id}: {cluster.get(id).address}: connection refused" for id in killed]
    said = alpo.run("status").stderr.decode().splitlines()
    assert said[-3:] == [*why, "Nobody leads: nothing is appended. 1 of 3 members answer; 2 are needed."]
    assert alpo.run("member", "list").stderr.decode().splitlines()[-2:] == why


@pytest.mark.parametrize("name", [None, "gone"])
def test_an_import_that_nobody_takes_is_in_doubt_about_nothing(
    cluster: LocalCluster, tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    alpo = Alpo(cluster.addresses)
    for id in followers(alpo, cluster):
        assert cluster.get(id).send(signal.SIGKILL)
    until(lambda: all(member["leader"] is None for member in alpo.lines("status", "--timeout", "1")[0]["members"]))
    (tmp_path / "lines").write_text("a\nb\nc\n")
    steps: list[tuple[str, int, int]] = []

    @contextmanager
    def told() -> Iterator[Step]:
        yield lambda *step: steps.append(step)

    monkeypatch.setattr(import_, "slow_progress", told)
    words = ["import", str(tmp_path / "lines"), "--servers", cluster.addresses, "--timeout", "1"]
    done = CliRunner().invoke(app, [*words, *(["--client", name] if name else [])])
    assert done.exit_code == 1 and "may be in the log" not in done.stderr, done.stderr
    assert set(steps) <= {("0 appended", 0, 6)}
    if name is None:
        assert steps and "no server took the append in time" in done.stderr
        assert done.stderr.endswith("\nno line of it is in the log\n")
    Alpo().run("cluster", "start", "--dir", cluster.directory, "--detach")
    assert alpo.out("read") == ""


def test_an_import_that_was_taken_and_not_answered_is_in_doubt(cluster: LocalCluster, tmp_path: Path) -> None:
    alpo = Alpo(cluster.addresses)
    with alpo.under_way("import", "--timeout", "2") as process:
        write(process, b"first\n")
        until(lambda: alpo.lines("status")[0]["members"][0]["last_lsn"] == 1)
        for id in followers(alpo, cluster):
            assert cluster.get(id).send(signal.SIGKILL)
        write(process, b"second\n")
        assert process.wait(40) == 3
        assert process.stderr is not None
        assert b"what was under way may be in the log or not" in process.stderr.read()


def _wait_until_sent(cluster: LocalCluster) -> None:
    """The leader has accepted the second payload (its entry is there), though nobody can guarantee it."""
    alpo = Alpo(cluster.addresses)
    for _ in range(100):
        members = alpo.lines("status", "--timeout", "1")[0]["members"]
        if any((member["last_id"] or 0) > (member["guaranteed_id"] or 0) for member in members):
            return
    raise AssertionError("the append never reached the leader")


def test_failover_bench_brings_everyone_back(cluster: LocalCluster) -> None:
    alpo = Alpo(cluster.addresses)
    flags: list[str | Path] = ["--dir", cluster.directory, "--rounds", "1", "--outstanding", "11"]
    for name in ("KILL", "TERM"):
        result = alpo.lines("bench", "failover", *flags, "--signal", name)[0]
        assert result["errors"] == 0 and len(result["rounds_ms"]) == 1
        assert all(member["reachable"] for member in alpo.lines("status")[0]["members"])


def test_a_cluster_stops_and_starts_with_what_it_had(cluster: LocalCluster) -> None:
    alpo = Alpo(cluster.addresses)
    alpo.run("append", "kept")
    assert "stopped 3 servers" in alpo.says("cluster", "stop", "--dir", cluster.directory, code=0)
    assert not any(server.running() for server in cluster.servers)
    assert "no server was running" in alpo.says("cluster", "stop", "--dir", cluster.directory, code=0)
    again = alpo.out("cluster", "start", "--dir", cluster.directory, "--detach")
    assert again.strip() == cluster.addresses
    assert alpo.out("read") == "kept\n"


def test_a_cluster_of_one_in_the_foreground(tmp_path: Path) -> None:
    base = str(free_port(1))
    start: list[str | Path] = ["cluster", "start", "--dir", tmp_path, "--size", "1", "--base-port", base]
    for expected in ("", "x\n"):
        with Alpo().under_way(*start) as foreground:
            alpo = Alpo(read_line(foreground).strip())
            assert alpo.out("read") == expected
            alpo.run("append", "x")
            foreground.send_signal(signal.SIGINT)
            assert foreground.wait(30) == 0
        assert not LocalCluster.load(tmp_path).servers[0].running()


def test_the_foreground_ends_when_its_servers_were_stopped_from_elsewhere(tmp_path: Path) -> None:
    start: list[str | Path] = [
        "cluster", "start", "--dir", tmp_path, "--size", "2", "--base-port", str(free_port(2)),
    ]
    with Alpo().under_way(*start) as foreground:
        read_line(foreground)
        assert "stopped 2 servers" in Alpo().says("cluster", "stop", "--dir", tmp_path, code=0)
        _, said = foreground.communicate(timeout=30)
    assert foreground.returncode == 1
    assert all(words in said for words in (b"server 1 has ended", b"server 2 has ended", b"no server is left"))


def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    base = free_port(3)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # `free_port` counts TIME_WAIT as free
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        flags: list[str | Path] = ["--dir", tmp_path / "c", "--base-port", str(base), "--detach"]
        assert f"port {base + 1}" in Alpo().says("cluster", "start", *flags, code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "server-2").write_text("not a directory")
    flags: list[str | Path] = ["--dir", tmp_path, "--base-port", str(free_port(3)), "--detach"]
    said = Alpo().says("cluster", "start", *flags, code=1)
    assert "server 2 did not start" in said and "server-2" in said
    assert not any(server.running() for server in LocalCluster.load(tmp_path).servers)


def test_the_demo(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"line {n % 7}\n" for n in range(600)))
    env = {**os.environ, "TMPDIR": str(tmp_path), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-m", "alpo_cli.demo", str(text)], env=env, capture_output=True,
                          text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("identical") == 3 and "kill -9" in done.stdout
    assert list(tmp_path.iterdir()) == [text]
    assert COMMAND[0] == sys.executable
    path, servers = (line for line in done.stdout.splitlines() if line.startswith("export "))
    assert servers == "export ALPO_SERVERS=$(alpo cluster start --dir /tmp/alpo --detach)"
    pasted = subprocess.run(["sh", "-c", f"{path}\nalpo version"], env=env, capture_output=True, text=True, check=False)
    assert pasted.stdout.startswith("alpo ") and not pasted.stderr
