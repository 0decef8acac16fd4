"""What a command line names and is not there, or cannot be read or written: exit 2 in every command, before anything
is asked of a server or of Spark."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from alpo_command import Alpo
from typer.testing import CliRunner

from alpo_cli import inputs
from alpo_cli.app import app
from alpo_cli.exits import UsageProblem
from alpo_cli.pipeline.app import app as pipeline
from alpo_sim.main import app as simulator

TO = ("--to", "{new}")
LISTEN = ("--id", "1", "--listen", "127.0.0.1:1")
FOLD = ("--fold", "json:loads")

#: Every option and argument that is a path: how it is given. ``{bad}`` stands for it.
READ = {
    "alpo append --file": ("append", "--file", "{bad}"),
    "alpo import FILE": ("import", "{bad}"),
    "alpo restore FILE": ("restore", "{bad}", "--data", "{new}", *LISTEN),
    "alpo recover --data": ("recover", "--data", "{bad}", "--force-new-cluster", "--yes"),
    "alpo log show DATA_OR_BACKUP": ("log", "show", "{bad}"),
    "alpo log verify DATA_OR_BACKUP": ("log", "verify", "{bad}"),
    "alpo log export DATA_OR_BACKUP": ("log", "export", "{bad}"),
    "alpo log query DATA_OR_BACKUP": ("log", "query", "{bad}", "select 1"),
    "alpo log diff A": ("log", "diff", "{bad}", "{log}"),
    "alpo log diff B": ("log", "diff", "{log}", "{bad}"),
    "alpo cluster stop --dir": ("cluster", "stop", "--dir", "{bad}"),
    "alpo cluster list --dir": ("cluster", "list", "--dir", "{bad}"),
    "alpo bench failover --dir": ("bench", "failover", "--dir", "{bad}"),
    "alpo-pipeline audit --path": ("audit", "--path", "{bad}"),
    "alpo-pipeline audit --client-history": ("audit", "--path", "{log}", "--client-history", "{bad}"),
    "alpo-pipeline report --sweep": ("report", "--to", "{new}.html", "--sweep", "{bad}"),
    "alpo-pipeline report --bench": ("report", "--to", "{new}.html", "--bench", "{bad}"),
    "alpo-pipeline report --elections": ("report", "--to", "{new}.html", "--elections", "{bad}"),
    "alpo-pipeline report --log": ("report", "--to", "{new}.html", "--log", "{bad}"),
    "alpo-pipeline replay --path": ("replay", *FOLD, *TO, "--path", "{bad}"),
    "alpo-pipeline replay --archive": ("replay", *FOLD, *TO, "--archive", "{bad}"),
    "alpo-sim replay FILE…": ("replay", "{bad}"),
    "alpo-sim draw SEED|SCENARIO": ("draw", "{bad}", "-o", "{new}.svg"),
}
#: The same for what is written: files (in a directory that is not there), directories (below a file).
WRITTEN = {
    "alpo backup FILE": ("backup", "{bad}"),
    "alpo restore --data": ("restore", "{log}", "--data", "{below}", *LISTEN),
    "alpo log export --output": ("log", "export", "{log}", "--output", "{bad}"),
    "alpo log export --to": ("log", "export", "{log}", "--to", "{bad}"),
    "alpo cluster start --dir": ("cluster", "start", "--dir", "{below}"),
    "alpo bench append --plot": ("bench", "append", "--plot", "{bad}.svg"),
    "alpo bench read --plot": ("bench", "read", "--plot", "{bad}.svg"),
    "alpo bench failover --plot": ("bench", "failover", "--dir", "{log}", "--plot", "{bad}.svg"),
    "alpo-pipeline archive --to": ("archive", "--to", "{below}"),
    "alpo-pipeline sweep --to": ("sweep", "1..2", "--to", "{below}"),
    "alpo-pipeline report --to": ("report", "--to", "{bad}.html", "--log", "{log}"),
    "alpo-pipeline replay --to": ("replay", *FOLD, "--to", "{below}", "--path", "{log}"),
    "alpo-sim run --trace": ("run", "--seed", "1", "--seconds", "1", "--trace", "{bad}"),
    "alpo-sim shrink --output": ("shrink", "1", "--output", "{bad}"),
    "alpo-sim draw --output": ("draw", "1", "--output", "{bad}.svg"),
    "alpo-sim elections --out": ("elections", "--out", "{below}"),
    "alpo-sim explore --output": ("explore", "--output", "{bad}"),
}
#: Of Linux: the number of capset(2)'s layout, and of the two rights by which root reads every file.
_LAYOUT, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 0x20080522, 1, 2
#: Of every command, told of in the chapter on the shared options.
SHARED = {"--config"}
APPS = {"alpo": app, "alpo-pipeline": pipeline, "alpo-sim": simulator}


def paths_of(group: Any, name: str) -> set[str]:
    """``COMMAND --option`` of every parameter that takes a path."""
    found = set()
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= paths_of(command, f"{name} {word}")
            continue
        for param in command.params:
            kind = str(param.type_descriptor.annotation)
            spelt = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar
            named = any(word in str(param.metavar) for word in ("DATA_OR_BACKUP", "DIR", "FILE", "SCENARIO"))
            if ("Path" in kind or named) and spelt not in SHARED and ".py" not in str(param.metavar):
                found.add(f"{name} {word} {spelt}")
    return found


def test_the_tables_name_every_path_there_is() -> None:
    there: set[str] = set()
    for name, root in APPS.items():
        there |= paths_of(typer.main.get_command(root), name)
    assert there == READ.keys() | WRITTEN.keys()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What passes for a data directory until it is read."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "alpo.db").write_bytes(b"SQLite format 3\0")
    return tmp_path / "log"


@contextlib.contextmanager
def no_rights_of_root() -> Iterator[None]:
    """Files are closed to this thread as their modes say, though it may be root's."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head, found = (ctypes.c_uint32 * 2)(_LAYOUT, 0), (ctypes.c_uint32 * 6)()  # of 32 rights: effective, permitted, …
    assert libc.capget(head, found) == 0, os.strerror(ctypes.get_errno())
    fewer = (ctypes.c_uint32 * 6)(*found)
    fewer[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert libc.capset(head, fewer) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(head, found) == 0, os.strerror(ctypes.get_errno())


def refused(name: str, words: tuple[str, ...], places: dict[str, Path], bad: Path) -> None:
    given = [word.format(**places) for word in words]
    program = name.split(maxsplit=1)[0]
    result = CliRunner().invoke(APPS[program], given, env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert (result.exit_code, result.stdout) == (2, ""), (result.stdout, result.stderr, result.exception)
    assert result.stderr.startswith(f"{program}: ") and result.stderr.count("\n") == 1, result.stderr
    assert str(bad) in result.stderr
    assert not places["new"].exists()


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("kind", ["none", "loop", "closed"])
def test_what_cannot_be_read(name: str, kind: str, tmp_path: Path, log: Path) -> None:
    (tmp_path / "closed").touch(mode=0)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    bad = tmp_path / kind
    with no_rights_of_root():
        refused(name, READ[name], {"bad": bad, "log": log, "new": tmp_path / "new"}, bad)


@pytest.mark.parametrize("name", [name for name, words in READ.items() if "log" in words or "DATA" in name])
def test_what_is_no_log(name: str, tmp_path: Path, log: Path) -> None:
    bad = tmp_path / "text"
    bad.write_text("hello\n")
    refused(name, READ[name], {"bad": bad, "log": log, "new": tmp_path / "new"}, bad)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_cannot_be_written(name: str, tmp_path: Path, log: Path) -> None:
    (tmp_path / "file").touch()
    bad, below = tmp_path / "none" / "out", tmp_path / "file" / "out"
    places = {"bad": bad, "below": below, "log": log, "new": tmp_path / "new"}
    refused(name, WRITTEN[name], places, tmp_path)


@pytest.mark.parametrize(("words", "said"), [
    (("alpo", "bench", "append", "--plot", "x.txt"), "--plot x.txt: the name must end in .svg"),
    (("alpo", "bench", "failover", "--dir", ".", "--plot", "x"), "--plot x: the name must end in .svg"),
    (("alpo-sim", "draw", "1", "-o", "x.pdf"), "--output x.pdf: the name must end in .svg or .html"),
    (("alpo-pipeline", "report", "--to", "x.txt", "--log", "y"), "--to x.txt: the name must end in .html or .htm"),
])
def test_a_name_ends_in_what_is_written(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(APPS[words[0]], words[1:], env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{words[0]}: {said}\n")


def test_as_a_process_too(tmp_path: Path) -> None:
    assert Alpo().says("log", "verify", tmp_path / "none", code=2) == (
        f"alpo: {tmp_path}/none: there is no data file or backup\n")


def test_what_can_be_made_may_be_deep(tmp_path: Path) -> None:
    inputs.a_new_directory(tmp_path / "a" / "b" / "c")
    assert not (tmp_path / "a").exists()
    inputs.a_new_file(tmp_path / "a")
    with pytest.raises(UsageProblem, match="is a directory"):
        inputs.a_new_file(tmp_path)
