"""Jobs in this process, `alpo-pipeline` unless another command is named, over a runner of the test's choice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from alpo.spark.jobs.fan import Runner
from alpo_cli.frame import App
from alpo_cli.pipeline.app import app


def over(monkeypatch: pytest.MonkeyPatch, runner: Runner) -> None:
    @contextmanager
    def given(name: str, master: str) -> Iterator[Runner]:
        yield runner

    monkeypatch.setattr("alpo_cli.pipeline.spark.runner", given)


def pipeline(*words: object, code: int = 0, app: App = app) -> str:
    """Output of the command, stderr included."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return done.output


def fields(*words: object, code: int = 0, app: App = app) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
