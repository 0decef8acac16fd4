"""Three real servers with certificates of their own, whose configuration may change while they run."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from probe import until
from warm import ALPOD

import alpo
from alpo_cli.certificates import client_leaf, make, server_leaf
from alpo_cli.local_cluster import free_base_port

IDS = (1, 2, 3)
NAME = "prod"
CLIENTS = ("append:billing", "read:reader", "admin:ops", "append,read:both")


def make_certificates(directory: Path, name: str = NAME) -> Path:
    """A CA, three servers' certificates and one of each client's."""
    make(directory, name, [*(server_leaf(f"{id}=127.0.0.1") for id in IDS), *map(client_leaf, CLIENTS)], 30)
    return directory


class TlsCluster:
    """The servers; ``certs``: where their certificates are."""

    def __init__(self, home: Path, certs: Path) -> None:
        self.home = home
        self.certs = certs
        base = free_base_port(2 * len(IDS))
        self.addresses = {id: f"127.0.0.1:{base + id - 1}" for id in IDS}
        #: Addresses of HTTP.
        self.visited = {id: f"127.0.0.1:{base + len(IDS) + id - 1}" for id in IDS}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def servers(self) -> str:
        return ",".join(self.addresses.values())

    def configure(self, id: int, mode: str = "require", stem: str = "", certs: Path | None = None) -> None:
        """Write the configuration of a server; ``stem``: of the certificate's files."""
        at, own = certs or self.certs, stem or f"server-{id}"
        lines = [f"id = {id}", f'data = "server-{id}"', f'listen = "{self.addresses[id]}"', 'log_format = "json"']
        lines[1] = f'data = "{self.home / f"server-{id}"}"'
        lines.append(f'http = "{self.visited[id]}"')
        for member, address in self.addresses.items():
            lines += ["[[member]]", f"id = {member}", f'address = "{address}"']
        if mode != "none":
            lines += ["[tls]", f'mode = "{mode}"', f'ca = "{at / "ca.pem"}"', f'name = "{NAME}"']
            lines += [f'cert = "{at / f"{own}.pem"}"', f'key = "{at / f"{own}.key"}"']
        (self.home / f"server-{id}.toml").write_text("\n".join(lines) + "\n")

    def start(self, *ids: int) -> None:
        for id in ids or IDS:
            with (self.home / f"server-{id}.log").open("ab") as log:
                self.processes[id] = subprocess.Popen(
                    [*ALPOD, "--config", str(self.home / f"server-{id}.toml")], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log,
                )

    def reload(self, id: int) -> None:
        self.processes[id].send_signal(signal.SIGHUP)

    def kill(self, id: int) -> None:
        self.processes[id].kill()
        self.processes[id].wait()

    def log(self, id: int) -> str:
        return (self.home / f"server-{id}.log").read_text()

    async def logged(self, id: int, text: str, times: int = 1) -> None:
        await until(lambda: self.log(id).count(text) >= times)

    def tls(self, stem: str, certs: Path | None = None) -> alpo.Tls:
        at = certs or self.certs
        return alpo.Tls(at / "ca.pem", at / f"{stem}.pem", at / f"{stem}.key", NAME)

    def connect(self, stem: str = "", timeout_s: float = 20, certs: Path | None = None) -> alpo.Log:
        return alpo.connect(self.servers, timeout_s=timeout_s, tls=self.tls(stem, certs) if stem else None)

    async def leader(self, stem: str = "ops") -> int:
        """Wait until one leads, with all three behind it."""
        found: list[int] = []

        async def led() -> bool:
            async with self.connect(stem) as log:
                members = [dict(member) for member in await log.status()]
            found[:] = [int(str(member["id"])) for member in members if member.get("state") == "leader"]
            return len(found) == 1 and all(member.get("leader") == found[0] for member in members)

        await until(led)
        return found[0]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@asynccontextmanager
async def tls_cluster(home: Path, mode: str = "require", start: bool = True) -> AsyncIterator[TlsCluster]:
    """Three servers that run, with one leader, unless ``start`` is False."""
    made = TlsCluster(home, make_certificates(home / "certs"))
    try:
        for id in IDS:
            made.configure(id, mode)
        if start:
            made.start()
            await made.leader("" if mode in ("none", "off") else "ops")
        with trio.fail_after(120):
            yield made
    finally:
        made.end()


