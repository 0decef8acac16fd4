"""`alpo compact` against live servers: data files get smaller while appends go on, and nothing of the log is lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from alpo_command import Alpo, write

from alpo_cli.local_cluster import LocalCluster

PAYLOADS = 20_000
KEPT = 4_000
KEYS = {"server", "disk_bytes_before", "disk_bytes", "free_bytes", "done"}


def members(alpo: Alpo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = alpo.lines("status")[0]["members"]
    return found


def free_most(alpo: Alpo) -> int:
    """Have most of every data file free, too little to be given back by itself; the last LSN."""
    lines = b"".join(b"%05d %s\n" % (n, b"x" * 300) for n in range(PAYLOADS))
    alpo.run("append", "--batch", "20", "--wait", "everyone", stdin=lines)
    last_lsn = int(members(alpo)[0]["last_lsn"])
    alpo.run("trim", "--before", str(last_lsn - KEPT + 1))
    while not all(m["file_free_bytes"] > 4 << 20 and not m["giving_back"] for m in members(alpo)):
        pass
    return last_lsn


def files(directory: Path) -> dict[int, int]:
    return {id: (directory / f"server-{id}" / "alpo.db").stat().st_size for id in (1, 2, 3)}


def test_the_file_gets_smaller_while_appends_go_on(alpo: Alpo, directory: Path) -> None:
    last_lsn = free_most(alpo)
    before = files(directory)
    with alpo.under_way("append", "--json") as appending:
        assert appending.stdout is not None
        appended = 0

        def append(count: int) -> None:
            nonlocal appended
            for _ in range(count):
                write(appending, b"meanwhile %d\n" % appended)
                assert appending.stdout is not None
                appended = json.loads(appending.stdout.readline())["lsn"] - last_lsn

        append(10)
        (line,) = alpo.lines("compact", "--server", "2")
        append(10)
        after = files(directory)
        assert line.keys() == KEYS and line["server"] == 2 and line["done"]
        assert line["disk_bytes"] < line["disk_bytes_before"] - (3 << 20) and line["free_bytes"] < 1 << 20
        assert after[2] < before[2] - (4 << 20)
        assert after[1] >= before[1] and after[3] >= before[3], "only server 2 was asked"
        lines = alpo.lines("compact", "--all")
        append(10)
    assert [line["server"] for line in lines] == [1, 2, 3] and all(line["done"] for line in lines)
    assert all(size < before[id] - (4 << 20) for id, size in files(directory).items())
    kept = list(range(last_lsn - KEPT + 1, last_lsn + appended + 1))
    assert [record["lsn"] for record in alpo.lines("read")] == kept
    assert all(not m["giving_back"] for m in members(alpo))


def test_it_is_told_for_people(alpo: Alpo) -> None:
    said = alpo.says("compact", "--all", code=0).splitlines()
    assert [line.split(":")[0] for line in said] == ["server 1", "server 2", "server 3"]
    assert all(" MiB before, " in line and line.endswith(" now") for line in said)


def test_without_waiting(alpo: Alpo, directory: Path) -> None:
    free_most(alpo)
    before = files(directory)
    (line,) = alpo.lines("compact", "--server", "3", "--no-wait")
    assert line.keys() == KEYS
    while any(m["giving_back"] for m in members(alpo)):
        pass
    assert files(directory)[3] < before[3] - (4 << 20)


def test_a_server_that_does_not_answer(alpo: Alpo, directory: Path) -> None:
    server = LocalCluster.load(directory).get(2)
    assert server.send(signal.SIGSTOP)
    try:
        said = alpo.says("compact", "--server", "2", "--timeout", "4", code=1)
        assert f"{server.address}: connected, but no hello" in said
        ended = alpo.run("compact", "--all", "--timeout", "4", "--json", code=1)
    finally:
        server.send(signal.SIGCONT)
    assert [json.loads(line)["server"] for line in ended.stdout.splitlines()] == [1, 3]
    assert f"{server.address}: connected, but no hello".encode() in ended.stderr and b"1 of 3 servers" in ended.stderr


@pytest.mark.parametrize(("words", "said"), [
    ([], "--server ID or --all"), (["--server", "2", "--all"], "--server ID or --all"),
    (["--server", "0"], "must be at least 1, not 0"), (["--server", "two"], "a whole number, not 'two'"),
])
def test_wrong_usage(words: list[str], said: str) -> None:
    assert said in Alpo("127.0.0.1:1").says("compact", *words, code=2)


def test_nobody_answers() -> None:
    nobody = Alpo("127.0.0.1:1")
    assert "could be reached" in nobody.says("compact", "--all", "--timeout", "0.3", code=1)
    assert "127.0.0.1:1" in nobody.says("compact", "--server", "1", "--timeout", "0.3", code=1)


def test_a_server_that_the_cluster_has_not(alpo: Alpo) -> None:
    assert "the cluster has no server 9" in alpo.says("compact", "--server", "9", "--timeout", "2", code=1)
