"""Ctrl-C before a command has begun, and readers that went away before they were told anything."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alpo_command import environment
from warm import INSTALLED

from alpo_cli import early

#: Ctrl-C at the moment when a module is about to be imported.
STRIKE = """
import os, signal, sys

_, module, *words = sys.argv
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and hands that on

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Strike())
from alpo_cli.main import main
sys.argv = ["alpo", *words]
main()
"""


def struck_at(module: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", STRIKE, module, *words]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("module", ["alpo_cli.app", "typer", "alpo.errors", "alpo_cli.commands.status"])
def test_ctrl_c_during_the_imports_ends_it_without_a_word(module: str) -> None:
    done = struck_at(module, "status", "--servers", "127.0.0.1:1", "--timeout", "0.1")
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_once_the_command_has_begun_is_told() -> None:
    done = struck_at("alpo_cli.bench.show", "bench", "append", "--servers", "127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"alpo: interrupted\n")


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        early.until_begun()
        early.begin()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        early.until_begun()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        early.begin()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def nobody_reads() -> Iterator[int]:
    """The writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@pytest.mark.parametrize("words", [["--help"], ["read", "--help"], ["session", "--help"], ["--version"]])
def test_a_help_text_that_nobody_reads_is_no_error(words: list[str]) -> None:
    with nobody_reads() as pipe:
        done = subprocess.run([*INSTALLED, *words], stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("words", "codes"), [
    (["nonsense"], {1, 2}), (["read", "--last", "x"], {1, 2}), (["read", "--from", "2", "--to", "1"], {2}),
    (["append", "x", "--timeout", "0.1"], {1}), (["status", "--timeout", "0.1"], {1}),
])
def test_an_error_that_nobody_reads_is_one(words: list[str], codes: set[int]) -> None:
    with nobody_reads() as pipe:
        done = subprocess.run(
            [*INSTALLED, *words], stdout=subprocess.DEVNULL, stderr=pipe, env=environment("127.0.0.1:1"), timeout=60,
            check=False,
        )
    assert done.returncode in codes


@pytest.mark.parametrize("words", [["nonsense"], ["read", "--from", "2", "--to", "1"], ["append", "x"]])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_message_that_cannot_be_written_changes_no_exit_code(words: list[str], buffered: str) -> None:
    """The interpreter writes what is left in its buffers when it exits, and would end with 120."""
    with Path("/dev/full").open("wb") as full, nobody_reads() as pipe:
        for stderr in (full, pipe):
            done = subprocess.run(
                [*INSTALLED, *words, "--timeout", "0.1"], stderr=stderr, timeout=60, check=False,
                env=environment("127.0.0.1:1") | {"PYTHONUNBUFFERED": buffered},
            )
            assert done.returncode == (1 if words[0] == "append" else 2)


@pytest.mark.parametrize("name", ["alpo", "alpo-pipeline", "alpo-sim"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_help_of_every_program_that_has_no_reader_or_no_room(name: str, buffered: str) -> None:
    command = [str(Path(sys.executable).with_name(name)), "--help"]
    environ = os.environ | {"PYTHONUNBUFFERED": buffered}
    with Path("/dev/full").open("wb") as full, nobody_reads() as pipe:
        full_said = f"{name}: stdout cannot be written: No space left on device\n"
        for stdout, said in ((full, (1, full_said)), (pipe, (0, ""))):
            done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environ, text=True, check=False)
            assert (done.returncode, done.stderr) == said


@pytest.mark.parametrize("drawn", [
    "output._draw_line('waiting')", "step('copying', 1, 2)\n    step('copying', 2, 2)",
])
def test_progress_on_a_terminal_that_has_gone_ends_no_command(drawn: str) -> None:
    code = f"""
from alpo_cli import output
output.stand_in_for_closed_streams()
output.AFTER_S = 0
with output.slow_progress() as step:
    input()
    {drawn}
    output.say("a message")
print("done")
"""
    main, other = pty.openpty()
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=other, start_new_session=True,
    ) as process:
        os.close(other)
        os.close(main)
        out, _ = process.communicate(b"\n", timeout=60)
    assert (process.returncode, out) == (0, b"done\n")
