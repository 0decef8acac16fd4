"""Real alpod processes on loopback, for development, benches and the demo: what is on disk and what is running.

Laws:

* DIR/cluster.json says who belongs to the cluster (ports, data directories) and which pids were started last. It is
  replaced whole, never written in place.
* A pid is only a hint: no process is counted as running, or sent a signal, unless its own command line names the
  server's data directory.
* Every wait has an end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .exits import Failed, UsageProblem, reason

HOST = "127.0.0.1"
SIZE_MAX = 9
STOP_GRACE_S = 10.0
KILLED_WITHIN_S = 5.0
_POLL_S = 0.02


@dataclass(slots=True)
class LocalServer:
    """One member; ``pid`` 0 if it was never started, ``process`` only in the process that started it."""

    id: int
    address: str
    data: Path
    log: Path
    pid: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def lost_data(self) -> bool:
        """Was it started before, and has nothing left of that?"""
        return self.pid > 0 and not (self.data / "alpo.db").exists()

    def running(self) -> bool:
        """Is the process that was started last still this very alpod? (A zombie has no command line.)"""
        if self.process is not None and self.process.poll() is not None:
            return False
        return self.pid > 0 and str(self.data) in command_line(self.pid)

    def send(self, signal_number: int) -> bool:
        """Send a signal if it runs; whether it did."""
        if not self.running():
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True

    def log_tail(self, lines: int = 12) -> str:
        """The end of its log, for a message that says why it did not start."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16_384))
                return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
        except OSError:
            return ""


@dataclass(slots=True)
class LocalCluster:
    """The servers under one directory. `create` or `load`, then `spawn`, `stop`; `save` is done by them."""

    directory: Path
    servers: list[LocalServer] = field(default_factory=list)

    @staticmethod
    def create(directory: Path, size: int, base_port: int) -> LocalCluster:
        """Lay out a new cluster of ``size`` servers on ports base_port, base_port + 1, …; nothing is started.

        Raises UsageProblem, and Failed for a port in use; the directory is as it was then.
        """
        if not 1 <= size <= SIZE_MAX:
            raise UsageProblem(f"--size {size}: 1 to {SIZE_MAX} servers")
        if not 1 <= base_port <= 65_536 - size:
            raise UsageProblem(f"--base-port {base_port}: ports are 1 to 65535, and each server takes one")
        root = Path(os.path.realpath(directory))
        cluster = LocalCluster(root)
        for id in range(1, size + 1):
            address = f"{HOST}:{base_port + id - 1}"
            cluster.servers.append(LocalServer(id, address, root / f"server-{id}", root / f"server-{id}.log"))
        _check_ports(cluster.servers, "begin elsewhere with --base-port PORT")
        root.mkdir(parents=True, exist_ok=True)
        cluster.save()
        return cluster

    @staticmethod
    def exists(directory: Path) -> bool:
        return _state_file(directory).exists()

    @staticmethod
    def load(directory: Path) -> LocalCluster:
        """Raises UsageProblem if there is no cluster there, Failed if its state file is damaged."""
        file = _state_file(directory)
        try:
            state = json.loads(file.read_text("utf-8"))
            cluster = LocalCluster(file.parent)
            for s in state["servers"]:
                id = int(s["id"])
                data, log = file.parent / f"server-{id}", file.parent / f"server-{id}.log"
                cluster.servers.append(LocalServer(id, str(s["address"]), data, log, int(s["pid"])))
        except FileNotFoundError as error:
            start = f"alpo cluster start --dir {directory}"
            raise UsageProblem(f"no cluster in {directory} (start one: {start})") from error
        except OSError as error:
            raise UsageProblem(f"{file} cannot be read: {reason(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{file} cannot be read: {error}") from error
        if not cluster.servers:
            raise Failed(f"{file} cannot be read: it names no servers")
        return cluster

    def save(self) -> None:
        state = {"servers": [{"id": s.id, "address": s.address, "pid": s.pid} for s in self.servers]}
        file = _state_file(self.directory)
        fresh = file.with_suffix(".json.new")
        fresh.write_text(json.dumps(state, indent=2) + "\n", "utf-8")
        fresh.replace(file)

    @property
    def addresses(self) -> str:
        """The ``--servers`` string."""
        return ",".join(server.address for server in self.servers)

    def get(self, id: int) -> LocalServer:
        return next(server for server in self.servers if server.id == id)

    def spawn(self, servers: Iterable[LocalServer]) -> None:
        """Start these; their ports are checked first, all of them. Raises Failed if one is in use."""
        wanted = list(servers)
        _check_ports(wanted, "end that process, a cluster keeps its ports")
        members = [word for s in self.servers for word in ("--member", f"{s.id}={s.address}")]
        for server in wanted:
            command = [sys.executable, "-m", "alpo.daemon", "--id", str(server.id), "--data", str(server.data),
                       "--listen", server.address, *members, "--log-format", "console"]
            with server.log.open("ab") as log:
                # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop the servers in order.
                server.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            server.pid = server.process.pid
        self.save()

    def stop(self, grace_s: float = STOP_GRACE_S) -> list[int]:
        """SIGTERM to all that run, SIGKILL to what is still there after ``grace_s``; the ids that had to be killed."""
        for server in self.servers:
            server.send(signal.SIGTERM)
        _wait_gone(self.servers, grace_s)
        killed = [server.id for server in self.servers if server.send(signal.SIGKILL)]
        if not _wait_gone(self.servers, KILLED_WITHIN_S):
            raise Failed("a server is still there after SIGKILL: its disk does not answer")
        return killed


def _check_ports(servers: Iterable[LocalServer], otherwise: str) -> None:
    for server in servers:
        if not port_free(server.port):
            raise Failed(f"port {server.port} (of server {server.id}) is in use by another process: {otherwise}")


def _state_file(directory: Path) -> Path:
    return Path(os.path.realpath(directory)) / "cluster.json"


def _wait_gone(servers: list[LocalServer], timeout_s: float) -> bool:
    until_s = time.monotonic() + timeout_s
    while any(server.running() for server in servers):
        if time.monotonic() >= until_s:
            return False
        time.sleep(_POLL_S)
    return True


def command_line(pid: int) -> list[str]:
    """The words of a process' command line; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return []
    except OSError:
        return []
    asked = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return asked.stdout.decode("utf-8", "replace").split()


def port_free(port: int) -> bool:
    """Could a server listen on this port of loopback now?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_base_port(size: int) -> int:
    """A port from which on ``size`` are free, below the range that outgoing connections take theirs from."""
    for _ in range(200):
        base = random.randrange(10_000, 15_000)
        if all(port_free(port) for port in range(base, base + size)):
            return base
    raise Failed("no free ports between 10000 and 15000")
