"""The example that folds a log by functions of one's own: at any LSN it is what plain Python makes."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import fold
import pytest
from jobs_kit import Replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 70
NAMES = [f"account {n}" for n in range(9)]
#: Accounts that close at zero, but for one that is left out; each move also counts for all together.
FUNCTIONS = f"LEFT_OUT = {NAMES[2]!r}" + '''
from dataclasses import dataclass


@dataclass
class Move:
    account: str
    amount: int


def move(record) -> "Move":
    account, amount = record.payload.decode().rsplit(" ", 1)
    return Move(account, int(amount))


def key(record):
    return [move(record).account, "all"] if move(record).account != LEFT_OUT else None


def only(record):
    return move(record).account


def fold(state, record):
    state = state or {"balance": 0, "moves": []}
    state["balance"] += move(record).amount
    state["moves"].append(record.lsn)
    return state if state["balance"] else None
'''


def payloads(count: int) -> list[bytes]:
    """Payloads that open, change and close accounts."""
    return [f"{NAMES[(n * n + n // 7) % len(NAMES)]} {(-1) ** (n // 3) * (n % 5)}".encode() for n in range(count)]


def balances(upto: int) -> dict[str, int]:
    """Balances of the accounts that are not closed, by plain Python."""
    found: dict[str, int] = {}
    for payload in payloads(upto):
        account, amount = payload.decode().rsplit(" ", 1)
        found[account] = found.get(account, 0) + int(amount)
        if not found[account]:
            del found[account]
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replica]:
    """COUNT payloads; every third entry is a batch of three, some have none."""
    replica = Replica(tmp_path / "log")
    rest = payloads(COUNT)
    while rest:
        for size in (1, 1, 3):
            if rest:
                replica.append(tuple(rest[:size]))
                rest = rest[size:]
        replica.append(())
    yield replica
    replica.close()


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.py"
    path.write_text(FUNCTIONS)
    return path


def test_at_any_lsn_it_is_what_plain_python_makes(log: Replica, functions: Path, spark: SparkSession) -> None:
    found = runpy.run_path(str(functions))
    reader = spark.read.format("alpo").option("path", log.path)
    for upto in (1, 41, COUNT):
        rows = fold.folded(reader.option("endingLsn", upto).load(), found["only"], found["fold"]).collect()
        states = {row.key: json.loads(row.state) for row in rows}
        assert {key: state["balance"] for key, state in states.items()} == balances(upto) and len(states) == len(rows)
        assert all(states[row.key]["moves"] == sorted(states[row.key]["moves"]) for row in rows)
        assert all(states[row.key]["moves"][-1] == row.lsn for row in rows)
    assert balances(1) == {} and 3 < len(balances(COUNT)) <= len(NAMES)


def test_the_command(
    log: Replica, functions: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command folds records of several keys, and leaves some records out."""
    to = tmp_path / "table"
    words = [fold.__file__, str(functions), "--path", log.path, "--to", str(to), "--upto", "60"]
    monkeypatch.setattr(sys, "argv", words)
    fold.main()
    states = {row.key: json.loads(row.state)["balance"] for row in spark.read.parquet(str(to)).collect()}
    wanted = {key: balance for key, balance in balances(60).items() if key != NAMES[2]}
    assert states == wanted | {"all": sum(wanted.values())}
