"""Paths on a command line that do not exist, or cannot be read or written: every command exits with 2 before it asks
a server or Spark anything."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from alpo_command import Alpo
from typer.testing import CliRunner

from alpo.storage import schema
from alpo_cli import inputs
from alpo_cli.app import app
from alpo_cli.exits import UsageProblem
from alpo_cli.frame import placeholder
from alpo_cli.pipeline.app import app as pipeline
from alpo_sim.main import app as simulator

TO = ("--to", "{new}")
LISTEN = ("--id", "1", "--listen", "127.0.0.1:1")

#: Options and arguments that are paths to read -> a command line with each. ``{bad}`` stands for the path.
READ = {
    "alpo append --file": ("append", "--file", "{bad}"),
    "alpo state set --file": ("state", "set", "name", "--file", "{bad}"),
    "alpo state txn FILE": ("state", "txn", "{bad}"),
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
    "alpo-pipeline report --log": ("report", "--to", "{new}.html", "--log", "{bad}"),
    "alpo-pipeline replay --path": ("replay", "--state", *TO, "--path", "{bad}"),
    "alpo-pipeline replay --archive": ("replay", "--state", *TO, "--archive", "{bad}"),
    "alpo-sim replay FILE…": ("replay", "{bad}"),
    "alpo-sim draw SEED|SCENARIO": ("draw", "{bad}", "-o", "{new}.svg"),
}
#: Options and arguments that are paths to write: files in a directory that does not exist, directories below a file.
WRITTEN = {
    "alpo backup FILE": ("backup", "{bad}"),
    "alpo restore --data": ("restore", "{backup}", "--data", "{below}", *LISTEN),
    "alpo log export --output": ("log", "export", "{log}", "--output", "{bad}"),
    "alpo log export --to": ("log", "export", "{log}", "--to", "{bad}"),
    "alpo cluster start --dir": ("cluster", "start", "--dir", "{below}"),
    "alpo certs make --dir": ("certs", "make", "--dir", "{below}", "--client", "read:x"),
    "alpo bench append --plot": ("bench", "append", "--plot", "{bad}.svg"),
    "alpo bench read --plot": ("bench", "read", "--plot", "{bad}.svg"),
    "alpo bench failover --plot": ("bench", "failover", "--dir", "{log}", "--plot", "{bad}.svg"),
    "alpo-pipeline archive --to": ("archive", "--to", "{below}"),
    "alpo-sim sweep --to": ("sweep", "1..2", "--to", "{below}"),
    "alpo-pipeline report --to": ("report", "--to", "{bad}.html", "--log", "{log}"),
    "alpo-pipeline replay --to": ("replay", "--state", "--to", "{below}", "--path", "{log}"),
    "alpo-pipeline replay --items": (
        "replay", "--machine", "m:M", "--name", "m", "--items", "{bad}", "--path", "{log}"),
    "alpo-sim run --trace": ("run", "--seed", "1", "--seconds", "1", "--trace", "{bad}"),
    "alpo-sim shrink --output": ("shrink", "1", "--output", "{bad}"),
    "alpo-sim draw --output": ("draw", "1", "--output", "{bad}.svg"),
    "alpo-sim elections --out": ("elections", "--out", "{below}"),
    "alpo-sim explore --output": ("explore", "--output", "{bad}"),
    "alpo-sim mutants --output": ("mutants", "--output", "{bad}"),
}
#: Linux's numbers of capset(2)'s layout, and of the two rights by which root reads every file.
_LAYOUT, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 0x20080522, 1, 2
#: Options of every command, described in the chapter on the shared options.
SHARED = {"--config", "--ca", "--cert", "--key"}
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
            spelt = max(param.opts, key=len) if param.param_type_name == "option" else placeholder(param)
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
    """A directory that passes for a data directory until it is read."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "alpo.db").write_bytes(b"SQLite format 3\0")
    return tmp_path / "log"


@contextlib.contextmanager
def no_rights_of_root() -> Iterator[None]:
    """Apply files' modes to this thread, even if it runs as root."""
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


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A file that passes for a backup until it is read."""
    return head_of(tmp_path / "old.alpo", schema.BACKUP_APPLICATION_ID)


def head_of(file: Path, application_id: int) -> Path:
    """An SQLite file's beginning, up to its application id."""
    file.write_bytes(b"SQLite format 3\0".ljust(68, b"\0") + application_id.to_bytes(4, "big"))
    return file


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


@pytest.mark.parametrize("name", [name for name, words in READ.items() if "log" in words or "DATA" in name])
@pytest.mark.parametrize("kind", ["a file", "a directory"])
def test_what_is_a_database_of_somebody_else(name: str, kind: str, tmp_path: Path, log: Path) -> None:
    (tmp_path / "other").mkdir()
    bad = head_of(tmp_path / "other" / ("mine.db" if kind == "a file" else "alpo.db"), 0)
    refused(name, READ[name], {"bad": bad if kind == "a file" else bad.parent, "log": log, "new": tmp_path / "new"},
            bad.parent)


