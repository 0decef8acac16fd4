"""Local clusters of real alpod processes, for development, benches and demos: files, processes, and waiting for them.

Laws:

* DIR/cluster.json lists the servers (ports, data directories) and the pids started last. It is replaced whole, never
  written in place.
* A pid is only a hint: a process counts as running, and is sent a signal, only if its command line names the server's
  data directory.
* Every wait is bounded.
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
from typing import Any

import alpo
from alpo.core.directory import FIRST_NAME
from alpo.errors import AlpoError
from alpo.tls import NAME_DEFAULT, Tls

from .certificates import Leaf, make
from .exits import Failed, UsageProblem, reason

HOST = "127.0.0.1"
SIZE_MAX = 9
STOP_GRACE_S = 10.0
#: Distance of a server's port for HTTP from its own.
HTTP_ABOVE = 80
KILLED_WITHIN_S = 5.0
_POLL_S = 0.02
#: Certificates of a local cluster: that of its clients, and how long all are good for.
_CLIENT = "client"
_CERTIFICATE_DAYS = 3_652


@dataclass(slots=True)
class LocalServer:
    """One server; ``pid`` is 0 if it was never started, ``process`` is set only in the process that started it."""

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
        """True if this server was started before, and its data is gone."""
        return self.pid > 0 and not (self.data / "alpo.db").exists()

    def running(self) -> bool:
        """True if the process started last is still this alpod. (A zombie has no command line, nor has a process whose
        program is just being loaded: what this process started itself is asked of the kernel.)"""
        if self.process is not None:
            return self.process.poll() is None
        return self.pid > 0 and str(self.data) in command_line(self.pid)

    def send(self, signal_number: int) -> bool:
        """Send a signal if it runs; True if it did."""
        if not self.running():
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True

    def log_tail(self, lines: int = 12) -> str:
        """Last lines of its log, for an error message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16_384))
                return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
        except OSError:
            return ""


