"""Clusters of real alpod processes for tests: started, stopped, killed, paused, and seen through.

Laws:

* Every server listens on a port of its own choice, which nobody is told: the member list names the `Network`'s
  addresses, so that nothing goes around the faults. (``proxied=False``: the real ports are in the list.)
* Nothing outlives the test: servers are killed on leaving, and by the kernel if this process dies first.
* Servers and commands are forks of a warm process (`warm`), but for those of another release or with variables.
* Nothing waits for a time: everything polls a condition, with a deadline that says what it waited for.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio
import warm
from ports import free_port
from probe import WITHIN_S, status, until
from proxy import HOST, Network
from warm import ALPO, ALPOD

from alpo import connect
from alpo.core.entries import Entry

warm.install()  # programs such as the soak import this, too
_TAIL_LINES = 40
#: Program of a server of another release: a new Python process, which the kernel kills when this process dies.
_ALPOD = "import ctypes; ctypes.CDLL(None).prctl(1, 9); from alpo.daemon import main; main()"
_ALPO = "from alpo_cli.main import main; main()"


def _command(warm_one: list[str], code: str, release: Path | None) -> tuple[list[str], dict[str, str]]:
    """Words and environment for a process of ``release``, a file to import from; None: of the code that is tested."""
    if release is None:
        return warm_one, dict(os.environ)
    return [sys.executable, "-P", "-c", code], os.environ | {"PYTHONPATH": str(release)}


class Server:
    """One alpod: its directory, its configuration, its process."""

    def __init__(
        self, id: int, home: Path, members: Mapping[int, str], options: Mapping[str, Any], join: str = ""
    ) -> None:
        self.id = id
        self.join = join
        self.home = home
        self.data = home / f"server-{id}"
        self.log = home / f"server-{id}.log"
        self.port = 0
        self.members = dict(members)
        self.options = dict(options)
        #: Address of HTTP, with the option ``http=True``; else "".
        self.visited = f"{HOST}:{free_port()}" if self.options.pop("http", False) else ""
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        #: The release to run, as a file to import from; None: this one.
        self.release: Path | None = None
        #: Environment variables beside our own. If there are any, the server is a new Python process, not a fork.
        self.environ: dict[str, str] = {}
        #: True while the server was started and should run: if it has ended, it ended by itself.
        self.wanted = False

    @property
    def address(self) -> str:
        """Address at which the server itself listens."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self, port: int) -> None:
        """Start the process, which logs to `log`."""
        assert not self.running
        self.port, self.wanted = port, True
        config = self.home / f"server-{self.id}.toml"
        config.write_text(self._toml(), "utf-8")
        command, environ = _command(ALPOD, _ALPOD, self.release)
        if self.environ:
            command, environ = [sys.executable, "-P", "-c", _ALPOD], environ | self.environ
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
            )

    def _toml(self) -> str:
        tables = {name: table for name, table in self.options.items() if isinstance(table, dict)}
        lines = [f"id = {self.id}", f'data = "{self.data}"', f'listen = "{self.address}"', 'log_format = "json"']
        lines.append(f'advertise = "{self.members[self.id]}"')  # the proxy, for the address not to be "corrected" (R27)
        lines += [f'http = "{self.visited}"'] if self.visited else []
        lines += [f"{key} = {_literal(value)}" for key, value in self.options.items() if key not in tables]
        if self.join:
            lines.append(f'join = "{self.join}"')
        for id, address in self.members.items() if not self.join else ():
            lines += ["[[member]]", f"id = {id}", f'address = "{address}"']
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items())]
        return "\n".join(lines).replace("{id}", str(self.id)) + "\n"

    def kill(self) -> None:
        """Kill the server with kill -9, and wait for its end."""
        self.wanted = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.paused = False

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let the process go on with SIGCONT."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    async def ended(self, within_s: float = WITHIN_S) -> int:
        """Wait for the process to end; its exit code."""
        assert self.process is not None
        self.wanted = False
        with suppress(trio.TooSlowError):
            await until(lambda: not self.running, within_s)
            return self.process.returncode
        raise AssertionError(f"server {self.id} has not ended within {within_s:g} s\n{self.tail()}")

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The end of its log."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return f"--- server {self.id}, {self.log}\n" + "\n".join(text.splitlines()[-lines:])

    def count(self, what: str) -> int:
        """The number of the process's open files ("fd") or threads ("task")."""
        assert self.process is not None
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/{what}").iterdir())

    def folder(self, number: int = 1) -> Path:
        """The directory of a log's store; that of the first one holds all."""
        return self.data if number == 1 else self.data / "logs" / str(number)

    def entries(self, number: int = 1) -> list[Entry]:
        """Entries of a log on a stopped server's disk."""
        assert not self.running
        columns = ", ".join(f'"{name}"' for name in Entry._fields)
        db = sqlite3.connect(f"file:{self.folder(number) / 'alpo.db'}?mode=ro", uri=True)
        try:
            return [Entry(*row) for row in db.execute(f"SELECT {columns} FROM log ORDER BY id")]
        finally:
            db.close()


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


