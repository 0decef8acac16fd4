"""The frame of the commands: loaded when called, quick to begin, one style of help and of errors."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
from alpo_command import SHELLS, completed
from typer.testing import CliRunner

import alpo
import alpo_cli.commands
from alpo._version import build
from alpo_cli.app import TABLE, app
from alpo_cli.frame import ALSO_CALLED, purpose

ROOT: Any = typer.main.get_command(app)

#: Runs `alpo` as it is run, and tells at its end what it has imported, however it ends.
TELL = """
import atexit, os, pathlib, sys
atexit.register(lambda: pathlib.Path(os.environ["TOLD"]).write_text("\\n".join(sys.modules)))
from alpo_cli.main import main
sys.argv[0] = "alpo"
main()
"""


def imported(*words: str, **env: str) -> set[str]:
    """The modules that a command line imports."""
    environment = {key: value for key, value in os.environ.items() if key != "ALPO_SERVERS"}
    with TemporaryDirectory() as folder:
        told = Path(folder) / "modules"
        done = subprocess.run([sys.executable, "-c", TELL, *words], env={**environment, **env, "TOLD": str(told)},
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        assert told.exists(), done.stderr
        return set(told.read_text().splitlines())


def commands_of(modules: set[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in modules if name.startswith("alpo_cli.commands.")}


#: Slow to import, and of no use to a command that asks servers for something and prints what they say.
HEAVY = {"trio", "pydantic", "pydantic_core", "pyarrow", "pyspark", "matplotlib", "sqlite3", "sqlite_utils",
         "structlog", "rich", "statistics", "alpo.config", "alpo.node", "alpo.storage", "alpo.core.replica",
         "alpo.core.replication", "alpo.core.election", "alpo.wire.codec"}
#: Besides those, what help, the version and completion do without.
CLIENT = {"tomllib", "anyio", "asyncio", "msgpack", "ssl", "alpo.client.log", "alpo.wire"}


@pytest.mark.parametrize("words", [
    ("append", "x"), ("read",), ("status", "--json"), ("trim", "--before", "2"), ("session", "list"),
    ("cursor", "set", "c", "1"), ("member", "add", "4=h:1"), ("settings", "show"), ("outcome", "c", "1"),
    ("doctor", "--json"), ("explain",), ("transfer", "1"), ("compact", "--all"), ("cluster", "init"),
    ("watch", "--count", "1"), ("state", "get", "x"),
])
def test_a_command_imports_itself_and_the_client(words: tuple[str, ...]) -> None:
    modules = imported("--servers", "127.0.0.1:1", "--timeout", "0.1", *words)
    assert modules & HEAVY == set()
    assert "alpo.client.log" in modules or "alpo.client.servers" in modules  # it did begin
    homes = {entry.name: entry.place.split(":")[0].rpartition(".")[2] for entry in TABLE}
    others = set(homes.values()) - {homes[words[0]]}
    # `member list` shows status; transfer stands there.
    assert commands_of(modules) & others <= {"status", "member"}


@pytest.mark.parametrize("words", [
    ("--version",), ("-V",), ("version",), ("--help",), ("-h",), ("append", "-h"), ("read", "--help"), ("member", "-h"),
    ("member", "add", "--help"), ("log", "show", "-h"), ("bench", "-h"), ("bench", "append", "-h"), ("backup", "-h"),
    ("help", "read"), ("vesion",), ("read", "--from", "x"),
])
def test_help_version_and_wrong_usage_import_no_client(words: tuple[str, ...]) -> None:
    assert imported(*words) & (HEAVY | CLIENT) == set()


@pytest.mark.parametrize("words", [("--version",), ("-V",), ("version",)])
def test_the_version_needs_no_typer(words: tuple[str, ...]) -> None:
    assert imported(*words) & {"typer", "alpo_cli.app", "inspect"} == set()


@pytest.mark.parametrize("words", [("--json", "--version"), ("--help",)])
def test_the_root_imports_no_command(words: tuple[str, ...]) -> None:
    modules = imported(*words)
    assert commands_of(modules) == set()
    assert "hashlib" not in modules  # which brings OpenSSL


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("line", "there", "absent"), [
    ("alpo re", {"read", "restore", "recover"}, {"append"}), ("alpo member ", {"add", "list"}, {"append"}),
    ("alpo read --fo", {"--follow"}, {"--from"}), ("alpo append --wait ", {"everyone"}, set()),
    ("alpo log export x --format p", {"parquet"}, {"jsonl"}), ("alpo nonsense ", set(), {"add"}),
])
def test_completion(shell: str, line: str, there: set[str], absent: set[str]) -> None:
    shown = completed(shell, line)
    assert all(word in shown for word in there), shown
    assert not any(word in shown for word in absent), shown


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_imports_no_client(shell: str) -> None:
    for line in ("alpo ", "alpo append --", "alpo member "):
        modules = imported(_ALPO_COMPLETE=f"complete_{shell}", **SHELLS[shell](line))
        assert modules & (HEAVY | CLIENT) == set()
        assert commands_of(modules) <= {"append", "member", "status"}  # the one that is completed, and what it shows


def test_every_name_that_other_tools_have_is_told() -> None:
    """Each other name leads to a command that there is."""
    known = {path[-1] for path in every(ROOT) if path}
    assert {name for names in ALSO_CALLED.values() for name in names} <= known


def test_the_table_says_what_the_commands_say() -> None:
    wrong = {
        entry.name: (entry.help, purpose(ROOT.commands[entry.name].help))
        for entry in TABLE if entry.help != purpose(ROOT.commands[entry.name].help)
    }
    assert wrong == {}


def test_the_table_names_every_module() -> None:
    folder = Path(alpo_cli.commands.__file__).parent
    named = {entry.place.split(":")[0] for entry in TABLE}
    there = {f"alpo_cli.commands.{file.stem}" for file in folder.glob("*.py")} - {"alpo_cli.commands.__init__"}
    assert named == there | {"alpo_cli.app"}  # help and version


def test_what_is_used_daily_stands_first() -> None:
    assert [entry.name for entry in TABLE][:2] == ["append", "read"]
    shown = CliRunner().invoke(app, ["-h"]).stdout
    assert shown.index("append ") < shown.index("status ") < shown.index("restore ")


def every(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in getattr(group, "commands", {}).items():
        found += every(command, (*path, name))
    return found


def named(path: tuple[str, ...]) -> Any:
    return functools.reduce(lambda group, name: group.commands[name], path, ROOT)


@pytest.mark.parametrize("path", [path for path in every(ROOT) if hasattr(named(path), "commands")], ids=" ".join)
def test_a_group_s_help_has_the_purpose_of_each_command(path: tuple[str, ...]) -> None:
    shown = " ".join(CliRunner().invoke(app, [*path, "-h"]).stdout.split())
    for name, command in named(path).commands.items():
        assert purpose(command.help) and f" {name} {purpose(command.help)}" in shown


@pytest.mark.parametrize("path", every(ROOT), ids=" ".join)
def test_helps_are_plain(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "-h"])
    assert shown.exit_code == 0
    ugly = ("<bool>", "<int", "<x<", "9223372036854775807", "2147483647", "(R1", "(R2", "(R3", "╭", "[dim]", "None")
    assert [word for word in ugly if word in shown.stdout] == []
    assert shown.stdout == CliRunner().invoke(app, ["help", *path]).stdout
    assert max(map(len, shown.stdout.splitlines())) <= 120


@pytest.mark.parametrize(("words", "said"), [
    (["vesion"], "there is no command 'vesion'; did you mean version or session?"),
    (["zzz"], "there is no command 'zzz'; see alpo --help"),
    (["state", "list"], "there is no command 'list'; did you mean names?"),
    (["produce"], "there is no command 'produce'; did you mean append?"),
    (["member", "lst"], "there is no command 'lst'; did you mean list?"),
    (["help", "member", "lst"], "alpo member has no command 'lst'; did you mean list?"),
    (["help", "read", "x"], "alpo read has no command 'x'"),
    (["--json"], "a command is missing; see alpo --help"),
    (["read", "--from", "x"], "--from must be a whole number, not 'x'"),
    (["read", "--from", "１"], "--from must be a whole number, not '１'"),
    (["read", "--from", "0"], "--from must be at least 1, not 0"),
    (["read", "--from", str(2**63)], f"--from must be at most {2**63 - 1}, not {2**63}"),
    (["read", "-n", "-1"], "--limit must be at least 0, not -1"),
    (["read", "--timeout", "nan"], "--timeout must be a number, not 'nan'"),
    (["explain", "--last", "1001"], "--last must be from 1 to 1000, not 1001"),
    (["append", "--wait", "nobody"], "--wait must be everyone, not 'nobody'"),
    (["log", "export", "x", "--format", "jsnl"],
     "--format must be jsonl, parquet or sqlite, not 'jsnl'; did you mean jsonl?"),
    (["read", "--folow"], "there is no option --folow; did you mean --follow or --log or --long?"),
    (["read", "-x"], "there is no option -x; see alpo read --help"),
    (["read", "--from"], "--from needs a value"),
    (["read", "--json=1"], "--json takes no value"),
    (["read", "x", "y"], "unexpected argument 'x y'; see alpo read --help"),
    (["trim"], "--before is missing; see alpo trim --help"),
    (["outcome", "c"], "SERIAL is missing; see alpo outcome --help"),
    (["settings", "set"], "NAME=VALUE … is missing; see alpo settings set --help"),
    (["read", "--from", "\x1b[2J"], "--from must be a whole number, not '\\x1b[2J'"),
    (["read", "--servers", "h:x"],
     '--servers: "h:x": must be HOST or HOST:PORT with a port from 1 to 65535 (an IPv6 host in brackets: [::1]:7100)'),
])
def test_wrong_usage_is_one_plain_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"alpo: {said}\n")


@pytest.mark.parametrize("words", [[], ["member"], ["cluster"]])
def test_a_group_alone_shows_its_help_and_is_wrong_usage(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Usage: {' '.join(['alpo', *words])} [OPTIONS] COMMAND …\n")


def test_short_options() -> None:
    assert CliRunner().invoke(app, ["-V"]).stdout == CliRunner().invoke(app, ["version"]).stdout
    for words in (["--json", "version"], ["version", "--json"]):
        assert json.loads(CliRunner().invoke(app, words).stdout) == {"version": alpo.__version__, "build": build()}
    shown = CliRunner().invoke(app, ["read", "-h"]).stdout
    assert "-n, --limit N" in shown and "-f, --follow" in shown and "-h, --help" in shown
