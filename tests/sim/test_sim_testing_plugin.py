"""`alpo.testing`: its check at the end, its pytest plugin, and what docs/testing.md promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import alpo
from alpo.client.arguments import After
from alpo.core.entries import Entry, Kind, seal, seal_appends
from alpo.testing import Broken
from alpo.testing.ledger import Ledger
from alpo.testing_plugin import _seeds

ROOT = Path(__file__).parents[2]


def entry(id: int, serial: int, body: bytes) -> Entry:
    return seal(id, 1, Kind.DATA, 0, id, body, "x", serial, 0, 1)


def run(*bodies: bytes) -> Entry:
    """A run of appends, the whole log."""
    return seal_appends([(1, body) for body in bodies], "x", 1, 0, 1, 1, 0, 1, together=True)[0]


class Told:
    """The part of a `Handle` that the ledger reads."""

    def __init__(
        self, body: bytes, serial: int, lsn: int | None = None, error: Exception | None = None, wanted: int | After = 0
    ) -> None:
        self.client, self.serial, self.lsn, self.failure, self.done = "x", serial, lsn, error, True
        self.wanted = wanted
        self.parcel = type("Parcel", (), {"item": body})


UNKNOWN = alpo.NotGuaranteed("?", client="x", serial=1, epoch=0)


@pytest.mark.parametrize(
    ("told", "log", "broken"),
    [
        ([Told(b"a", 1, 1)], [entry(1, 1, b"a")], ""),
        ([Told(b"a", 1, 1, wanted=After(0, 0))], [entry(1, 1, b"a")], ""),
        ([Told(b"a", 1, 1, wanted=After(1, 0))], [entry(1, 1, b"a")], "acknowledged"),
        ([Told(b"a", 1, None, alpo.Conflict("no", last_lsn=3))], [entry(1, 1, b"a")], "exactly once"),
        ([Told(b"a", 1, 1)], [], "acknowledged"),
        ([Told(b"a", 1, 1)], [entry(1, 1, b"b")], "acknowledged"),
        ([Told(b"a", 1, 1)], [entry(1, 1, b"a"), entry(2, 2, b"a")], "exactly once"),
        ([Told(b"a", 1, None, UNKNOWN)], [], ""),
        ([Told(b"a", 1, None, UNKNOWN)], [entry(1, 1, b"a")], ""),
        ([Told(b"a", 1, None, UNKNOWN)], [entry(1, 1, b"a"), entry(2, 2, b"a")], "exactly once"),
        ([Told(b"a", 1, None, UNKNOWN), Told(b"a", 1, 1)], [entry(1, 1, b"a"), entry(2, 2, b"a")], "exactly once"),
        ([Told(b"a", 0, None, alpo.Unavailable("no"))], [entry(1, 1, b"a")], "exactly once"),
        ([Told(b"a", 1, None, alpo.Fenced("no"))], [], ""),
        ([Told(b"a", 1, 1), Told(b"b", 2, 2)], [run(b"a", b"b")], ""),
        ([Told(b"a", 1, 1), Told(b"b", 2, 1)], [run(b"a", b"b")], "acknowledged"),
        ([Told(b"a", 1, 1)], [run(b"a", b"a")], "exactly once"),
    ],
)
def test_the_ledger(told: list[Any], log: list[Entry], broken: str) -> None:
    ledger = Ledger()
    ledger.account("x").extend(told)
    if broken:
        with pytest.raises(Broken, match=broken):
            ledger.check(log)
    else:
        ledger.check(log)


def run_pytest(folder: Path, text: str, name: str = "test_mine.py") -> str:
    (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, check=False,
    )
    return done.stdout + done.stderr


def test_the_example_in_the_docs(tmp_path: Path) -> None:
    """The careful publisher of the example passes with every seed, the naive one does not. (`tests/docs` checks what is
    printed.)"""
    page = (ROOT / "docs" / "testing.md").read_text()
    example = re.findall(r"```python\n(# test_outbox.*?)```", page, re.DOTALL)[0]
    told = run_pytest(tmp_path, example, "test_outbox.py")
    assert "-publish_naively]" in told and "-publish]" not in told
    assert re.search(r"\b[1-9]\d* failed, 1\d passed", told)


def test_a_failure_says_its_seed(tmp_path: Path) -> None:
    told = run_pytest(tmp_path, """
import pytest

pytestmark = pytest.mark.alpo(servers=5)

@pytest.mark.alpo(seeds=[5, 6])
def test_mine(alpo_cluster):
    alpo_cluster.crash(2)
    assert alpo_cluster.seed != 6 and len(alpo_cluster.servers) == 5
""")
    assert "1 failed, 1 passed" in told
    assert "test_mine[seed6]" in told
    assert "alpo.testing.Cluster(seed=6, servers=5)" in told
    assert re.search(r"^ +\d+\.\d{3} s  crash 2$", told, re.MULTILINE)


def test_the_marks_seeds() -> None:
    assert _seeds({}) == [0]
    assert _seeds({"seed": 7}) == [7]
    assert _seeds({"seeds": 3}) == [0, 1, 2]
    assert _seeds({"seeds": (4, 5)}) == [4, 5]
    with pytest.raises(pytest.UsageError):
        _seeds({"seed": 1, "seeds": 2})


def test_who_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    told = run_pytest(tmp_path, """
import sys

def test_mine():
    loaded = {name for name in sys.modules if name.startswith(("alpo", "_alpo"))}
    assert loaded == {"alpo", "alpo._version", "alpo.errors", "alpo.testing_plugin"}
""")
    assert "1 passed" in told
