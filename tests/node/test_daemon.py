"""alpod as a process: exit codes, one line for the operator, nothing written where it does not belong."""

from __future__ import annotations

import json
import os
import re
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
from alpod import INSTALLED, WAIT_S, Serving, ask, flags, run, start
from ports import free_port

from alpo import Unavailable, connect_sync
from alpo._version import version_of
from alpo.wire.codec import decode_hello, encode
from alpo.wire.framing import HELLO_BYTES_MAX, FrameReader
from alpo.wire.requests import VERSION, ClientHello, Problem, ServerHello


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, sign: signal.Signals) -> None:
    with Serving(*flags(tmp_path, free_port())) as server:
        server.process.send_signal(sign)
        _, err = server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 0
        assert [json.loads(line)["event"] for line in err.splitlines()][-1] == "stopped"
    # The thread that writes the log starts before the signal threads, and leaves signals to them.
    with Serving(*flags(tmp_path, free_port()), ALPOD_NO_SUCH_KEY="1") as server:
        assert server.lines[0]["event"] == "unknown_environment"
        server.process.send_signal(sign)
        server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 0
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


def test_a_wrong_configuration_ends_with_2(tmp_path: Path) -> None:
    code, err = run(*flags(tmp_path / "data", 0))
    assert code == 2 and err.startswith("alpod: ") and len(err.splitlines()) == 1
    assert not (tmp_path / "data").exists()
    code, err = run("--config", str(tmp_path / "missing.toml"))
    assert code == 2 and "missing.toml" in err
    code, err = run("--no-such-flag")
    assert code == 2


def test_help_and_version() -> None:
    code, out, _ = ask("-h")
    assert code == 0 and "examples:" in out and "exit codes:" in out
    for flag in ("--version", "-V"):
        code, out, _ = ask(flag)
        assert code == 0 and out == f"{version_of('alpod')}\n"


@pytest.mark.parametrize("flag", ["--version", "--help", "--print-config", "--print-unit"])
def test_what_needs_no_server_imports_none(flag: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "alpo.daemon", flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "alpo.node.log_sink" in modules  # it did tell
    servers = {"trio", "pydantic", "structlog", "rich", "logging", "sqlite3", "alpo.server", "alpo.config"}
    assert modules & servers == set()


def test_why_it_cannot_run_is_json_among_json(tmp_path: Path) -> None:
    """One line is printed, and nothing else, whatever is wrong and wherever the format was set."""
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


@pytest.mark.parametrize("asked", ["--print-config", "--version", "--check-config"])
def test_what_it_prints_may_have_no_reader_and_no_room(tmp_path: Path, asked: str) -> None:
    command = [INSTALLED, *flags(tmp_path, free_port()), asked]
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("wb") as full:
        for stdout, said in ((writer, (0, b"")), (full.fileno(), (1, b"alpod: No space left on device\n"))):
            for environ in ({"PYTHONUNBUFFERED": ""}, {"PYTHONUNBUFFERED": "1"}):
                done = subprocess.run(
                    command, stdout=stdout, stderr=subprocess.PIPE, check=False, env=os.environ | environ,
                )
                assert (done.returncode, done.stderr) == said
    os.close(writer)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit_and_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "alpod.service"
    text = ask("--print-unit")[1]
    unit.write_text(text)
    asked = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Overall exposure level for alpod.service: ([\d.]+)", told)
    assert found is not None and float(found[1]) <= 1.5
    unit.write_text(text.replace("/opt/alpo/bin/alpod", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


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
        """Open one more connection; True if it is greeted, and not turned away."""
        sock = socket.create_connection(("127.0.0.1", self._port), WAIT_S)
        sock.sendall(encode(ClientHello(VERSION, b"", "test")))
        frames, bodies = FrameReader(HELLO_BYTES_MAX), list[memoryview | bytes]()
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
        while not welcome():  # the event `reloaded` is below the new log level, so none is logged
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


def test_the_watchdog_is_fed_while_the_loop_turns(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(WAIT_S)
        told: list[str] = []
        with Serving(*flags(tmp_path / "data", free_port()), NOTIFY_SOCKET=path, WATCHDOG_USEC="60000"):
            while told.count("WATCHDOG=1") < 5:
                told += sock.recv(1 << 12).decode().split("\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        (tmp_path / "notify").unlink()
        sock.bind(path)
        sock.settimeout(WAIT_S)
        asked = {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}  # of another process
        with Serving(*flags(tmp_path / "data", free_port()), NOTIFY_SOCKET=path, **asked) as server:
            told = sock.recv(1 << 12).decode().split("\n")
            server.process.terminate()
            while "STOPPING=1" not in told:
                told += sock.recv(1 << 12).decode().split("\n")
        assert "WATCHDOG=1" not in told and "READY=1" in told


def test_killed_and_started_again_it_is_the_same_server(tmp_path: Path) -> None:
    port = free_port()
    with Serving(*flags(tmp_path, port)) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(WAIT_S)
    with Serving(*flags(tmp_path, port)) as server:
        assert server.lines[-1]["id"] == 1
