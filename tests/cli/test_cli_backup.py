"""`alpo backup`, `restore`, `recover` end to end: a live cluster under appends, real servers on what is made of it."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlite_utils
from alpo_command import COMMAND, Alpo, cluster, environment, until
from ports import free_port
from warm import ALPOD

from alpo_cli.local_cluster import LocalCluster

WITHIN_S = 60.0


def start(id: int, data: Path, address: str, log: Path) -> subprocess.Popen[bytes]:
    words = ["--id", str(id), "--data", str(data), "--listen", address, "--member", f"{id}={address}"]
    with log.open("ab") as out:
        return subprocess.Popen([*ALPOD, *words], stdout=out, stderr=out)


@contextmanager
def server(id: int, data: Path, address: str, log: Path) -> Iterator[Alpo]:
    """One alpod on this directory."""
    process = start(id, data, address, log)
    try:
        yield Alpo(address)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0, log.read_text()


def address() -> str:
    return f"127.0.0.1:{free_port(1)}"


def records(alpo: Alpo) -> list[dict[str, Any]]:
    return alpo.lines("read")


@contextmanager
def appends(alpo: Alpo, done: list[int]) -> Iterator[None]:
    """One append after the other, as the named client "live", until the end of the block; ``done``: their LSNs."""
    stop = threading.Event()
    with alpo.under_way("append", "--client", "live", "--json") as process:
        assert process.stdin is not None and process.stdout is not None

        def feed() -> None:
            assert process.stdin is not None and process.stdout is not None
            number = 0
            while not stop.is_set():
                number += 1
                process.stdin.write(b"live %d\n" % number)
                process.stdin.flush()
                done.append(json.loads(process.stdout.readline())["lsn"])

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            until(lambda: len(done) > 3)
            yield
        finally:
            stop.set()
            thread.join(WITHIN_S)
            process.stdin.close()
            process.stdin = None  # `under_way` would otherwise close it again
            assert process.wait(WITHIN_S) == 0


def test_a_backup_under_appends_restored_goes_on(tmp_path: Path) -> None:
    file, data = tmp_path / "log.alpo", tmp_path / "new"
    done: list[int] = []
    with cluster(tmp_path / "old") as old:
        old.run("append", "--client", "web", stdin=b"".join(b"%d\n" % i for i in range(2000)))
        old.run("append", "--batch", "7", stdin=b"\xff\x00 and more\nb\nc\n" * 10)
        with appends(old, done):
            before = done[-1]
            (told,) = old.lines("backup", str(file))
            since = len(done)
            until(lambda: len(done) > since)  # the appends go on
        (again,) = old.lines("backup", "--server", "2", str(file))  # replaced whole
        assert again["last_lsn"] >= told["last_lsn"]
        kept = records(old)
        last = old.lines("append", "--client", "web", "last")[0]
    assert told["first_lsn"] == 1 and before <= told["last_lsn"] and again["bytes"] == file.stat().st_size
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.alpo", "old"]
    assert "sound: " in Alpo().out("log", "verify", file)
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        rows = list(sqlite_utils.Database(db).query("SELECT * FROM payloads WHERE lsn <= 3"))
    assert [(row["client"], row["payload"]) for row in rows] == [("web", b"0"), ("web", b"1"), ("web", b"2")]

    listen = address()
    (made,) = Alpo().lines("restore", file, "--data", data, "--id", "4", "--listen", listen)
    assert (made["first_lsn"], made["last_lsn"]) == (1, again["last_lsn"])
    assert "not empty" in Alpo().says("restore", file, "--data", data, "--id", "4", "--listen", listen, code=1)
    with server(4, data, listen, tmp_path / "log") as new:
        there = records(new)
        assert there == kept[: again["last_lsn"]]
        (member,) = new.lines("status")[0]["members"]
        assert (member["id"], member["state"], member["cluster"]) == (4, "leader", made["cluster"])
        retry = new.lines("append", "--client", "web", "--serial", "2000", "1999")[0]  # done already: told again
        assert retry == {**retry, "lsn": 2000, "duplicate": True}
        on = new.lines("append", "--client", "web", "goes on")[0]
        assert (on["serial"], on["lsn"]) == (2001, again["last_lsn"] + 1) and last["serial"] == 2001
    with server(4, data, listen, tmp_path / "log") as new:
        assert [record["payload"] for record in new.lines("read", "--last", "1")] == ["goes on"]
    assert "sound: " in Alpo().out("log", "verify", data)


def test_what_is_no_backup_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    words = ("restore", tmp_path / "text", "--data", tmp_path / "new", "--id", "1", "--listen", address())
    assert Alpo().says(*words, code=2) == f"alpo: {tmp_path}/text: is no data file or backup (not an SQLite database)\n"
    assert not (tmp_path / "new").exists()


def test_no_server_starts_on_a_backup(tmp_path: Path) -> None:
    with cluster(tmp_path / "old", size=1) as old:
        old.run("append", "a")
        (tmp_path / "data").mkdir()
        old.run("backup", tmp_path / "log.alpo")
        (tmp_path / "log.alpo").rename(tmp_path / "data" / "alpo.db")
    before = (tmp_path / "data" / "alpo.db").read_bytes()
    process = start(1, tmp_path / "data", address(), tmp_path / "log")
    assert process.wait(WITHIN_S) == 1
    assert "is a backup" in (tmp_path / "log").read_text()
    assert (tmp_path / "data" / "alpo.db").read_bytes() == before


def test_one_of_three_goes_on_alone_and_the_others_cannot_join(tmp_path: Path) -> None:
    with cluster(tmp_path / "old") as old:
        old.run("append", "--client", "web", stdin=b"".join(b"%d\n" % i for i in range(500)))
        kept = records(old)
        data = tmp_path / "old" / "server-1"
        until(lambda: all(m["last_lsn"] == 500 for m in old.lines("status")[0]["members"]))
        assert "in use by process" in Alpo().says(
            "recover", "--data", data, "--force-new-cluster", "--yes", code=1)
    assert "--force-new-cluster" in Alpo().says("recover", "--data", data, code=2)
    assert "--yes" in Alpo().says("recover", "--data", data, "--force-new-cluster", code=2)
    said = Alpo().says("recover", "--data", data, "--force-new-cluster", "--yes", code=0)
    assert "LOST for good" in said and "start it: alpod --id 1" in said
    assert len(list(data.glob("before-recover-*.json"))) == 1
    addresses = [s.address for s in LocalCluster.load(tmp_path / "old").servers]
    words = [word for id, where in enumerate(addresses, 1) for word in ("--member", f"{id}={where}")]
    with server(1, data, addresses[0], tmp_path / "log") as new:
        assert records(new) == kept
        log = (tmp_path / "other").open("wb")
        other = subprocess.Popen(
            [*ALPOD, "--id", "2", "--data", str(tmp_path / "old" / "server-2"), "--listen",
             addresses[1], *words], stdout=log, stderr=log)
        try:
            until(lambda: b"turned_away" in (tmp_path / "log").read_bytes())
            assert new.lines("append", "--client", "web", "alone")[0]["serial"] == 501
        finally:
            other.kill()
            other.wait()
            log.close()


@pytest.mark.parametrize(("answer", "code"), [(b"yes\n", 0), (b"y\n", 1), (b"\n", 1)])
def test_it_asks_first(tmp_path: Path, answer: bytes, code: int) -> None:
    with cluster(tmp_path / "old", size=1) as old:
        old.run("append", "a")
    data = tmp_path / "old" / "server-1"
    before = (data / "alpo.db").read_bytes()
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run([*COMMAND, "recover", "--data", str(data), "--force-new-cluster"], stdin=theirs,
                          capture_output=True, env=environment(""), timeout=WITHIN_S, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert b"LOST for good" in done.stderr
    assert ((data / "alpo.db").read_bytes() == before) == (code != 0)


def test_nothing_is_left_where_a_backup_fails(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        nobody = Alpo(f"127.0.0.1:{listening.getsockname()[1]}")
        assert "no answer" in nobody.says("backup", tmp_path / "f", "--timeout", "0.5", code=1)
    with cluster(tmp_path / "old", size=1) as old:
        old.run("append", "a")
        assert "no server 7" in old.says("backup", tmp_path / "f", "--server", "7", code=1)
        assert "there is no directory" in old.says("backup", tmp_path / "none" / "f", code=2)
        assert "is a directory" in old.says("backup", tmp_path, code=2)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
