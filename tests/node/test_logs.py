"""The table of events: whatever a server says is in it, with the level that it has."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from alpo.node.event_log import EVENTS, LEVELS, level_of, set_level, set_up_logs

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "alpo/server.py", *sorted(ROOT.glob("alpo/core/**/*.py")), *sorted(ROOT.glob("alpo/node/**/*.py"))]
METHODS = {"debug", "info", "warning", "error", "critical"}


def said(source: Path) -> Iterator[tuple[str, str]]:
    """(event, level or "" where the table decides) of every call in ``source`` that makes one."""
    for function in ast.walk(ast.parse(source.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = {
            node.targets[0].id: node.value for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name, at = getattr(call.func, "attr", ""), call.args[0]
            of = getattr(getattr(call.func, "value", None), "id", "")
            level = name if name in METHODS and of == "log" else ""
            if name == "partial" and getattr(at, "attr", "") == "note":
                at = call.args[1]
            elif name not in ("event", "_event", "note") and not level:
                continue
            at = given.get(at.id, at) if isinstance(at, ast.Name) else at
            for part in ast.walk(at):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
                    yield part.value, level


def test_the_table_has_every_event_and_no_other() -> None:
    found = {event for source in SOURCES for event, _ in said(source)}
    assert found - {"cannot_run", "invariant_broken"} == set(EVENTS) - {"cannot_run", "invariant_broken"}
    assert len(found) > 50


def test_what_is_logged_directly_has_the_level_of_the_table() -> None:
    direct = {(event, level) for source in SOURCES for event, level in said(source) if level}
    assert direct == {(event, EVENTS[event][0]) for event, _ in direct} and direct


def test_levels_are_levels() -> None:
    assert {level for level, _ in EVENTS.values()} <= {*LEVELS, "critical"}
    assert level_of("diverged") == 40 and level_of("serving") == 20 and level_of("nobody knows it") == 20


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    set_level("info")


@pytest.mark.usefixtures("restored")
def test_the_level_can_change_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("json", "warning")
    log = structlog.get_logger()
    for level in ("error", "debug"):
        log.info("one")
        log.error("two")
        set_level(level)
        log.warning("three")
    set_level("debug")
    log.debug("four")
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == ["two", "two", "three", "four"]
