"""Mistakes on the command line and in files give a line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import alpo_sim.commands
from alpo._version import __version__, build
from alpo_cli.frame import purpose
from alpo_sim.commands.worlds import world_of
from alpo_sim.main import TABLE, app

FULL = Path("/dev/full")
M3 = ["3", "--mutation", "M3", "--limit-s", "1"]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [
    ["run", "--seed", "3", "--seconds", "1"], pytest.param(["mutants", "--only", "M5"], marks=pytest.mark.pure), ["-h"],
])
def test_output_that_cannot_be_written_is_said(arguments: list[str]) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "alpo_sim.main", *arguments], check=False, stdout=full, stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.strip() == "alpo-sim: stdout cannot be written: No space left on device"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [
    ["run", "--seed", "3", "--seconds", "1", "--trace", str(FULL)],
    pytest.param(["shrink", *M3, "-o", str(FULL)], marks=pytest.mark.pure),
])
def test_a_full_disk_is_said(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert "cannot be written: No space left on device" in result.output


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    for arguments in (["run", "--seed", "3", "--seconds", "1", "--trace"], ["shrink", *M3, "-o"]):
        result = CliRunner().invoke(app, [*arguments, str(tmp_path)])
        assert result.exit_code == 2, result.output
        assert "irectory" in result.output


@pytest.mark.parametrize("arguments", [
    ["run", "--seed", "-5"], ["run", "--seed", "1", "--servers", "10"], ["run", "--seed", "1", "--mutation", "NONE"],
    ["seeds"], ["seeds", "5..1"], ["seeds", "a..b"], ["mutants", "--only", "NONE"], ["shrink", "1"],
])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_a_mutation_keeps_its_world_when_the_servers_are_given() -> None:
    """Else `run --servers` would not repeat what `shrink --servers` found."""
    mine, given = world_of(1, None, None, "P12").options, world_of(1, 7, None, "P12", record=True).options
    assert (given.servers, given.network, given.faults) == (7, mine.network, mine.faults)


@pytest.mark.pure
def test_a_mutation_has_the_length_that_is_given() -> None:
    assert world_of(1, None, 3, "M1").options.seconds == 3
    assert world_of(1, None, None, "M1").options.seconds == 12
    result = CliRunner().invoke(app, ["run", "--seed", "1", "--mutation", "M1", "--seconds", "2"])
    assert result.exit_code == 1 and "--seed 1 --seconds 2 --mutation M1" in result.output


def test_the_table_says_what_the_commands_say() -> None:
    group: Any = typer.main.get_command(app)
    assert {entry.name: entry.help for entry in TABLE} == {
        name: purpose(command.help) for name, command in group.commands.items()
    }
    folder = Path(alpo_sim.commands.__file__).parent
    commands = {
        f"{file.stem}:{node.name}" for file in folder.glob("*.py") for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and "Examples:" in (ast.get_docstring(node) or "")
    }
    assert commands == {entry.place.rpartition(".")[2] for entry in TABLE}


@pytest.mark.parametrize("words", [[], *([entry.name] for entry in TABLE)], ids=" ".join)
def test_helps_are_plain_and_have_examples(words: list[str]) -> None:
    shown = CliRunner().invoke(app, [*words, "-h"]).stdout
    examples = shown.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples and all(line.startswith("  alpo-sim ") for line in examples), shown
    assert not any(ugly in shown for ugly in ("<bool>", "╭", "[dim]"))


def test_the_version() -> None:
    for flag in ("--version", "-V"):
        assert CliRunner().invoke(app, [flag]).stdout == f"alpo-sim {__version__} ({build()})\n"


def test_help_imports_no_world() -> None:
    code = ("import sys; from alpo_sim.main import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
            "sys.exit(bool({'alpo_sim.world', 'alpo.core.replica', 'rich', 'pydantic'} & sys.modules.keys()))")
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize(("words", "said"), [
    (["run", "--seed", "x"], "--seed must be a whole number, not 'x'"),
    (["run", "--servers", "10"], "--servers must be from 1 to 9, not 10"),
    (["rnu"], "there is no command 'rnu'; did you mean run?"),
    (["run", "--mutation", "M99"], "no mutation 'M99'; there are: "),
    (["explore", "--world", "x"], "--world: no world 'x': there are "),
    (["seeds", "5..1"], "'5..1' is empty"),
])
def test_wrong_usage_is_one_plain_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"alpo-sim: {said}")
