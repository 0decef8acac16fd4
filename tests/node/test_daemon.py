"""alpod as a process: exit codes, one line for the operator, nothing written where it does not belong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from ports import free_port

from alpo import Unavailable, connect_sync
from alpo.core.disk import Write
from alpo.storage.sqlite import SqliteStore
from alpo.wire.codec import decode_hello, encode
from alpo.wire.framing import HELLO_BYTES_MAX, FrameReader
from alpo.wire.requests import VERSION, ClientHello, Problem, ServerHello

WAIT_S = 30


def flags(data: Path, port: int, id: int = 1) -> list[str]:
    return [
        "--id", str(id), "--data", str(data), "--listen", f"127.0.0.1:{port}", "--member", f"{id}=127.0.0.1:{port}",
    ]


def start(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "alpo.daemon", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | environ,
    )


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    """Exit code and stderr of an alpod that is expected to end by itself, and to say why for people."""
    process = start(*arguments, "--log-format", "console", **environ)
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


def ask(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of an alpod that is only asked something."""
    process = start(*arguments, **environ)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


class Serving:
    """An alpod that serves, stopped at the end whatever happens."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = start(*arguments, **environ)
        self.lines: list[dict[str, object]] = []

    def __enter__(self) -> Serving:
        self.until("serving")
        return self

    def until(self, event: str) -> dict[str, object]:
        """Wait for that line of its log. Fails if it ends first; the test's own time limit ends the wait."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
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
    told = json.loads(ended.stderr)
    assert (told["event"], told["why"]) == ("cannot_run", f"{path}: cannot be synced: Input/output error")
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


@pytest.mark.parametrize("harm", ["removed", "replaced", "without its WAL"])
def test_a_store_that_is_taken_away_ends_it_with_one_line(tmp_path: Path, harm: str) -> None:
    """Asked for its status meanwhile it ends no sooner, and not with a traceback."""
    port = free_port()
    data = tmp_path / "data"
    with Serving(*flags(data, port)) as server:
        if harm == "removed":
            shutil.rmtree(data)
        elif harm == "replaced":
            shutil.copy(data / "alpo.db", tmp_path / "copy")
            (tmp_path / "copy").rename(data / "alpo.db")
        else:
            (data / "alpo.db-wal").unlink()
        with connect_sync(f"127.0.0.1:{port}") as log:
            while server.process.poll() is None:
                log.status()
        _, err = server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 1
        last = json.loads(err.splitlines()[-1])
        assert "Traceback" not in err and last["event"] == "cannot_run"
        name = "alpo.db-wal" if "WAL" in harm else "alpo.db"
        assert last["why"] == (
            f"{data}/{name} was removed or replaced under the running server: what it writes would be lost; start it"
            " again, on what shall be its data"
        )


