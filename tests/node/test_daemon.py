"""alpod as a process: exit codes, one line for the operator, nothing written where it does not belong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from alpo.core.ready import Write
from alpo.storage.sqlite import SqliteStore

WAIT_S = 30


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def flags(data: Path, port: int, id: int = 1) -> list[str]:
    return [
        "--id", str(id), "--data", str(data), "--listen", f"127.0.0.1:{port}", "--member", f"{id}=127.0.0.1:{port}",
    ]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "alpo.daemon", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of an alpod that is expected to end by itself."""
    process = start(*arguments)
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


class Serving:
    """An alpod that serves, stopped at the end whatever happens."""

    def __init__(self, *arguments: str) -> None:
        self.process = start(*arguments)
        self.lines: list[dict[str, object]] = []

    def __enter__(self) -> Serving:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == "serving":
                return self
        raise AssertionError(f"alpod ended: {self.lines}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, sign: signal.Signals) -> None:
    with Serving(*flags(tmp_path, free_port())) as server:
        server.process.send_signal(sign)
        _, err = server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 0
        assert [json.loads(line)["event"] for line in err.splitlines()][-1] == "stopped"
    # A terminal's format when asked for, on whatever stderr is.
    console = start(*flags(tmp_path, free_port()), "--log-format", "console")
    assert console.stderr is not None
    assert "serving" in console.stderr.readline()
    console.send_signal(sign)
    console.communicate(timeout=WAIT_S)
    assert console.returncode == 0


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        said = (1, f"alpod: cannot listen on 127.0.0.1:{port}: the port is in use\n")
        assert run(*flags(tmp_path / "new", port)) == said
        assert not (tmp_path / "new").exists(), "a store was made for a server that cannot listen"
        with Serving(*flags(tmp_path / "old", free_port())):
            pass
        assert run(*flags(tmp_path / "old", port)) == said


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    first = flags(tmp_path, free_port())
    with Serving(*first) as server:
        for second in (first, flags(tmp_path, free_port())):
            code, err = run(*second)
            assert code == 1
            assert str(server.process.pid) in err and len(err.splitlines()) == 1


def test_a_wal_that_would_lose_commits_is_not_opened(tmp_path: Path) -> None:
    """Exit 1, a line that names the file, and the files as they were."""
    store = SqliteStore.open(tmp_path, 1)
    for number in range(1, 9):
        store.commit([Write(number, number, 0, None, [], [], 0, 0)])
    left = {name: (tmp_path / name).read_bytes() for name in ("alpo.db", "alpo.db-wal")}
    store.close()
    wal = bytearray(left["alpo.db-wal"])
    wal[len(wal) // 2] ^= 1
    left["alpo.db-wal"] = bytes(wal)
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    code, err = run(*flags(tmp_path, free_port()))
    assert code == 1 and len(err.splitlines()) == 1
    assert err.startswith(f"alpod: {tmp_path}/alpo.db-wal: ") and "synced" in err
    assert {name: (tmp_path / name).read_bytes() for name in left} == left


#: alpod on a system where no file called so can be synced.
_NO_SYNC = """
import errno, os, sys
name, sync = sys.argv.pop(1), os.fsync
def fails(descriptor):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/" + name):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)
os.fsync = fails
from alpo.daemon import main
main()
"""


@pytest.mark.parametrize("name", ["alpo.db-wal", "alpo.db", "data"])
def test_a_disk_that_cannot_be_synced_at_the_start(tmp_path: Path, name: str) -> None:
    """Exit 1, a line that names the file, the store as it was, and nobody was told anything."""
    data = tmp_path / "data"
    store = SqliteStore.open(data, 1)
    store.commit([Write(1, 1, 0, None, [], [], 0, 0)])
    left = {name: (data / name).read_bytes() for name in ("alpo.db", "alpo.db-wal")}
    store.close()
    for each, content in left.items():
        (data / each).write_bytes(content)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.setblocking(False)
        more = ["--member", f"2=127.0.0.1:{other.getsockname()[1]}"]
        arguments = [sys.executable, "-c", _NO_SYNC, name, *flags(data, free_port()), *more]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_S, check=False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert (ended.returncode, ended.stdout) == (1, "")
    path = data if name == "data" else data / name
    assert ended.stderr == f"alpod: {path}: cannot be synced: Input/output error\n"
    assert {path.name: path.read_bytes() for path in data.iterdir() if path.name != "alpo.lock"} == left


def test_a_directory_of_another_server_is_not_touched(tmp_path: Path) -> None:
    with Serving(*flags(tmp_path, free_port())) as server:
        server.process.terminate()
        server.process.wait(WAIT_S)
    before = (tmp_path / "alpo.db").read_bytes()
    code, err = run(*flags(tmp_path, free_port(), id=2))
    assert code == 1 and len(err.splitlines()) == 1 and err.startswith("alpod: ")
    assert (tmp_path / "alpo.db").read_bytes() == before


def test_a_wrong_configuration_ends_with_2(tmp_path: Path) -> None:
    code, err = run(*flags(tmp_path / "data", 0))
    assert code == 2 and err.startswith("alpod: ") and len(err.splitlines()) == 1
    assert not (tmp_path / "data").exists()
    code, err = run("--config", str(tmp_path / "missing.toml"))
    assert code == 2 and "missing.toml" in err
    code, err = run("--no-such-flag")
    assert code == 2


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, err = run(*flags(tmp_path / "file" / "data", free_port()))
    assert code == 1 and err.startswith("alpod: ") and len(err.splitlines()) == 1


def test_help_and_version() -> None:
    process = start("--help")
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and "examples:" in out and "exit codes:" in out
    process = start("--version")
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and out.startswith("alpod ")


def test_killed_and_started_again_it_is_the_same_server(tmp_path: Path) -> None:
    port = free_port()
    with Serving(*flags(tmp_path, port)) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(WAIT_S)
    with Serving(*flags(tmp_path, port)) as server:
        assert server.lines[-1]["id"] == 1
