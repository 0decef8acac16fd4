"""docs/deploying.md: its commands exist, its files are there, and its configurations are accepted."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods
import pytest
import typer

from alpo.config import Config
from alpo.config_sources import load_config, variables
from alpo.daemon import _parser
from alpo_cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploying.md").read_text("utf-8")
MONITORING = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
#: Options of every command, wherever they stand.
SHARED = {"--servers", "--config", "--timeout", "--json", "--ca", "--cert", "--key", "--tls-name"}


def blocks(language: str) -> list[str]:
    """The page's blocks in fences, of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command of ours in a page: in indented blocks, and between single backquotes."""
    lines = re.findall(r"^    (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    for line in [*lines, *re.findall(r"`(alpod? [^`]+)`", " ".join(text.split()))]:
        words = shlex.split(line.replace("…", ""))
        for at, word in enumerate(words):
            if word in ("alpo", "alpod") or word.startswith("/opt/alpo/bin/alpo"):
                if at == 0 or words[at - 1] == "--":
                    yield [Path(word).name, *words[at + 1 :]]


def unknown(words: list[str]) -> str:
    """The first word that does not exist in a command of ours; "" if all exist."""
    if words[0] == "alpod":
        options = _parser()._option_string_actions
        return next((word for word in words if word.startswith("-") and word not in options), "")
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return " ".join(words)
        command, rest = command.commands[rest[0]], rest[1:]
    known = {flag for parameter in command.params for flag in parameter.opts} | SHARED
    return next((word for word in rest if word.startswith("--") and word not in known), "")


@pytest.mark.parametrize("text", [PAGE, MONITORING], ids=["deploying", "monitoring"])
def test_every_command_exists(text: str) -> None:
    found = list(commands(text))
    assert len(found) > 5
    assert [words for words in found if unknown(words)] == []
    assert unknown(["alpo", "member", "ad"]) and unknown(["alpo", "status", "--al"]) and unknown(["alpod", "--conf"])


def test_every_file_is_there() -> None:
    named = set(re.findall(r"config/[\w./-]+\w", PAGE + MONITORING))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == [] and len(named) > 5


def configuration(folder: Path, id: int) -> Config:
    """Configuration of server ``id`` from the page's two files."""
    (folder / "alpod.toml").write_text(blocks("toml")[0], "utf-8")
    environment = dict(line.split("=", 1) for line in blocks("sh")[0].splitlines())
    assert set(environment) <= set(variables())
    mine = {name: re.sub(r"(?<=10\.0\.0\.|server-)1|^1$", str(id), value) for name, value in environment.items()}
    return load_config(folder / "alpod.toml", {}, mine).config


def test_the_three_hosts_agree(tmp_path: Path) -> None:
    configs = [configuration(tmp_path, id) for id in (1, 2, 3)]
    assert [(config.id, config.listen, config.http) for config in configs] == [
        (id, f"10.0.0.{id}:7100", f"10.0.0.{id}:7180") for id in (1, 2, 3)
    ]
    assert len({config.member for config in configs}) == 1
    assert [config.advertised for config in configs] == [line.address for line in configs[0].member]
    for config in configs:
        assert config.tls is not None and (config.tls.mode, config.tls.name) == ("require", "prod")
        assert config.tls.key.name == f"server-{config.id}.key" and config.http_needs == "cert"


def test_the_environment_of_backups_is_one_that_commands_read() -> None:
    names = {line.partition("=")[0] for line in blocks("sh")[1].splitlines()}
    assert names == {"ALPO_SERVERS", "ALPO_TLS_NAME", "ALPO_CA", "ALPO_CERT", "ALPO_KEY", "DAYS"}


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="this machine has no haproxy")
def test_haproxy_accepts_its_configuration(tmp_path: Path) -> None:
    make = ["certs", "make", "--dir", str(tmp_path), "--server", "1=10.0.0.1"]
    subprocess.run([sys.executable, "-c", pods.ALPO, *make], check=True, capture_output=True)
    (text,) = blocks("haproxy")
    assert "GET /readyz?leader" in text and [f"10.0.0.{id}:7100" in text for id in (1, 2, 3)] == [True] * 3
    file = tmp_path / "haproxy.cfg"
    file.write_text(text.replace("/etc/haproxy/alpo-ca.pem", str(tmp_path / "ca.pem")), "utf-8")
    done = subprocess.run(["haproxy", "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "[" in line]) == (0, [])