#: alpod one of whose tasks fails for a reason that it was not ready for.
_FAILS = """
import sys
from alpo.node.status import Growth
from alpo.storage.interface import StoreError
async def run(self):
    raise eval(sys.argv[1])
Growth.run = run
from alpo.daemon import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("error", "why"), [
    ("StoreError('a.db: no more')", "a.db: no more"),
    ("OSError(5, 'Input/output error', 'a.db')", "a.db: Input/output error"),
    ("OSError(24, 'Too many open files')", "Too many open files"),
])
def test_what_the_disk_or_the_system_refuses_ends_it_with_one_line(tmp_path: Path, error: str, why: str) -> None:
    arguments = [error, *flags(tmp_path, free_port()), "--log-format"]
    said = [
        subprocess.run([sys.executable, "-c", _FAILS, *arguments, form], capture_output=True, text=True, timeout=WAIT_S,
                       check=False)
        for form in ("console", "json")
    ]
    assert [done.returncode for done in said] == [1, 1]
    assert said[0].stderr.splitlines()[-1] == f"alpod: {why}" and "Traceback" not in said[0].stderr
    assert json.loads(said[1].stderr.splitlines()[-1])["why"] == why


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "keep.alpo").write_text("a backup")
    code, err = run(*flags(tmp_path / "keep.alpo", free_port()))
    assert (code, err) == (1, f"alpod: {tmp_path}/keep.alpo is a file: the data directory of a server is wanted\n")


def test_help_and_version() -> None:
    code, out, _ = ask("-h")
    assert code == 0 and "examples:" in out and "exit codes:" in out
    for flag in ("--version", "-V"):
        code, out, _ = ask(flag)
        assert code == 0 and out.startswith("alpod ")


def test_why_it_cannot_run_is_json_among_json(tmp_path: Path) -> None:
    """One line and nothing else, whatever is wrong and wherever the format was asked for."""
    port = free_port()
    (tmp_path / "a.toml").write_text('log_format = "json"\nid = 0\n')
    (tmp_path / "file").write_text("in the way")
    wrong = [
        (2, ["--config", str(tmp_path / "a.toml")], "a.toml: id = 0: must be"),
        (2, ["--no-such-flag", "--log-format", "json"], "command line: unrecognized arguments: --no-such-flag"),
        (2, flags(tmp_path / "data", 0), "--listen"),
        (1, flags(tmp_path / "file" / "data", port), "file/data"),
    ]
    for code, arguments, why in wrong:
        ended, _, err = ask(*arguments)
        (line,) = err.splitlines()
        said = json.loads(line)
        assert (ended, said["exit_code"], said["event"], said["level"]) == (code, code, "cannot_run", "critical")
        assert why in said["why"] and said["time"]


def test_a_configuration_is_checked_and_nothing_touched(tmp_path: Path) -> None:
    good = [*flags(tmp_path / "data", free_port()), "--check-config"]
    code, out, err = ask(*good, ALPOD_RETENTION_MAX_ENTRIES="5", ALPOD_TYPO="1")
    assert code == 0 and "max_entries = 5  # environment: ALPOD_RETENTION_MAX_ENTRIES\n" in out
    assert err == "alpod: not heeded, no key of alpod's: ALPOD_TYPO\n"
    code, out, err = ask(*good, ALPOD_ID="x", ALPOD_LIMITS_HELLO_TIMEOUT_S="0")
    assert (code, out) == (2, "")
    assert err == "alpod: environment: ALPOD_LIMITS_HELLO_TIMEOUT_S = 0.0: must be seconds, from 0.05 to 300\n"
    assert list(tmp_path.iterdir()) == []


def test_the_sample_and_the_unit_come_with_it(tmp_path: Path) -> None:
    code, out, _ = ask("--print-config")
    assert code == 0
    (tmp_path / "a.toml").write_text(out)
    assert ask("--config", str(tmp_path / "a.toml"), "--check-config")[0] == 0
    code, out, _ = ask("--print-unit")
    assert code == 0 and "\nType=notify\n" in out and "\n[Install]\n" in out


@pytest.fixture
def starting() -> Iterator[Callable[..., Serving]]:
    """Makes a `Serving` that need not come so far."""
    with ExitStack() as stack:
        def make(*arguments: str, **environ: str) -> Serving:
            server = Serving(*arguments, **environ)
            stack.callback(server.__exit__)
            return server

        yield make


def test_a_level_leaves_out_what_is_below_it(tmp_path: Path, starting: Callable[..., Serving]) -> None:
    server = starting(*flags(tmp_path, free_port()), ALPOD_TYPO="1", ALPOD_LOG_LEVEL="warning")
    waits = server.until("first_start_waits")
    assert [line["event"] for line in server.lines] == ["unknown_environment", "first_start_waits"]
    assert server.lines[0]["variables"] == ["ALPOD_TYPO"] and waits["level"] == "warning"


def test_a_list_of_one_says_everywhere_what_it_waits_for(tmp_path: Path) -> None:
    port = free_port()
    with Serving(*flags(tmp_path, port)) as server:
        assert server.until("first_start_waits")["why"] == "waits for `alpo cluster init`"
        with connect_sync(f"127.0.0.1:{port}", timeout_s=1) as log:
            (row,) = log.status()
            assert (row["status"], row["waiting"]) == ("EMPTY", ["waits for `alpo cluster init`"])
            with pytest.raises(Unavailable, match=f"127.0.0.1:{port} waits for `alpo cluster init`$"):
                log.append(b"x")
            with pytest.raises(Unavailable, match="waits for `alpo cluster init`"):
                list(log.read())
            with pytest.raises(Unavailable, match="waits for `alpo cluster init`"):
                list(log.read(local=True))
            log.init()
            server.until("started")
            assert log.append(b"x", timeout_s=WAIT_S) == 1


def test_a_newcomer_names_both_ways_into_a_cluster(tmp_path: Path) -> None:
    here = f"127.0.0.1:{free_port()}"
    with Serving("--id", "3", "--data", str(tmp_path), "--listen", here, "--join", "127.0.0.1:1") as server:
        assert server.until("first_start_waits")["why"] == (
            f"waits to be added to a cluster: `alpo member add 3={here}`, or, in place of its server 3,"
            f" `alpo member replace 3={here}`"
        )


def test_a_first_start_names_the_servers_that_have_not_answered(tmp_path: Path) -> None:
    port, missing = free_port(), free_port()
    members = [*flags(tmp_path, port), "--member", f"2=127.0.0.1:{missing}"]
    environ = {"ALPOD_TIMERS_HEARTBEAT_S": "0.01", "ALPOD_TIMERS_ELECTION_TIMEOUT_S": "0.05"}
    with Serving(*members, "--no-auto-init", **environ) as server:
        said = [server.until("first_start_waits") for _ in range(2)]
        assert [(line.get("member"), line["why"]) for line in said] == [
            (None, "waits for `alpo cluster init`"), (2, "has not answered"),
        ]
        with connect_sync(f"127.0.0.1:{port}", timeout_s=1) as log:
            waits = next(row["waiting"] for row in log.status() if row["id"] == 1)
            assert waits == ["waits for `alpo cluster init`", "waits for server 2: it has not answered"]
            with pytest.raises(Unavailable, match="waits for server 2: it has not answered"):
                log.append(b"x")


class Clients:
    """Connections that say hello, and stay open if they are welcome."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port = port
        self._stack = stack

    def welcome(self) -> bool:
        """Is one more?"""
        sock = socket.create_connection(("127.0.0.1", self._port), WAIT_S)
        sock.sendall(encode(ClientHello(VERSION, b"", "test")))
        frames, bodies = FrameReader(HELLO_BYTES_MAX), []
        while not bodies:
            data = sock.recv(1 << 16)
            assert data, "closed without a word"
            bodies = list(frames.feed(data))
        told = decode_hello(bodies[0])
        if isinstance(told, ServerHello):
            self._stack.enter_context(sock)
            return True
        assert isinstance(told, Problem)
        sock.close()
        return False


