"""`alpo state` where something is the matter: unknown outcomes, no majority, rival snapshots, a later release."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from alpo_command import Alpo, until
from typer.testing import CliRunner

from alpo.rsm.folder import Sent
from alpo.rsm.outcomes import Command
from alpo.state import codec
from alpo.state.folder import Folder
from alpo.state.recipes import Lock
from alpo_cli.app import app
from alpo_cli.local_cluster import LocalCluster


@contextmanager
def no_majority(directory: Path) -> Iterator[None]:
    """Two of the three servers are stopped."""
    stopped = [LocalCluster.load(directory).get(id) for id in (2, 3)]
    for server in stopped:
        assert server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for server in stopped:
            server.send(signal.SIGCONT)


def led_by_the_first(alpo: Alpo) -> None:
    until(lambda: alpo.run("transfer", "1", code=None).returncode == 0)  # the leader may have heard nothing of it yet


def test_a_write_that_nobody_answers_is_of_unknown_outcome(
    alpo: Alpo, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers stop between the last look and the write."""
    alpo.run("state", "set", "a", "1")
    led_by_the_first(alpo)
    enter = Folder.enter

    with ExitStack() as stopped:
        def into_the_void(self: Folder, *given: Any, **named: Any) -> Sent:
            stopped.enter_context(no_majority(directory))
            return enter(self, *given, **named)

        monkeypatch.setattr(Folder, "enter", into_the_void)
        words = ["--servers", alpo.servers, "--timeout", "2", "state", "set", "a", "2", "--json"]
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 3, result.output
    told = json.loads(result.stdout)
    assert told == {"name": "a", "version": None, "changed": None, "client": told["client"], "serial": 1, "epoch": 0}
    asked = re.search(r"outcome unknown \(client (~\S+), serial 1, epoch 0\).*: (alpo outcome \S+ 1)$", result.stderr)
    assert asked and asked[1] == told["client"]
    (outcome,) = alpo.lines("outcome", told["client"], "1")
    found = json.loads(alpo.out("state", "get", "a", "--json"))
    assert (found["value"], outcome["outcome"]) in (("1", "not_appended"), ("2", "appended"))


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_lock_whose_try_or_release_nobody_answers(
    alpo: Alpo, directory: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """The servers stop before the try is answered, and Ctrl-C is pressed; or they stop before the release's answer."""
    alpo.run("state", "set", "a", "1")
    led_by_the_first(alpo)
    enter, entered, outcome = Folder.enter, count(1), Lock._outcome

    with ExitStack() as stopped:
        def into_the_void(self: Folder, *given: Any, **named: Any) -> Sent:
            if next(entered) == (1 if interrupted else 2):
                stopped.enter_context(no_majority(directory))
            return enter(self, *given, **named)

        async def interrupt(self: Lock, sent: Command, give_up_s: float) -> int:
            while interrupted and not sent.handle.serial:  # a try that was not sent is not in doubt
                await anyio.sleep(0.01)
            if interrupted:
                os.kill(os.getpid(), signal.SIGINT)
            return await outcome(self, sent, give_up_s)

        monkeypatch.setattr(Folder, "enter", into_the_void)
        monkeypatch.setattr(Lock, "_outcome", interrupt)
        words = ["--servers", alpo.servers, "--timeout", "2", "state", "lock", "taken", "--ttl", "3", "--", "true"]
        result = CliRunner().invoke(app, words)
    if interrupted:
        assert result.exit_code == 3, result.output
        assert re.search(r"outcome unknown \(client ~\S+, serial 1, epoch 0\)", result.stderr)
    else:
        assert result.exit_code == 0, result.output
        assert "alpo: nobody can tell whether the lock taken was given back: it is free in 3 s at the" in result.stderr
    assert alpo.out("state", "lock", "taken", "--", "echo", "mine") == "mine\n"


def test_without_a_majority_one_server_can_still_be_read(alpo: Alpo, directory: Path) -> None:
    version = int(alpo.out("state", "set", "kept", "x"))
    led_by_the_first(alpo)
    with no_majority(directory):
        assert alpo.run("state", "get", "kept", "--timeout", "1", code=1).stdout == b""
        (found,) = alpo.lines("state", "get", "kept", "--local", "--timeout", "5")
        assert (found["version"], found["value"]) == (version, "x")
        assert b"was not written" not in alpo.run("state", "set", "kept", "y", "--timeout", "1", code=1).stderr
    assert alpo.out("state", "get", "kept") == "x\n"


def test_one_snapshot_is_written_at_a_time(alpo: Alpo) -> None:
    alpo.run("state", "add", "n")
    alpo.run("append", "--whole", stdin=codec.begin(b"another process!"))
    done = alpo.run("state", "snapshot", "--json", code=1)
    assert (done.stdout, done.stderr) == (b"", b"alpo: another process is writing a snapshot\n")


def test_what_a_later_release_has_written_is_not_guessed_at(alpo: Alpo) -> None:
    """This test is the module's last: after it, no command of this release can use that log."""
    lsn = alpo.lines("append", "--whole", stdin=codec.MAGIC + b"\x02later")[0]["lsn"]
    for words in (["get", "n"], ["set", "n", "1"], ["watch"], ["lock", "n", "--", "echo", "run"], ["status"]):
        done = alpo.run("state", *words, code=1)
        assert done.stdout == b""
        assert f"payload {lsn} is in format 2".encode() in done.stderr and b"use a newer release" in done.stderr
