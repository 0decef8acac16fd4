"""Local clusters: what is on disk, which processes count as running, which are sent signals."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alpo_command import Alpo
from ports import free_port

from alpo_cli import local_cluster
from alpo_cli.commands.cluster import lay_out, outsiders
from alpo_cli.exits import Failed, UsageProblem
from alpo_cli.local_cluster import LocalCluster, command_line, free_base_port, port_free

STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
OBEDIENT = "print(flush=True); import sys; sys.stdin.read()"


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster.create(tmp_path / "c", 2, free_port(2))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(processes: list[subprocess.Popen[bytes]], code: str, *words: str) -> int:
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


def test_what_is_created_can_be_loaded(cluster: LocalCluster) -> None:
    assert LocalCluster.load(cluster.directory) == cluster
    port = cluster.servers[0].port
    assert cluster.addresses == f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    assert json.loads((cluster.directory / "cluster.json").read_text())["servers"][1]["id"] == 2


@pytest.mark.parametrize("content", [None, "", "{}", '{"servers": [{"id": 1}]}', '{"servers": []}', "[]"])
def test_no_cluster_there(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(UsageProblem if content is None else Failed):
        LocalCluster.load(tmp_path)


def test_starting_again_keeps_size_and_ports(cluster: LocalCluster) -> None:
    assert lay_out(cluster.directory, None, None) == cluster
    assert lay_out(cluster.directory, 2, cluster.servers[0].port) == cluster
    with pytest.raises(UsageProblem, match="has 2 servers"):
        lay_out(cluster.directory, 3, None)
    with pytest.raises(UsageProblem, match="begins at"):
        lay_out(cluster.directory, None, cluster.servers[0].port + 1)


def test_only_a_process_that_names_the_data_directory_is_ours(
    cluster: LocalCluster, processes: list[subprocess.Popen[bytes]]
) -> None:
    ours, stranger = cluster.servers
    ours.pid = start(processes, OBEDIENT, "--data", str(ours.data))
    stranger.pid = start(processes, OBEDIENT, "--data", str(stranger.data) + "0")
    assert ours.running() and not stranger.running()
    assert str(ours.data) in command_line(ours.pid)
    cluster.stop(grace_s=5)
    assert processes[0].wait(5) == -signal.SIGTERM
    assert processes[1].poll() is None, "a stranger was sent a signal"
    assert not stranger.send(signal.SIGKILL) and processes[1].poll() is None


def test_who_does_not_stop_is_killed(cluster: LocalCluster, processes: list[subprocess.Popen[bytes]]) -> None:
    for server, code in zip(cluster.servers, (STUBBORN, OBEDIENT), strict=True):
        server.pid = start(processes, code, str(server.data))
    assert cluster.stop(grace_s=0.3) == [1]
    assert [process.wait(5) for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]
    assert cluster.stop() == []


@pytest.mark.parametrize("line", ["SigPnd:\t0000000000000100", "ShdPnd:\t0000000000004100"])
def test_a_start_waits_for_what_was_killed_and_is_not_gone(
    cluster: LocalCluster, processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A process that waits for its disk lives on after `kill -9`; counted as running, its server stayed down."""
    server = cluster.servers[0]
    server.pid = start(processes, OBEDIENT, str(server.data))
    assert not local_cluster.being_killed(server.pid), "nobody killed it"
    cluster.wait_for_killed()
    assert server.running()
    status = cluster.directory / str(server.pid) / "status"
    status.parent.mkdir()
    status.write_text(f"Name:\talpod\nSigQ:\t0/9\nSigPnd:\t0000000000000000\n{line}\n")
    told = functools.partial(local_cluster.being_killed, proc=cluster.directory)
    monkeypatch.setattr(local_cluster, "being_killed", told)
    with monkeypatch.context() as hurry:
        hurry.setattr(local_cluster, "KILLED_WITHIN_S", 0.1)
        with pytest.raises(Failed, match="server 1 was killed and is still there"):
            cluster.wait_for_killed()
    threading.Timer(0.1, processes[0].kill).start()
    cluster.wait_for_killed()
    assert not server.running()


