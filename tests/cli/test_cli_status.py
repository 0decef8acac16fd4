"""The shape of `alpo status`: keys, nulls, lag, exit codes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from alpo.core.settings import size_text as size
from alpo.standing import lag_of
from alpo_cli.commands.status import KEYS, as_json, show
from alpo_cli.exits import Failed
from alpo_cli.options import Target

LEADER: dict[str, Any] = {
    "id": 1, "address": "127.0.0.1:7100", "state": "leader", "status": "VOTING", "term": 2, "leader": 1, "last_id": 9,
    "guaranteed_id": 9, "fully_replicated_id": 7, "first_lsn": 1, "last_lsn": 8, "reachable": True,
    "version": "0.1.0", "waiting": [], "problems": ["server 3: cannot be\x1breached"],
}
BEHIND = {**LEADER, "id": 2, "state": "passive", "guaranteed_id": 7, "problems": []}
GONE: dict[str, Any] = {"id": 3, "address": "127.0.0.1:7102", "reachable": False}
MEMBERS = [LEADER, BEHIND, GONE]


def test_every_member_has_every_key() -> None:
    members = as_json(MEMBERS)["members"]
    assert list(members[0])[: len(KEYS)] == list(KEYS)
    assert members[0]["version"] == "0.1.0"
    gone = members[2]
    assert (gone.pop("id"), gone.pop("address"), gone.pop("reachable")) == (3, "127.0.0.1:7102", False)
    assert set(gone.values()) == {None} and set(gone) == set(KEYS) - {"id", "address", "reachable"}


def test_lag() -> None:
    assert [lag_of(member, MEMBERS) for member in MEMBERS] == [0, 2, None]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(Target(("a:1",), 1.0, False), MEMBERS)
    shown = capsys.readouterr()
    assert "unreachable" in shown.out and shown.err == "server 1: server 3: cannot be\\ereached\n"
    assert {line.count("\t") for line in shown.out.splitlines()} == {14}, "a pipe has rows only"


def test_on_a_terminal_remarks_stand_below_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(Target(("a:1",), 1.0, False), MEMBERS)
    shown = capsys.readouterr()
    assert "server 1: server 3: cannot be\\ereached\n" in shown.out and shown.err == ""


def test_two_processes_of_one_member_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    twice = [{"id": 3, "addresses": ["h9:7100", "h3:7100"], "last_ms": 1}]
    show(Target(("a:1",), 1.0, False), [{**member, "twice": twice, "problems": []} for member in (LEADER, BEHIND)])
    assert capsys.readouterr().err == (
        "server 3: two processes have its identity, at h3:7100 and h9:7100: a disk or a directory was copied\n"
    )


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(Target(("a:1",), 1.0, True), MEMBERS)
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and len(json.loads(out)["members"]) == 3


def test_nobody_reachable_is_a_failure_that_is_still_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failed, match="a:1"):
        show(Target(("a:1",), 1.0, True), [GONE])
    assert json.loads(capsys.readouterr().out)["members"][0]["reachable"] is False


def test_sizes() -> None:
    assert [size(n) for n in (5, 2048, 3 << 20, 5 << 29)] == ["5 B", "2.0 KiB", "3.0 MiB", "2.5 GiB"]