@dataclass(slots=True)
class LocalCluster:
    """The servers in a directory: `create` or `load`, then `spawn` and `stop`, which also save."""

    directory: Path
    servers: list[LocalServer] = field(default_factory=list)
    #: True if each server has a page, `HTTP_ABOVE` ports above its own.
    http: bool = False

    @staticmethod
    def create(directory: Path, size: int, base_port: int, tls: bool = False) -> LocalCluster:
        """Lay out a new cluster of ``size`` servers on ports base_port, base_port + 1, …; nothing is started. ``tls``:
        with certificates of its own.

        Raises UsageProblem, and Failed if a port is in use; the directory is unchanged then.
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
        if tls:
            leaves = [Leaf(f"server-{server.id}", (f"peer/{server.id}",), (HOST,)) for server in cluster.servers]
            make(cluster.certificates, NAME_DEFAULT, [*leaves, Leaf(_CLIENT, ("admin",), ())], _CERTIFICATE_DAYS)
        cluster.save()
        cluster.use_certificates()
        return cluster

    @staticmethod
    def exists(directory: Path) -> bool:
        """True if the directory has a cluster's state file."""
        return _state_file(directory).exists()

    @staticmethod
    def load(directory: Path) -> LocalCluster:
        """Load a cluster's state. Raises UsageProblem if there is none, Failed if its state file is damaged."""
        file = _state_file(directory)
        try:
            state = json.loads(file.read_text("utf-8"))
            cluster = LocalCluster(file.parent)
            for s in state["servers"]:
                id = int(s["id"])
                data, log = file.parent / f"server-{id}", file.parent / f"server-{id}.log"
                cluster.servers.append(LocalServer(id, str(s["address"]), data, log, int(s["pid"])))
            cluster.http = bool(state.get("http"))
        except FileNotFoundError as error:
            start = f"alpo cluster start --dir {directory}"
            raise UsageProblem(f"no cluster in {directory} (start one: {start})") from error
        except OSError as error:
            raise UsageProblem(f"{file} cannot be read: {reason(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{file} cannot be read: {error}") from error
        if not cluster.servers:
            raise Failed(f"{file} cannot be read: it names no servers")
        cluster.use_certificates()
        return cluster

    @property
    def certificates(self) -> Path:
        """The directory of its certificates, if it has any."""
        return self.directory / "certs"

    @property
    def tls(self) -> Tls | None:
        """Certificates of its clients; None: it speaks plain."""
        at = self.certificates
        return Tls(at / "ca.pem", at / f"{_CLIENT}.pem", at / f"{_CLIENT}.key") if at.exists() else None

    def use_certificates(self) -> None:
        """Have every connection of this process, and of those that it starts, show and trust its certificates; or none,
        if it has none, whatever the environment names."""
        for name in ("ALPO_CA", "ALPO_CERT", "ALPO_KEY", "ALPO_TLS_NAME"):
            os.environ.pop(name, None)
        os.environ |= self.client_environment

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables by which clients speak to it over TLS."""
        return dict(zip(("ALPO_CA", "ALPO_CERT", "ALPO_KEY"), self.tls.files, strict=True)) if self.tls else {}

    def _server_environment(self, server: LocalServer) -> dict[str, str]:
        own = self.certificates / f"server-{server.id}"
        files = {"CA": self.certificates / "ca.pem", "CERT": f"{own}.pem", "KEY": f"{own}.key"}
        found = {f"ALPOD_TLS_{name}": str(path) for name, path in files.items()} if self.tls else {}
        if self.http:  # the page asks for no certificate, as a browser has none: it is on the loopback
            found |= {"ALPOD_HTTP": f"{HOST}:{server.port + HTTP_ABOVE}", "ALPOD_HTTP_AUTH": "none"}
        return found

    @property
    def page(self) -> str:
        """The address of the first server's page, for a browser."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.servers[0].port + HTTP_ABOVE}/"

    def save(self) -> None:
        """Write the state file."""
        servers = [{"id": s.id, "address": s.address, "pid": s.pid} for s in self.servers]
        state = {"http": self.http, "servers": servers}
        file = _state_file(self.directory)
        fresh = file.with_suffix(".json.new")
        fresh.write_text(json.dumps(state, indent=2) + "\n", "utf-8")
        fresh.replace(file)

    @property
    def addresses(self) -> str:
        """Value for ``--servers``."""
        return ",".join(server.address for server in self.servers)

    def get(self, id: int) -> LocalServer:
        """The server with this id."""
        return next(server for server in self.servers if server.id == id)

    def spawn(self, servers: Iterable[LocalServer]) -> None:
        """Start these servers, once all of their ports are free: a process that was killed holds its port for as long
        as its last write takes. Raises Failed if one stays in use."""
        wanted = list(servers)
        _check_ports(wanted, "end that process, a cluster keeps its ports")
        members = [word for s in self.servers for word in ("--member", f"{s.id}={s.address}")]
        for server in wanted:
            command = [sys.executable, "-m", "alpo.daemon", "--id", str(server.id), "--data", str(server.data),
                       "--listen", server.address, *members, "--log-format", "console"]
            with server.log.open("ab") as log:
                # the server's own session keeps Ctrl-C from it: this process gets it, and stops the servers in order
                server.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env=os.environ | self._server_environment(server),
                )
            server.pid = server.process.pid
        self.save()

    def wait_for_killed(self) -> None:
        """Wait until servers that were killed are gone: a process stays until its last write is done. Raises Failed."""
        until_s = time.monotonic() + KILLED_WITHIN_S
        for server in self.servers:
            while server.running() and being_killed(server.pid):
                if time.monotonic() >= until_s:
                    raise Failed(f"server {server.id} was killed and is still there: its disk does not answer")
                time.sleep(_POLL_S)

    def stop(self, grace_s: float = STOP_GRACE_S) -> list[int]:
        """Send SIGTERM to all that run, SIGKILL to those left after ``grace_s``; returns the ids of killed ones. Raises
        Failed."""
        for server in self.servers:
            server.send(signal.SIGTERM)
        _wait_gone(self.servers, grace_s)
        killed = [server.id for server in self.servers if server.send(signal.SIGKILL)]
        if not _wait_gone(self.servers, KILLED_WITHIN_S):
            raise Failed("a server is still there after SIGKILL: its disk does not answer")
        return killed


