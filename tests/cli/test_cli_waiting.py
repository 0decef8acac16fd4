"""A command that waits for a server says so on a terminal after two seconds, and why; nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from alpo_command import COMMAND, Alpo, environment

NOBODY = "127.0.0.1:1"


def on_a_terminal(*words: str, said: bytes) -> bytes:
    """Output that a command draws on a terminal, to its end or until ``said`` appears."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                          env=environment(NOBODY) | {"COLUMNS": "200"}) as command:
        os.close(theirs)
        drawn = b""
        try:
            while said not in drawn and (more := os.read(ours, 4096)):
                drawn += more
        except OSError:  # it has ended
            pass
        finally:
            command.kill()
            os.close(ours)
    return drawn


@pytest.mark.parametrize(("words", "line"), [
    (["read"], "waiting: "), (["append", "x"], "nothing appended, waiting: "), (["trim", "--before", "1"], "waiting: "),
    (["transfer", "1"], "waiting: "), (["member", "remove", "1"], "waiting: "), (["settings", "show"], "waiting: "),
    (["session", "list"], "waiting: "), (["cursor", "list"], "waiting: "), (["outcome", "c", "1"], "waiting: "),
    (["backup", "FILE"], "waiting: "),
    (["append", "x", "--client", "c", "--serial", "1"], "waiting: "),
])
def test_it_says_why_it_waits(words: list[str], line: str, tmp_path: Path) -> None:
    words = [str(tmp_path / "b") if word == "FILE" else word for word in words]
    wanted = f"\r\x1b[K{line}{NOBODY}: connection refused".encode()
    drawn = on_a_terminal(*words, "--timeout", "30", said=wanted)
    assert wanted in drawn, drawn


def test_the_line_is_gone_at_the_end() -> None:
    drawn = on_a_terminal("read", "--timeout", "2.5", said=b"no such text")
    assert drawn.endswith(b"\r\x1b[Kalpo: no server answered a read within 2.5 s: 127.0.0.1:1: connection refused\r\n")


def test_no_terminal_no_line() -> None:
    said = Alpo(NOBODY).says("read", "--timeout", "2.5", code=1)
    assert said == f"alpo: no server answered a read within 2.5 s: {NOBODY}: connection refused\n"
