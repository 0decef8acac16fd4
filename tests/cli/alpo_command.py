"""Helpers of the end-to-end tests: they run the real `alpo` command."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ports import free_port
from warm import ALPO

#: Command that is forked from a warm process (see `warm`); real starts are in test_cli_end_to_end and test_cli_early.
COMMAND = ALPO
#: Seconds, far more than any command takes: a command that hangs is killed and fails its test.
ENDS_WITHIN_S = 60.0


def until(holds: Callable[[], bool]) -> None:
    """Ask again and again until the condition holds; fails after `ENDS_WITHIN_S`."""
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while not holds():
        assert time.monotonic() < deadline_s, "what was waited for did not come"
        time.sleep(0.01)


def environment(servers: str) -> dict[str, str]:
    return {**os.environ, "ALPO_SERVERS": servers}


class Alpo:
    """The command with a cluster's addresses in its environment."""

    def __init__(self, servers: str = "") -> None:
        self.servers = servers

    def run(self, *words: str | Path, stdin: bytes = b"", code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        """Run the command to its end; it must end with exit code ``code`` (None: any)."""
        done = subprocess.run([*COMMAND, *map(str, words)], input=stdin, capture_output=True,
                              env=environment(self.servers), timeout=ENDS_WITHIN_S, check=False)
        if code is not None:
            assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stderr.decode()}"
        return done

    def out(self, *words: str | Path, stdin: bytes = b"", code: int = 0) -> str:
        return self.run(*words, stdin=stdin, code=code).stdout.decode()

    def lines(self, *words: str | Path, stdin: bytes = b"", code: int = 0) -> list[dict[str, Any]]:
        """Rows that the command prints with --json."""
        return [json.loads(line) for line in self.out(*words, "--json", stdin=stdin, code=code).splitlines()]

    def says(self, *words: str | Path, code: int, stdin: bytes = b"") -> str:
        """Text that the command prints on stderr."""
        return self.run(*words, stdin=stdin, code=code).stderr.decode()

    @contextmanager
    def under_way(self, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """The running command, with its three streams as pipes; killed at the end if need be."""
        process = subprocess.Popen([*COMMAND, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment(self.servers))
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def read_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


#: Shell -> the variables with which it asks for completions of a line.
SHELLS = {
    "bash": lambda line: {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
    "zsh": lambda line: {"_TYPER_COMPLETE_ARGS": line},
    "fish": lambda line: {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


def completed(shell: str, line: str, servers: str = "") -> str:
    """Completions that a shell offers at the end of ``line``."""
    env = {**environment(servers), "_ALPO_COMPLETE": f"complete_{shell}", **SHELLS[shell](line)}
    return subprocess.run(COMMAND, env=env, capture_output=True, timeout=60, check=True, text=True).stdout


@contextmanager
def cluster(directory: Path, size: int = 3) -> Iterator[Alpo]:
    """Servers of their own, in a folder, and the command that knows where they are; stopped at the end."""
    where = ("--dir", directory, "--size", str(size), "--base-port", str(free_port(size)))
    try:
        yield Alpo(Alpo().out("cluster", "start", *where, "--detach").strip())
    finally:
        Alpo().run("cluster", "stop", "--dir", directory, code=None)
