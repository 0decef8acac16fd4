"""Helpers of the tests of `alpo log`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from store_kit import LogBuilder, SqliteBench, runs_of, write
from typer.testing import CliRunner

from alpo_cli.app import app

RUNNER = CliRunner()


def run(*words: object, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of `alpo log …`."""
    done = RUNNER.invoke(app, ["log", *map(str, words)])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return done.stdout, done.stderr


def lines(*words: object, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json", code=code)[0].splitlines()]


def holding(bench: SqliteBench, batches: Sequence[Sequence[bytes]]) -> None:
    """A store with these payloads, a batch an entry, and no others."""
    log = LogBuilder()
    entries = [log.data(1, tuple(batch)) for batch in batches]
    bench.store.commit([write(entries, runs=runs_of(entries), guaranteed_id=len(entries))])
