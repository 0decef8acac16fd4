"""The shared options: before the command, after it, in a group; flags before the file before the environment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from alpo_cli import options
from alpo_cli.app import app as alpo_app
from alpo_cli.exits import UsageProblem
from alpo_cli.options import Target, local, remember, split_servers, with_target

app = typer.Typer(callback=remember)
group = typer.Typer(callback=remember)
app.add_typer(group, name="group")
seen: list[Target] = []


@group.command()
@with_target
def leaf(target: Target, word: str, count: Annotated[int, typer.Option("--count")] = 1) -> None:
    """A command. Examples: none."""
    seen.append(target)
    print(word * count)


@group.command()
@local
def alone(target: Target) -> None:
    print(f"alone {target.json}")


def run(*words: str, **env: str) -> Target:
    seen.clear()
    result = CliRunner().invoke(app, list(words), env=env)
    assert result.exit_code == 0, result.output
    assert result.stdout == "aa\n"
    return seen[0]


A = ("a:1",)


@pytest.mark.parametrize("words", [
    ("--servers", "a:1", "--json", "--timeout", "3", "group", "leaf", "a", "--count", "2"),
    ("group", "--servers", "a:1", "--json", "--timeout", "3", "leaf", "a", "--count", "2"),
    ("group", "leaf", "--servers", "a:1", "a", "--json", "--count", "2", "--timeout", "3"),
    ("--servers", "b:2", "--json", "group", "--timeout", "3", "leaf", "a", "--count", "2", "--servers", "a:1"),
])
def test_options_may_stand_anywhere_and_the_innermost_wins(words: tuple[str, ...]) -> None:
    assert run(*words) == Target(A, 3.0, True)


def test_flags_beat_the_file_and_the_file_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "alpod.toml"
    file.write_text('[[member]]\nid = 1\naddress = "f:1"\n[[member]]\nid = 2\naddress = "f:2"\n')
    base = ("group", "leaf", "a", "--count", "2")
    assert run(*base, ALPO_SERVERS="e:1").servers == ("e:1",)
    assert run(*base, "--config", str(file), ALPO_SERVERS="e:1").servers == ("f:1", "f:2")
    assert run(*base, "--config", str(file), "--servers", "a:1", ALPO_SERVERS="e:1").servers == A
    assert run(*base, ALPO_SERVERS="e:1") == Target(("e:1",), 10.0, False)


def test_without_any_of_them_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPO_SERVERS", raising=False)
    base = ("group", "leaf", "a", "--count", "2")
    assert run(*base).servers == run(*base, ALPO_SERVERS="").servers == ("127.0.0.1:7100",)
    assert run(*base, "--servers", "h,[::1]").servers == ("h:7100", "[::1]:7100")


@pytest.mark.parametrize(
    "content", ["", "member = 3", "[[member]]\nid = 1\n", "no toml", '[[member]]\naddress = "x:y"\n']
)
def test_a_file_without_servers(content: str, tmp_path: Path) -> None:
    file = tmp_path / "alpod.toml"
    file.write_text(content)
    result = CliRunner().invoke(app, ["--config", str(file), "group", "leaf", "a"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(file) in result.stderr


def test_commands_that_know_whom_to_talk_to_take_json_and_refuse_the_others() -> None:
    result = CliRunner().invoke(app, ["--json", "group", "alone"], env={"ALPO_SERVERS": "a:1"})
    assert (result.exit_code, result.stdout) == (0, "alone True\n")
    for words in (("--servers", "a:1", "group", "alone"), ("group", "alone", "--timeout", "3"),
                  ("group", "--config", "f", "alone")):
        result = CliRunner().invoke(app, list(words))
        assert (result.exit_code, result.stdout) == (2, "") and "means nothing to this command" in result.stderr


def test_servers() -> None:
    assert split_servers("a:1, [::1]:2,b", "x") == ("a:1", "[::1]:2", "b:7100")
    for wrong in ("", ":1", "a:", "a:0", "a:65536", "a:x", "::1:7", "a:１"):
        with pytest.raises(UsageProblem, match="where"):
            split_servers(wrong, "where")


def test_version_and_completion_need_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPO_SERVERS", raising=False)
    result = CliRunner().invoke(alpo_app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("alpo ")
    assert CliRunner().invoke(alpo_app, [], prog_name="alpo", env={"_ALPO_COMPLETE": "source_bash"}).exit_code == 0


@pytest.mark.parametrize("words", [
    ("append", "x", "--client"), ("read", "--client"), ("session", "drop"),
])
@pytest.mark.parametrize("name", ["", "x" * 129, "\udcff"])
def test_names_that_no_client_can_have(words: tuple[str, ...], name: str) -> None:
    result = CliRunner().invoke(alpo_app, [*words, name, "--servers", "127.0.0.1:1", "--timeout", "60"])
    assert result.exit_code == 2, result.output
    assert "1 to 128 bytes of UTF-8" in result.stderr


@pytest.mark.parametrize("client", ["~", "~abc", "~01a1fea7-9a52-4329-b11c-f2a9491ce9a1"])
def test_a_random_clients_id_has_a_form(client: str) -> None:
    line = ["append", "x", "--servers", "127.0.0.1:1", "--client", client, "--serial", "1"]
    result = CliRunner().invoke(alpo_app, line)
    assert result.exit_code == 2 and "UUIDv7" in result.stderr


def test_new_names_have_no_control_characters_and_old_ones_can_still_be_reached() -> None:
    nobody = ["--servers", "127.0.0.1:1", "--timeout", "0.2"]
    for words in (["append", "x"], ["import"]):
        result = CliRunner().invoke(alpo_app, [*words, "--client", "a\nb", *nobody], input="")
        assert result.exit_code == 2 and "no control characters" in result.stderr
    for words in (["read", "--client", "a\nb"], ["session", "drop", "a\nb"], ["outcome", "a\nb", "1"],
                  ["append", "x", "--serial", "1", "--client", "a\nb"]):
        assert CliRunner().invoke(alpo_app, [*words, *nobody]).exit_code in (1, 3)


def test_who_named_no_servers_is_told_how_when_nothing_listens_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is left out if servers were named, or while a server accepts connections and has not answered."""
    hint = (
        " (no server at {}, the default: name the cluster's with --servers or ALPO_SERVERS; one for a trial on this"
        " machine: alpo cluster start --dir DIR)\n"
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        default = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(options, "SERVER_DEFAULT", default)
        for words in (["outcome", "c", "1"], ["status"], ["member", "list"], ["explain"], ["compact", "--all"]):
            words += ["--timeout", "0.2"]
            done = CliRunner().invoke(alpo_app, words, env={"ALPO_SERVERS": ""})
            assert done.exit_code == 1 and done.stderr.endswith(hint.format(default)), done.stderr
            for done in (
                CliRunner().invoke(alpo_app, words, env={"ALPO_SERVERS": default}),
                CliRunner().invoke(alpo_app, [*words, "--servers", default], env={"ALPO_SERVERS": ""}),
            ):
                assert done.exit_code == 1 and "ALPO_SERVERS" not in done.stderr
        listening.listen()
        done = CliRunner().invoke(alpo_app, ["outcome", "c", "1", "--timeout", "0.2"], env={"ALPO_SERVERS": ""})
        assert done.exit_code == 1 and "ALPO_SERVERS" not in done.stderr