def test_sighup_reads_the_configuration_anew(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "a.toml"

    def write(limits: str, rest: str = "") -> None:
        file.write_text(f"{rest}\n[limits]\n{limits}\n")

    write("client_connections_max = 1")
    with Serving("--config", str(file), *flags(tmp_path, port)) as server, ExitStack() as stack:
        welcome = Clients(port, stack).welcome
        hup = partial(server.process.send_signal, signal.SIGHUP)
        assert welcome() and not welcome()

        write("client_connections_max = 2\ntail_bytes_max = 70000", "advertise = '127.0.0.1:1'")
        hup()
        told = server.until("reloaded")
        assert told["changed"] == ["limits.client_connections_max"]
        assert told["needs_restart"] == ["advertise", "limits.tail_bytes_max"]
        assert welcome(), "the new limit is not in force"

        write("client_connections_max = 0")
        hup()
        told = server.until("reload_failed")
        assert told["level"] == "error" and "limits.client_connections_max = 0: must be" in str(told["why"])
        assert not welcome(), "the limit in force was lost"
        hup()
        server.until("reload_failed")

        write("client_connections_max = 3", "log_level = 'error'")
        hup()
        while not welcome():  # it says nothing: `reloaded` is below the level that it brings
            pass
        write("client_connections_max = 'x'")
        hup()
        server.until("reload_failed")
        assert server.lines[-2]["event"] == "reload_failed", "reloaded was logged below the level in force"

        write("", "log_level = 'info'")
        hup()
        told = server.until("reloaded")
        assert (told["changed"], told["needs_restart"]) == (["log_level", "limits.client_connections_max"], [])


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    path = f"@alpod-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + path[1:] if abstract else path)
        sock.settimeout(WAIT_S)

        def until(line: str) -> list[str]:
            told: list[str] = []
            while line not in told:
                told += sock.recv(1 << 12).decode().split("\n")
            return told

        with Serving(*flags(tmp_path / "data", port := free_port()), NOTIFY_SOCKET=path) as server:
            assert "STATUS=server 1: EMPTY, no leader, term 0" in until("READY=1")
            with connect_sync(f"127.0.0.1:{port}") as log:
                log.init()
            until("STATUS=server 1: VOTING, leads, term 1")
            before_us = time.monotonic_ns() // 1000
            server.process.send_signal(signal.SIGHUP)
            told = until("READY=1")
            at_us = next(int(line.removeprefix("MONOTONIC_USEC=")) for line in told if line.startswith("MONOTONIC_"))
            assert told.index("RELOADING=1") < told.index("READY=1")
            assert before_us <= at_us <= time.monotonic_ns() // 1000
            server.process.terminate()
            until("STOPPING=1")


def test_killed_and_started_again_it_is_the_same_server(tmp_path: Path) -> None:
    port = free_port()
    with Serving(*flags(tmp_path, port)) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(WAIT_S)
    with Serving(*flags(tmp_path, port)) as server:
        assert server.lines[-1]["id"] == 1