def _check_ports(servers: Iterable[LocalServer], otherwise: str) -> None:
    for server in servers:
        until_s = time.monotonic() + (KILLED_WITHIN_S if server.pid else 0)
        while not port_free(server.port):
            if time.monotonic() < until_s:
                time.sleep(_POLL_S)
                continue
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
    """Words of a process' command line; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return []
    except OSError:
        return []
    asked = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return asked.stdout.decode("utf-8", "replace").split()


def being_killed(pid: int, proc: Path = Path("/proc")) -> bool:
    """True if a process was sent SIGKILL and is not gone yet; False where the system does not say."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return False
    pending = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(signals >> signal.SIGKILL - 1 & 1 for signals in pending)


def port_free(port: int) -> bool:
    """True if a server could listen on this port of loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_base_port(size: int) -> int:
    """First of ``size`` consecutive free ports, below the range of outgoing connections. Raises Failed."""
    for _ in range(200):
        base = random.randrange(10_000, 15_000)
        if all(port_free(port) for port in range(base, base + size)):
            return base
    raise Failed("no free ports between 10000 and 15000")


#: Entries by which servers may differ under load and still count as level.
LEVEL_ENTRIES = 5_000
_ASK_EVERY_S = 0.03
_ANSWER_WITHIN_S = 1.0


async def statuses(log: alpo.Log) -> list[dict[str, Any]]:
    """Status of the members that answer now."""
    try:
        return [dict(member) for member in await log.status(timeout_s=_ANSWER_WITHIN_S) if member.get("reachable")]
    except AlpoError:
        return []


async def leader_within(cluster: LocalCluster, timeout_s: float) -> int:
    """Wait until a server leads; returns its id. A cluster of one that was never started is founded. A server that ran
    before, and ends meanwhile because it was told to stop, is started again.

    Raises Failed, with the end of a server's log, if a server has ended that was started here, or after ``timeout_s``.
    """
    import anyio  # imported here: help does without it

    with anyio.move_on_after(timeout_s):
        async with alpo.connect(cluster.addresses, log=FIRST_NAME) as log:
            while True:
                members = await statuses(log)
                for server in cluster.servers:
                    if not server.running():
                        if server.process is not None:
                            raise Failed(f"server {server.id} did not start; its log ends:\n{server.log_tail()}")
                        cluster.spawn([server])
                        members = []
                for member in members:
                    if member["state"] == "leader":
                        return int(member["id"])
                if len(cluster.servers) == 1 and members and members[0]["status"] in ("EMPTY", "STARTING"):
                    await log.init()
                await anyio.sleep(_ASK_EVERY_S)
    tail = cluster.servers[0].log_tail()
    raise Failed(f"no leader within {timeout_s:g} s; the log of server {cluster.servers[0].id} ends:\n{tail}")


async def caught_up_within(cluster: LocalCluster, timeout_s: float, steady: bool = True) -> int:
    """Wait until every server answers, one leads, and all are level; returns the leader's id. Raises Failed.

    Level: the copies end at the same payload, each on its own disk; without ``steady`` (appends continue meanwhile)
    they are at most LEVEL_ENTRIES apart.
    """
    import anyio

    apart_max = 0 if steady else LEVEL_ENTRIES
    with anyio.move_on_after(timeout_s):
        async with alpo.connect(cluster.addresses, log=FIRST_NAME) as log:
            while True:
                members = await statuses(log)
                marks = [member["guaranteed_id"] for member in members]
                leaders = [member["id"] for member in members if member["state"] == "leader"]
                if len(members) == len(cluster.servers) and len(leaders) == 1:
                    level = max(marks) - min(marks) <= apart_max
                    if steady:  # the mark may be ahead of the server's own disk
                        level = level and len({member["last_lsn"] for member in members}) == 1
                    if level:
                        return int(leaders[0])
                await anyio.sleep(_ASK_EVERY_S)
    raise Failed(f"the servers were not all there and level within {timeout_s:g} s")