@pytest.mark.parametrize(("kind", "said"), [
    ("a directory", "is a directory: make a backup of it first: alpo backup FILE"), ("a data file", "is no backup"),
    ("a database", "is not an ALPO data file"),
])
def test_what_is_restored_is_a_backup(kind: str, said: str, tmp_path: Path, log: Path) -> None:
    head_of(log / "alpo.db", schema.APPLICATION_ID)
    bad = {"a directory": log, "a data file": log / "alpo.db", "a database": head_of(tmp_path / "mine.db", 7)}[kind]
    result = CliRunner().invoke(app, ["restore", str(bad), "--data", str(tmp_path / "new"), *LISTEN])
    assert (result.exit_code, result.stderr.startswith(f"alpo: {bad}: {said}")) == (2, True), result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("where", ["none", "proc"])
def test_what_cannot_be_written(name: str, where: str, tmp_path: Path, log: Path, backup: Path) -> None:
    """A path that cannot be written is refused, also in Linux's /proc, which says at first that it can be written."""
    (tmp_path / "file").touch()
    bad, below = tmp_path / "none" / "out", tmp_path / "file" / "out"
    if where == "proc":
        bad = below = Path("/proc/out")
    places = {"bad": bad, "below": below, "log": log, "new": tmp_path / "new", "backup": backup}
    refused(name, WRITTEN[name], places, bad.parent.parent)


#: Paths at which, or beside which, nothing may be written over: ``{bad}`` without its ending.
KEPT: dict[str, Callable[[Path], Path]] = {
    "a data file": lambda log: head_of(log.parent / "moved", schema.APPLICATION_ID),
    "a symlink to it": lambda log: linked(log, head_of(log.parent / "moved", schema.APPLICATION_ID)),
    "a backup": lambda log: head_of(log.parent / "monday", schema.BACKUP_APPLICATION_ID),
    "beside a data file": lambda log: log / "out",
    "beside a lock": lambda log: locked(log) / "out",
    "a symlink into a data directory": lambda log: linked(log, log / "out"),
    "on the way to it": lambda log: partial(head_of(log.parent / "moved", schema.APPLICATION_ID)),
}
#: Endings that some commands demand: the file to be kept gets a name with each of them.
ENDINGS = ("", ".svg", ".html")


def linked(log: Path, file: Path) -> Path:
    link = log.parent / "link"
    link.symlink_to(file)
    return link


def locked(log: Path) -> Path:
    (log / "alpo.db").unlink()
    (log / "alpo.lock").touch()
    return log


def partial(file: Path) -> Path:
    (file.parent / "out.partial").symlink_to(file)
    return file.parent / "out"


def writes_over(name: str, kind: str) -> bool:
    """True where writing is right: a backup replaces an older one, and only `alpo backup` and `alpo log` write to
    NAME.partial first."""
    if name == "alpo backup FILE" and kind == "a backup":
        return True
    return kind == "on the way to it" and not name.startswith(("alpo backup", "alpo log"))


@pytest.mark.parametrize(("name", "kind"), [
    (name, kind) for name, words in WRITTEN.items() if any("{bad}" in word for word in words)
    for kind in KEPT if not writes_over(name, kind)
])
def test_a_log_is_never_written_over(name: str, kind: str, tmp_path: Path, log: Path, backup: Path) -> None:
    bad = KEPT[kind](log)
    for ending in ENDINGS:  # a name that the command takes
        if ending and os.path.lexists(bad):
            bad.with_name(bad.name + ending).symlink_to(bad)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused(name, WRITTEN[name], {"bad": bad, "log": log, "new": tmp_path / "new", "backup": backup}, bad.parent)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# `alpo restore --data` wants an empty directory, and says so.
@pytest.mark.parametrize(
    "name", [name for name, words in WRITTEN.items() if "{below}" in words and name != "alpo restore --data"]
)
def test_nothing_else_goes_into_a_data_directory(name: str, log: Path, backup: Path) -> None:
    refused(name, WRITTEN[name], {"below": log, "log": log, "new": log.parent / "new", "backup": backup}, log)
    assert [path.name for path in log.iterdir()] == ["alpo.db"]


@pytest.mark.parametrize("name", ["alpo.db", "alpo.db-wal", "alpo.lock"])
def test_no_file_gets_the_name_of_a_servers(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["backup", str(tmp_path / name)], env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, []), result.stderr


@pytest.mark.parametrize(("words", "said"), [
    (("alpo", "bench", "append", "--plot", "x.txt"), "--plot x.txt: the name must end in .svg"),
    (("alpo", "bench", "failover", "--dir", ".", "--plot", "x"), "--plot x: the name must end in .svg"),
    (("alpo-sim", "draw", "1", "-o", "x.pdf"), "--output x.pdf: the name must end in .svg"),
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
    inputs.a_new_file(head_of(tmp_path / "old", schema.BACKUP_APPLICATION_ID), backup=True)
    inputs.a_new_file(Path("/dev/null"))
    with pytest.raises(UsageProblem, match="is no regular file"):
        inputs.a_new_file(Path("/dev/null"), replaced=True)
    with pytest.raises(UsageProblem, match="is a directory"):
        inputs.a_new_file(tmp_path)
