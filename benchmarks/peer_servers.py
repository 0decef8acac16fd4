"""Peers that `against_yardstick.py` measures if they are installed: three servers of each on loopback, fresh each turn.

They run with their default settings but for their places and ports, and these: etcd with a quota of 8 GiB, ZooKeeper
with a heap of 1,000 MB. An answer means an fsync on a majority, except for NATS JetStream, which fsyncs every two
minutes. A turn warms them up, as virtual machines need it: 3 s at 64 outstanding, ZooKeeper 10 s. The load goes to the
leader, over at most as many connections as serve that peer best on two cores, or over one for each client where each
has one append in flight. `peer_load.py` is the load.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bench_sides import Case, Turn, Void, run_load
from processor_time import an_append, end, tree

from alpo_cli.local_cluster import free_base_port

LOAD = Path(__file__).with_name("peer_load.py")
FORMED_WITHIN_S = 90.0
#: Seconds between two samples: servers with a hundred threads cost more to sample.
EVERY_S = 0.25

T = TypeVar("T")


class Missing(Exception):
    """A peer that is not installed; the text says what is missing and how to get it."""


def program(name: str, at: Path | None, places: tuple[str, ...] = ()) -> Path | None:
    """Find a program below ``at``, else in ``places``, else on the PATH."""
    found = shutil.which(name, path=":".join([*(str(at / part) for part in ("", "bin", "sbin") if at), *places]))
    return Path(found) if found or (found := shutil.which(name)) else None


class Peer(ABC):
    """A peer; ``package`` is what Debian and Ubuntu call it, ``note`` what a reader of the table has to know."""

    kind: ClassVar[str]
    note: ClassVar[str] = ""
    package: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    connections: ClassVar[int]
    warm_up_s: ClassVar[float] = 3.0
    #: Directories of programs to look into before the PATH.
    places: ClassVar[tuple[str, ...]] = ()

    def __init__(self, at: Path | None = None) -> None:
        """Look below ``at`` first. Raises Missing."""
        self.found = {each: self.need(each, program(each, at, self.places)) for each in self.programs}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def name(self) -> str:
        """Name in the table."""
        return self.kind + self.note

    def need(self, what: str, found: Path | None) -> Path:
        """Insist on a part of it. Raises Missing."""
        if found is None:
            raise Missing(
                f"{self.kind}: no {what} found; on Debian and Ubuntu install {self.package} (its service need not run),"
                " or give --peers-at DIR, where it is unpacked"
            )
        return found

    def turn(self, case: Case, seconds: float) -> Turn:
        """Start three servers, warm them up, load the leader once. Raises Void."""
        own = case.connections if case.connections == case.outstanding else min(case.connections, self.connections)
        with tempfile.TemporaryDirectory(prefix="alpo-bench-") as name:
            directory = Path(name)
            with self.servers(directory):
                self.load(0, case, 64, min(64, self.connections), self.warm_up_s, directory, "--setup")
                leader = self.until("a leader", self.leader)
                ran, servers = self.load(leader, case, case.outstanding, own, seconds, directory)
        cpu_us = an_append(ran.meter.samples, servers, ran.pid, ran.fields["appends"])
        return Turn(ran.fields[case.key], cpu_us)

    def load(
        self, server: int, case: Case, outstanding: int, connections: int, seconds: float, directory: Path, *more: str,
    ) -> tuple[Any, list[list[int]]]:
        """Run `peer_load.py`; returns what it did, and each server's processes. Raises Void."""
        servers = [tree(self.running[n].pid) for n in range(3)]
        command = [
            sys.executable, str(LOAD), self.kind, str(self.ports[server]), "--payload", str(case.payload),
            "--outstanding", str(outstanding), "--connections", str(connections), "--seconds", str(seconds), *more,
        ]
        ran = run_load(command, [pid for pids in servers for pid in pids], seconds, directory, every_s=EVERY_S)
        return ran, servers

    @contextmanager
    def servers(self, directory: Path) -> Iterator[None]:
        """Start three fresh servers, and end them. Raises Void if they do not form a cluster."""
        self.directory, base = directory, free_base_port(9)
        self.ports, self.inner, self.extra = (range(base + at, base + at + 3) for at in (0, 3, 6))
        try:
            for number in range(3):
                self.home(number).mkdir()
            self.start()
            yield
        finally:
            for process in self.running.values():
                end(process)
            self.running.clear()

    def start(self) -> None:
        """Start all servers, and wait until all are well."""
        for number in range(3):
            self.start_server(number)
        self.until("the cluster to form", self.well)

    def home(self, number: int) -> Path:
        """Directory of a server."""
        return self.directory / f"server{number}"

    def spawn(self, number: int, *command: object, **environment: str) -> None:
        """Start a process; its output goes into a file."""
        with (self.directory / f"{number}.log").open("ab") as log:
            self.running[number] = subprocess.Popen(
                [str(word) for word in command], cwd=self.directory, env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def until(self, what: str, asked: Callable[[], T | None]) -> T:
        """Ask until the answer is neither None nor an error. Raises Void."""
        until_s = time.monotonic() + FORMED_WITHIN_S
        while time.monotonic() < until_s:
            with suppress(OSError, KeyError, ValueError, subprocess.CalledProcessError):
                if (answer := asked()) is not None:
                    return answer
            time.sleep(0.1)
        logs = "".join(log.read_text(errors="replace")[-1000:] for log in self.directory.glob("*.log"))
        raise Void(f"{self.name}: no {what} within {FORMED_WITHIN_S:.0f} s:\n{logs}")

    @abstractmethod
    def start_server(self, number: int) -> None:
        """Start one server."""

    @abstractmethod
    def leader(self) -> int | None:
        """The server that leads."""

    @abstractmethod
    def well(self) -> bool | None:
        """True once all servers serve, else None."""


def http(port: int, path: str, body: bytes | None = None) -> dict[str, Any]:
    """Fetch JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=3) as answer:
        fields: dict[str, Any] = json.load(answer)
    return fields


class Etcd(Peer):
    """etcd: `Put` of new keys."""

    kind, package, programs, connections = "etcd", "etcd-server", ("etcd",), 10

    def start_server(self, number: int) -> None:
        serve, inner = f"http://127.0.0.1:{self.ports[number]}", f"http://127.0.0.1:{self.inner[number]}"
        self.spawn(
            number, self.found["etcd"], "--name", f"n{number}", "--data-dir", self.home(number), "--logger", "zap",
            "--log-level", "warn", "--listen-client-urls", serve, "--advertise-client-urls", serve,
            "--listen-peer-urls", inner, "--initial-advertise-peer-urls", inner, "--quota-backend-bytes", 8 << 30,
            "--initial-cluster", ",".join(f"n{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.inner)),
        )

    def leader(self) -> int | None:
        for number, port in enumerate(self.ports):
            status = http(port, "/v3/maintenance/status", b"{}")
            if status["leader"] == status["header"]["member_id"]:
                return number
        return None

    def well(self) -> bool | None:
        healthy = all(http(port, "/health")["health"] == "true" for port in self.ports)
        return True if healthy and self.leader() is not None else None


class ZooKeeper(Peer):
    """ZooKeeper: `setData` of a thousand nodes."""

    kind, package, programs, connections = "zookeeper", "libzookeeper-java and libslf4j-java", ("java",), 4
    warm_up_s = 10.0

    def __init__(self, at: Path | None = None) -> None:
        super().__init__(at)
        below = sorted(str(jar) for part in ("lib", "*/lib") for jar in at.glob(f"{part}/*.jar")) if at else []
        installed = [Path("/usr/share/java/zookeeper.jar"), Path("/usr/share/java/slf4j-simple.jar")]
        whole = any("zookeeper" in jar for jar in below)
        self.need("zookeeper.jar", installed[0] if whole or all(jar.is_file() for jar in installed) else None)
        self.classes = ":".join(below if whole else map(str, installed))

    def start_server(self, number: int) -> None:
        (self.home(number) / "myid").write_text(str(number + 1))
        config = self.directory / f"zoo{number}.cfg"
        config.write_text("".join(f"{line}\n" for line in (
            f"dataDir={self.home(number)}", f"clientPort={self.ports[number]}", "clientPortAddress=127.0.0.1",
            "tickTime=2000", "initLimit=10", "syncLimit=5", "maxClientCnxns=0", "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *(f"server.{n + 1}=127.0.0.1:{self.inner[n]}:{self.extra[n]}" for n in range(3)),
        )))
        self.spawn(number, self.found["java"], "-Xmx1000m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
                   self.classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)

    def modes(self) -> list[str]:
        """Ask each server whether it leads, follows, or neither."""
        modes = []
        for port in self.ports:
            with socket.create_connection(("127.0.0.1", port), 3) as asked:
                asked.sendall(b"srvr")
                said = asked.makefile().read()
            modes.append(next(mode for mode in ("leader", "follower", "") if f"Mode: {mode}" in said or not mode))
        return modes

    def leader(self) -> int | None:
        return self.modes().index("leader")

    def well(self) -> bool | None:
        return True if sorted(self.modes()) == ["follower", "follower", "leader"] else None


class RabbitMQ(Peer):
    """RabbitMQ: a quorum queue with the publisher's confirms."""

    kind, package, connections = "rabbitmq", "rabbitmq-server", 4
    programs = ("rabbitmq-server", "rabbitmqctl", "epmd")
    #: Debian's commands on the PATH are wrappers that change the user.
    places = ("/usr/lib/rabbitmq/bin",)
    #: Key of the port mapper among the processes.
    MAPPER = 3

    def start(self) -> None:
        self.mapper = {"HOME": str(self.directory), "ERL_EPMD_PORT": str(free_base_port(1)),
                       "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self.spawn(self.MAPPER, self.found["epmd"], **self.mapper)
        (self.directory / "plugins").write_text("[].\n")
        for number in range(3):  # The first founds the cluster, the others join it.
            self.start_server(number)
            self.until(f"server {number + 1}", partial(self.control, number, "await_startup", "--timeout", "60"))
        self.until("the cluster to form", self.well)

    def start_server(self, number: int) -> None:
        config = self.directory / f"rabbit{number}.conf"
        config.write_text("".join(f"{line}\n" for line in (
            f"listeners.tcp.1 = 127.0.0.1:{self.ports[number]}",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{n + 1} = peer{n}@localhost" for n in range(3)),
        )))
        self.spawn(
            number, self.found["rabbitmq-server"], **self.mapper, RABBITMQ_NODENAME=f"peer{number}@localhost",
            RABBITMQ_DIST_PORT=str(self.inner[number]), RABBITMQ_MNESIA_BASE=str(self.home(number)),
            RABBITMQ_LOG_BASE=str(self.home(number)), RABBITMQ_CONFIG_FILE=str(config),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.directory / "plugins"),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}",
            RUNNING_UNDER_SYSTEMD="true",  # Makes its script become the server, not wait for it.
        )

    def control(self, number: int, *command: str) -> str:
        """Run rabbitmqctl; returns what it prints."""
        return subprocess.run(
            [str(self.found["rabbitmqctl"]), "-q", "-n", f"peer{number}@localhost", *command], check=True, text=True,
            env={**os.environ, **self.mapper}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def leader(self) -> int | None:
        found = self.control(0, "list_queues", "leader", "--no-table-headers").split()
        return int(found[0].removeprefix("peer").split("@")[0]) if found else None

    def well(self) -> bool | None:
        statuses = [json.loads(self.control(n, "cluster_status", "--formatter", "json")) for n in range(3)]
        return True if all(len(status["running_nodes"]) == 3 for status in statuses) else None


class Nats(Peer):
    """NATS JetStream: a stream of three replicas in files, not fsynced before the answer."""

    kind, package, programs, connections = "nats", "nats-server", ("nats-server",), 10
    note = ", no fsync"

    def start_server(self, number: int) -> None:
        config = self.directory / f"nats{number}.conf"
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.inner)
        config.write_text(
            f'server_name: n{number}\nlisten: "127.0.0.1:{self.ports[number]}"\n'
            f'http: "127.0.0.1:{self.extra[number]}"\n'
            f'jetstream {{ store_dir: "{self.home(number)}", max_file_store: 20GB }}\n'
            f'cluster {{ name: peers, listen: "127.0.0.1:{self.inner[number]}", routes: [{routes}] }}\n'
        )
        self.spawn(number, self.found["nats-server"], "-c", config)

    def leader(self) -> int | None:
        """The server that leads the stream's group; there is none before the stream is made."""
        for number, port in enumerate(self.extra):
            for account in http(port, "/jsz?accounts=true&streams=true").get("account_details", []):
                if any(stream["cluster"].get("leader") == f"n{number}" for stream in account.get("stream_detail", [])):
                    return number
        return None

    def well(self) -> bool | None:
        return True if all(http(port, "/jsz")["meta_cluster"].get("leader") for port in self.extra) else None


PEERS: dict[str, type[Peer]] = {peer.kind: peer for peer in (Etcd, ZooKeeper, RabbitMQ, Nats)}