@pytest.mark.trio
async def test_a_server_that_ends_while_its_cluster_is_started_is_started_again(
    cluster: LocalCluster, processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was told to stop still runs when `start` counts what runs."""
    for server in cluster.servers:
        server.pid = start(processes, OBEDIENT, str(server.data))
    answers = iter([[{"state": "leader", "id": 2}], [], [{"state": "leader", "id": 1}]])

    async def statuses(log: object) -> list[dict[str, object]]:
        processes[1].terminate()
        processes[1].wait()
        return next(answers)

    monkeypatch.setattr(local_cluster, "statuses", statuses)
    try:
        assert await local_cluster.leader_within(cluster, 10) == 1
        assert [server.process is not None for server in cluster.servers] == [False, True]
        assert cluster.servers[1].running()
    finally:
        cluster.stop()


def test_a_port_in_use_is_said(cluster: LocalCluster) -> None:
    port = cluster.servers[1].port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not port_free(port)
        with pytest.raises(Failed, match=f"port {port} .*server 2.* in use .*: end that process, a cluster keeps its"):
            cluster.spawn(cluster.servers)
    assert port_free(port) and not any(server.pid for server in cluster.servers)


def test_a_port_in_use_leaves_no_new_cluster(tmp_path: Path) -> None:
    port = free_port(2) + 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(Failed, match=f"port {port} .*server 2.* in use .*: begin elsewhere with --base-port"):
            lay_out(tmp_path / "c", 2, port - 1)
    assert not (tmp_path / "c").exists()


def test_the_tail_of_a_log(cluster: LocalCluster) -> None:
    server = cluster.servers[0]
    assert server.log_tail() == ""
    server.log.write_text("".join(f"line {n}\n" for n in range(5_000)))
    assert server.log_tail(2) == "line 4998\nline 4999"


def test_free_ports_are_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    base = free_base_port(3)
    assert all(port_free(base + n) for n in range(3))
    monkeypatch.setattr(local_cluster, "port_free", lambda port: False)
    with pytest.raises(Failed, match="no free ports"):
        free_base_port(3)


def test_a_cluster_that_begins_again_without_its_data_says_so(tmp_path: Path) -> None:
    alpo, words = Alpo(), ("--dir", tmp_path / "c", "--detach", "--base-port", str(free_port(1)), "--size", "1")
    try:
        assert "data" not in alpo.run("cluster", "start", *words).stderr.decode()
        alpo.run("cluster", "stop", "--dir", tmp_path / "c")
        assert "data" not in alpo.run("cluster", "start", *words).stderr.decode()
        alpo.run("cluster", "stop", "--dir", tmp_path / "c")
        shutil.rmtree(tmp_path / "c" / "server-1")
        assert alpo.run("cluster", "start", *words).stderr.decode() == (
            f"no server of {tmp_path}/c has its data any more: the cluster begins anew, with an empty log\n"
        )
    finally:
        alpo.run("cluster", "stop", "--dir", tmp_path / "c", code=None)


def test_a_server_whose_place_another_has_taken_is_named_at_the_start(cluster: LocalCluster) -> None:
    listed = [{"id": 1, "address": cluster.servers[0].address, "role": "VOTER"}]
    moved = [*listed, {"id": 2, "address": "h:1", "role": "VOTER"}]
    gone = [*listed, {"id": 2, "address": cluster.servers[1].address, "role": "GONE"}]
    same = [*listed, {"id": 2, "address": cluster.servers[1].address, "role": "LEARNER"}]
    def told(members: list[dict[str, object]]) -> list[str]:
        return outsiders(cluster, [{"guaranteed_id": 1, "members": []}, {"guaranteed_id": 3, "members": members}])

    here = f"server 2 at {cluster.servers[1].address} is no member any more"
    assert told(same) == outsiders(cluster, []) == []
    assert told(moved) == [f"{here} (server 2 is at h:1 now): stop it"]
    assert told(gone) == told(listed) == [f"{here}: stop it"]


def test_a_cluster_with_a_page_keeps_it(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 3, free_base_port(3))
    assert not LocalCluster.load(cluster.directory).http
    cluster.http = True
    cluster.save()
    found = LocalCluster.load(cluster.directory)
    port = found.servers[0].port
    assert found.http and found.page == f"http://127.0.0.1:{port + 80}/"
    assert found._server_environment(found.servers[1]) == {
        "ALPOD_HTTP": f"127.0.0.1:{port + 81}", "ALPOD_HTTP_AUTH": "none",
    }
