"""docs/cli.md names every command and no option that is not there; the help tells all options, with examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from alpo_cli.app import app

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
SHARED = {"--servers", "--config", "--log", "--timeout", "--json", "--ca", "--cert", "--key", "--tls-name"}
#: Options of alpod, which some chapters name.
ALPODS = {"--no-auto-init", "--member", "--id", "--data", "--listen", "--join"}
#: Options that Typer adds to the root command.
TYPERS = {"--help", "-h", "--install-completion", "--show-completion"}


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


ROOT: Any = typer.main.get_command(app)
ALL = dict(commands(ROOT, "alpo"))


def flags(command: Any) -> set[str]:
    return {
        flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    } - TYPERS


def section_of(path: str) -> str:
    """The chapter of a command: `alpo session list` is in that of `alpo session`."""
    title = " ".join(path.split()[:2])
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no chapter {title!r}"
    return found[1]


def test_the_commands_are_those_of_the_contract() -> None:
    assert sorted(ALL) == sorted([
        "alpo append", "alpo read", "alpo import", "alpo status", "alpo watch", "alpo session list",
        "alpo session drop", "alpo cluster start",
        "alpo cluster stop", "alpo cluster list", "alpo cluster init", "alpo bench append", "alpo bench read",
        "alpo bench failover", "alpo outcome", "alpo trim", "alpo explain", "alpo doctor", "alpo backup",
        "alpo restore", "alpo recover", "alpo log show", "alpo log verify", "alpo log export", "alpo log query",
        "alpo log create", "alpo log list", "alpo log set", "alpo log rename", "alpo log delete",
        "alpo log diff", "alpo cursor set", "alpo cursor list", "alpo cursor drop", "alpo settings show",
        "alpo settings set", "alpo clock accept",
        "alpo member list", "alpo member add", "alpo member remove", "alpo member replace", "alpo transfer",
        "alpo certs make", "alpo compact", "alpo spark doctor", "alpo help", "alpo version",
        "alpo state get", "alpo state set", "alpo state add", "alpo state rm", "alpo state names", "alpo state watch",
        "alpo state lock", "alpo state elect", "alpo state txn", "alpo state status", "alpo state snapshot",
        "alpo registry init", "alpo registry show", "alpo registry rows",
    ])


@pytest.mark.parametrize("path", ALL)
def test_every_command_is_in_its_chapter(path: str) -> None:
    assert re.search(rf"^    {path}\b", section_of(path), re.MULTILINE), f"{path} is not in its chapter"


@pytest.mark.parametrize("path", ALL)
def test_the_help_tells_every_option(path: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [*path.split()[1:], "--help"], prog_name="alpo").stdout.split())
    options = [parameter for parameter in ALL[path].params if parameter.param_type_name == "option"]
    assert [option.name for option in options if not (option.help and option.help.split()[0] in shown)] == []
    assert [flag for flag in flags(ALL[path]) if not re.search(rf"{flag}\b", shown)] == []


@pytest.mark.parametrize("path", sorted(ALL.keys() - {"alpo help", "alpo version", "alpo certs make"}))
def test_every_command_takes_the_shared_options(path: str) -> None:
    assert flags(ALL[path]) >= SHARED


def test_the_shared_options_are_documented() -> None:
    assert all(re.search(rf"`(alpo )?{flag}\b", DOCS) for flag in SHARED | {"--version"})


@pytest.mark.parametrize("path", ALL)
def test_every_help_has_an_example_of_that_very_command(path: str) -> None:
    text = ALL[path].help
    assert "Examples:" in text
    assert path in text.partition("Examples:")[2]


GROUPS = ("session", "certs", "settings", "cursor", "cluster", "bench", "log", "member", "spark", "state", "registry")


@pytest.mark.parametrize("path", ["alpo", *(f"alpo {group}" for group in GROUPS), *ALL])
def test_examples_stand_out(path: str) -> None:
    shown = CliRunner().invoke(app, [*path.split()[1:], "--help"], prog_name="alpo").stdout
    examples = shown.partition("\nExamples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples, shown
    assert all(re.match(r" {2}\S.*", example) for example in examples), shown
    assert any(path in example for example in examples) or path not in ALL


@pytest.mark.parametrize("path", ALL)
def test_no_option_of_the_docs_is_unknown(path: str) -> None:
    known = set().union(*(flags(command) for command in ALL.values())) | {"--version"} | ALPODS | TYPERS
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section_of(path)))
    assert named <= known
