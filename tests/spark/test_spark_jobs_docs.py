"""Every option of `alpo-pipeline` is in its docs, and every help has an example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from alpo_cli.pipeline.app import app

DOCS = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
ROOT: Any = typer.main.get_command(app)


@pytest.mark.parametrize("name", ROOT.commands)
def test_every_option_is_documented(name: str) -> None:
    command = ROOT.commands[name]
    found = re.search(rf"^## alpo-pipeline {name}\n(.*?)(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found is not None
    flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    shared = {"--config", "--timeout", "--help", "--ca", "--cert", "--key", "--tls-name"}  # told of above the chapters
    assert not {flag for flag in flags - shared if f"{flag}" not in found[1]}
    assert f"alpo-pipeline {name}" in command.help.partition("Examples:")[2]