class Cluster:
    """Several servers and the network between them. Made by `cluster`."""

    def __init__(
        self, home: Path, network: Network | None, members: Mapping[int, str], options: Mapping[str, Any],
    ) -> None:
        self.home = home
        self.members = dict(members)
        self._network = network
        self._options = dict(options)
        self.servers = {id: Server(id, home, members, options) for id in members}

    @property
    def network(self) -> Network:
        assert self._network is not None, "a cluster without proxies"
        return self._network

    @property
    def addresses(self) -> str:
        """The ``--servers`` string."""
        return ",".join(self.members.values())

    def start(self, *ids: int) -> None:
        """Start these servers, all by default."""
        for id in ids or self.servers:
            if self._network is None:
                self.servers[id].spawn(int(self.members[id].rpartition(":")[2]))
            else:
                port = self._network.ports[id] = free_port()
                self.servers[id].spawn(port)

    def lose(self, id: int) -> None:
        """Kill this server, remove its disk, and start it with an empty one."""
        self.servers[id].kill()
        shutil.rmtree(self.servers[id].data)
        self.start(id)

    async def newcomer(self, id: int, **options: Any) -> str:
        """Start a server that waits to be added, in the place of one of that id if there is one; its address.
        ``options``: of its configuration, beside the cluster's."""
        replaces = id in self.members  # the leader finds a replacement by itself, unasked
        address = await self.network.open(id)
        join = ",".join(other for member, other in self.members.items() if member != id)
        self.members[id] = address
        before = self.servers.get(id)
        self.servers[id] = Server(id, self.home / "newcomers", {id: address}, self._options | options, join)
        self.servers[id].environ |= before.environ if before is not None else {}
        (self.home / "newcomers").mkdir(exist_ok=True)
        self.start(id)
        if not replaces:
            await self.until(f"server {id} answers", lambda found: id in found)
        return address

    async def stop(self, *ids: int) -> dict[int, int]:
        """Send SIGTERM to these servers, all by default, at once; their exit codes."""
        wanted = [self.servers[id] for id in ids or self.servers]
        for server in wanted:
            assert server.process is not None
            server.wanted = False
            server.process.terminate()
        return {server.id: await server.ended() for server in wanted}

    def others(self, *ids: int) -> list[int]:
        """All ids but these."""
        return [id for id in self.servers if id not in ids]

    async def status(self, id: int, log: str = "") -> dict[str, Any] | None:
        """A server's status in a log, by default the first; None if it does not answer."""
        server = self.servers[id]
        return await status(server.address, log) if server.running and not server.paused else None

    async def statuses(self, log: str = "") -> dict[int, dict[str, Any]]:
        """Statuses of all servers that answer, by id."""
        found: dict[int, dict[str, Any]] = {}

        async def ask(id: int) -> None:
            fields = await self.status(id, log)
            if fields is not None:
                found[id] = fields

        async with trio.open_nursery() as nursery:
            for id in self.servers:
                nursery.start_soon(ask, id)
        return found

    async def until(
        self, what: str, condition: Callable[[dict[int, dict[str, Any]]], bool], within_s: float = WITHIN_S,
        log: str = "",
    ) -> dict[int, dict[str, Any]]:
        """Wait until the statuses are so; returns them. Fails at once if a server has ended by itself."""
        found: dict[int, dict[str, Any]] = {}

        async def so() -> bool:
            nonlocal found
            found = await self.statuses(log)
            dead = [id for id, server in self.servers.items() if server.wanted and not server.running]
            is_so = condition(found)
            assert is_so or not dead, f"servers {dead} have ended by themselves"
            return is_so

        with suppress(trio.TooSlowError):
            await until(so, within_s)
            return found
        raise AssertionError(f"not within {within_s:g} s: {what}; the servers say: {found}")

    async def leader(self, among: Iterable[int] | None = None, within_s: float = WITHIN_S) -> int:
        """Wait until one of these leads (all by default), with a majority that follows it; its id."""
        wanted = set(self.servers if among is None else among)
        leads: list[int] = []

        def led(found: dict[int, dict[str, Any]]) -> bool:
            terms = [fields["term"] for fields in found.values()]
            leads[:] = [
                id for id, fields in found.items()
                if id in wanted and fields["state"] == "leader" and fields["term"] == max(terms)
                and 2 * sum(other["leader"] == id for other in found.values()) > len(self.servers)
            ]
            return bool(leads)

        await self.until(f"a leader among {sorted(wanted)}", led, within_s)
        return leads[0]

    async def level(self, within_s: float = WITHIN_S, log: str = "") -> int:
        """Wait until all servers answer, one leads and all hold and know the same end; the last LSN."""
        def same(found: dict[int, dict[str, Any]]) -> bool:
            ends = {(f["last_id"], f["guaranteed_id"], f["last_lsn"]) for f in found.values()}
            leads = [id for id, f in found.items() if f["state"] == "leader"]
            return len(found) == len(self.servers) and len(ends) == 1 and len(leads) == 1

        found = await self.until("all servers level", same, within_s, log)
        return int(next(iter(found.values()))["last_lsn"])


