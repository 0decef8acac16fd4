"""Sides that `against_yardstick.py` measures in turns: the yardstick, ALPO of this checkout, ALPO from elsewhere.

A turn starts fresh servers, loads them once, ends them, and waits until they have gone. All of them run in this
session: Linux may share out the processor by session (`sched_autogroup_enabled`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processor_time import EVERY_S, AnAppend, Meter, an_append, arguments, children, end, ended

from alpo_cli.local_cluster import free_base_port

REPOSITORY = Path(__file__).resolve().parents[1]
BLOCKING_LOAD = Path(__file__).with_name("blocking_load.py")
#: Seconds that a load may take beyond those that it was told.
LATE_S = 90.0


class Void(Exception):
    """A turn without figures; the text says why."""


@dataclass(frozen=True)
class Case:
    """One load; ``key`` names the compared figure. ``blocking``: by the client without an event loop."""

    name: str
    payload: int
    outstanding: int
    connections: int
    key: str
    blocking: bool = False

    @property
    def text(self) -> str:
        size = f"{self.payload >> 10} KiB" if self.payload >= 1024 else f"{self.payload} B"
        over = f"{self.connections} connection{'s' * (self.connections > 1)}"
        client = ", the blocking client" if self.blocking else ""
        return f"{size}, {self.outstanding:,} outstanding over {over}{client}"


@dataclass(frozen=True)
class Turn:
    """Figures of one turn."""

    figure: float
    cpu_us: AnAppend | None


@dataclass(frozen=True)
class Ran:
    """A load that has ended: the fields of its last line, its process, what was sampled meanwhile."""

    fields: dict[str, Any]
    pid: int
    meter: Meter


def last_json(text: str, command: list[str]) -> dict[str, Any]:
    """The JSON in the last line of what a command printed. Raises Void."""
    try:
        fields: dict[str, Any] = json.loads(text.splitlines()[-1])
    except (IndexError, ValueError):
        raise Void(f"{' '.join(command)} printed no figures: {text!r}") from None
    return fields


def run_load(
    command: list[str], servers: list[int], seconds: float, directory: Path, environment: dict[str, str] | None = None,
    every_s: float = EVERY_S,
) -> Ran:
    """Run a load that prints its figures as JSON; meanwhile sample it and the servers' processes. Raises Void."""
    meter, slices = Meter(), int((seconds + LATE_S) / every_s)
    meter.sample(servers)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=directory) as load:
            try:
                for _ in range(slices):
                    meter.sample([*servers, load.pid])
                    if ended(load, every_s):
                        break
                else:
                    raise Void(f"{' '.join(command)} did not end")
            finally:
                end(load)
        meter.sample([*servers, load.pid])
        out.seek(0)
        err.seek(0)
        if load.returncode:
            raise Void(f"{' '.join(command)} ended with {load.returncode}:\n{err.read().decode()}")
        return Ran(last_json(out.read().decode(), command), load.pid, meter)


class Yardstick:
    """Three bare servers and a load on loopback; its ``run.py`` starts and ends them, once a turn."""

    name = "yardstick"

    def __init__(self, run: Path) -> None:
        self._run = run

    def turn(self, case: Case, seconds: float) -> Turn:
        """Run it once. Its servers and loads are its children `server.py` and `load.py`, the last of whose arguments
        are connections and appends; the last load is the one measured, an earlier one finds out how many appends there
        are to be. Raises Void."""
        command = [
            sys.executable, str(self._run), "--payload", str(case.payload), "--outstanding", str(case.outstanding),
            "--seconds", str(seconds), "--connections", str(case.connections),
        ]
        servers: list[int] = []
        meter, load, appends = Meter(), 0, 0
        with tempfile.TemporaryDirectory(prefix="alpo-bench-") as directory, tempfile.TemporaryFile() as out:
            running = subprocess.Popen(command, stdout=out, env={**os.environ, "TMPDIR": directory})
            try:
                while not ended(running, EVERY_S):
                    known = {pid: arguments(pid) for pid in children(running.pid)}
                    servers = servers or [pid for pid, words in known.items() if "server.py" in " ".join(words)]
                    loads = [pid for pid, words in known.items() if "load.py" in " ".join(words)]
                    if loads and loads[0] != load:
                        servers = [pid for pid, words in known.items() if "server.py" in " ".join(words)]
                        load, meter = loads[0], Meter()
                        connections, count = map(int, known[load][-2:])
                        appends = count // connections * connections
                    if loads:
                        meter.sample([*servers, load])
            finally:
                end(running)
            out.seek(0)
            if running.returncode:
                raise Void(f"{' '.join(command)} ended with {running.returncode}")
            fields = last_json(out.read().decode(), command)
        return Turn(fields[case.key], an_append(meter.samples, [[pid] for pid in servers], load, appends))


class Alpo:
    """ALPO as an interpreter finds it: below ``checkout`` if that is given, else as installed for ``python``."""

    def __init__(self, name: str, python: Path, checkout: Path | None) -> None:
        self.name = name
        self._python = str(python)
        self._checkout = checkout
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if checkout is not None:
            self._environment["PYTHONPATH"] = ":".join(str(checkout / part) for part in ("", "cli", "sim"))

    def origin(self) -> str:
        """Say where it is imported from, and whether its core is compiled. Raises Void if it cannot be imported, or is
        not what was asked for."""
        ask = "import alpo, alpo_cli.main, alpo.daemon, alpo.core.replica as r; print(alpo.__file__); print(r.__file__)"
        with tempfile.TemporaryDirectory(prefix="alpo-bench-") as elsewhere:
            said = subprocess.run([self._python, "-c", ask], capture_output=True, text=True, check=False, cwd=elsewhere,
                                  env=self._environment)
        if said.returncode:
            raise Void(f"{self.name}: {self._python} cannot import it:\n{said.stderr}")
        package, core = said.stdout.split("\n")[:2]
        if self._checkout is not None and not Path(package).is_relative_to(self._checkout):
            raise Void(f"{self.name}: imported from {package}, not from {self._checkout}")
        return f"{Path(package).parent}, {'pure' if core.endswith('.py') else 'compiled'}"

    def turn(self, case: Case, seconds: float) -> Turn:
        """Start three servers, load them once. Raises Void, also if an append failed."""
        with tempfile.TemporaryDirectory(prefix="alpo-bench-") as name:
            directory = Path(name)
            with self.servers(directory) as (at, servers):
                ran = run_load(self._load(case, seconds, at), servers, seconds, directory, self._environment)
        if ran.fields["errors"]:
            raise Void(f"{self.name}, {case.text}: {ran.fields['errors']} appends failed")
        appends = round(ran.fields["ops_per_s"] * seconds) + case.connections
        return Turn(ran.fields[case.key], an_append(ran.meter.samples, [[pid] for pid in servers], ran.pid, appends))

    def _load(self, case: Case, seconds: float, at: str) -> list[str]:
        flags = ["--servers", at, "--payload", str(case.payload), "--seconds", str(seconds)]
        if case.blocking:
            return [self._python, str(BLOCKING_LOAD), *flags]
        return [
            self._python, "-m", "alpo_cli.main", "bench", "append", "--yes", "--json", *flags,
            "--outstanding", str(case.outstanding), "--connections", str(case.connections),
        ]

    @contextmanager
    def servers(self, directory: Path) -> Iterator[tuple[str, list[int]]]:
        """Start three fresh alpod; yields their addresses and processes once one leads."""
        base_port = free_base_port(3)
        at = [f"127.0.0.1:{base_port + n}" for n in range(3)]
        members = [flag for n in range(3) for flag in ("--member", f"{n + 1}={at[n]}")]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for n in range(3):
                command = [self._python, "-m", "alpo.daemon", "--id", str(n + 1), "--data", str(directory / str(n + 1))]
                running.append(subprocess.Popen(
                    [*command, "--listen", at[n], *members], env=self._environment, cwd=directory,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                ))
            command = [self._python, "-m", "alpo_cli.main", "append", "--servers", ",".join(at), "--timeout", "30"]
            started = subprocess.run([*command, "ready"], capture_output=True, text=True, check=False,
                                     env=self._environment, cwd=directory)
            if started.returncode:
                raise Void(f"{self.name}: no cluster: {started.stderr}")
            yield ",".join(at), [server.pid for server in running]
            if any(server.poll() is not None for server in running):
                raise Void(f"{self.name}: a server ended")
        finally:
            for server in running:
                end(server)