@asynccontextmanager
async def cluster(
    home: Path, size: int = 3, *, proxied: bool = True, start: bool = True, **options: Any
) -> AsyncIterator[Cluster]:
    """A cluster under ``home``; ``options`` are keys and tables of every server's configuration.

    On a failure the ends of the servers' logs go to stderr.
    """
    async with trio.open_nursery() as nursery:
        network = Network(nursery) if proxied else None
        members = {
            id: await network.open(id) if network is not None else f"{HOST}:{free_port()}"
            for id in range(1, size + 1)
        }
        made = Cluster(home, network, members, options)
        try:
            if start:
                made.start()
                if size > 1:  # one alone waits for `alpo cluster init`
                    await made.leader()  # an election on a busy machine may outlast a client's timeout
            yield made
        except BaseException:
            for server in made.servers.values():
                print(server.tail(), file=sys.stderr)
            raise
        finally:
            for server in made.servers.values():
                server.kill()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(running: Cluster) -> AsyncIterator[None]:
    """Append all the while; every append succeeds, and all payloads can be read afterwards."""
    appended: list[int] = []

    async def append_on() -> None:
        async with connect(running.addresses, timeout_s=30) as log:
            while True:
                appended.append(await log.append(b"%d" % len(appended)))
                await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append_on)
        yield
        at_least = len(appended) + 20
        await until(lambda: len(appended) >= at_least)
        nursery.cancel_scope.cancel()
    async with connect(running.addresses) as log:
        payloads = {record.lsn: record.payload async for record in log.read(start=appended[0])}
    assert [payloads[lsn] for lsn in appended] == [b"%d" % number for number in range(len(appended))]


class Command:
    """The alpo command as a process that is talked to. Made by `alpo_process`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._read = b""

    async def write(self, data: bytes) -> None:
        """Write to the command's stdin."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(data)

    async def line(self) -> dict[str, Any]:
        """The next line of JSON on its stdout."""
        assert self._process.stdout is not None
        with trio.fail_after(WITHIN_S):
            while b"\n" not in self._read:
                data = await self._process.stdout.receive_some()
                assert data, "stdout has ended"
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        fields: dict[str, Any] = json.loads(line)
        return fields

    async def end(self) -> tuple[int, str]:
        """Close its stdin and wait for it to end; its exit code and all of its stderr."""
        assert self._process.stdin is not None and self._process.stderr is not None
        await self._process.stdin.aclose()
        text = b""
        with trio.fail_after(WITHIN_S):
            async for data in self._process.stderr:
                text += data
            return await self._process.wait(), text.decode()


@asynccontextmanager
async def alpo_process(*arguments: str, release: Path | None = None) -> AsyncIterator[Command]:
    """The alpo command, its stdin open; killed on leaving if it still runs."""
    pipe = subprocess.PIPE
    command, environ = _command(ALPO, _ALPO, release)
    process = await trio.lowlevel.open_process(
        [*command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environ
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()


async def alpo(*arguments: str, stdin: bytes = b"", release: Path | None = None) -> tuple[int, str, str]:
    """The alpo command in a process of its own: exit code, stdout, stderr."""
    command, environ = _command(ALPO, _ALPO, release)
    done = await trio.run_process(
        [*command, *arguments], stdin=stdin, capture_stdout=True, capture_stderr=True, check=False, env=environ,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()
