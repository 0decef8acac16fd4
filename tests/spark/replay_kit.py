"""A log of small accounts, functions that fold it, and a replay that is killed on the way.

    python replay_kit.py PATH DIR FUNCTIONS EVERY POINT NUMBER

Dies by SIGKILL the NUMBERth time that it comes to POINT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from alpo.spark.files import FileOrigin
from alpo.spark.jobs import folding, replaying
from alpo.spark.jobs.functions import find_function
from alpo.spark.jobs.grouping import Grouper, group_here, part_of
from alpo.spark.jobs.replaying import PARTS, Replayed, Wanted, replay

#: Accounts that come to two parts only, so that several share one.
NAMES = [name for name in map("{:02x}".format, range(256)) if part_of((name, 0)) % PARTS in (3, 5)][:9]
PASSED_OVER = NAMES[2]

FUNCTIONS = f"PASSED_OVER = {PASSED_OVER!r}" + '''
from dataclasses import dataclass


@dataclass
class Move:
    account: str
    amount: int


def move(record) -> "Move":
    account, amount = record.payload.decode().split()
    return Move(account, int(amount))


def account(record):
    return move(record).account


def both(record):
    return [account(record), "all"] if account(record) != PASSED_OVER else None


def apply(state, record):
    """Closed at zero."""
    state = state or {"balance": 0, "moves": []}
    state["balance"] += move(record).amount
    state["moves"].append(record.lsn)
    return state if state["balance"] else None


def total(state, record):
    return (state or 0) + move(record).amount


def fussy(state, record):
    if move(record).amount == -4:
        raise ValueError("no more than three")
    return 1


def odd(state, record):
    return {record.lsn: 1}


def bad_key(record):
    return record.lsn
'''
POINTS = {"reading": (replaying, "read_keyed"), "part": (folding, "_table_of"), "renamed": (folding, "part_at"),
          "finish": (replaying, "finish"), "cleared": (replaying, "clear")}


def payloads(count: int) -> list[bytes]:
    """Payloads that move amounts between accounts; some accounts are closed again."""
    return [f"{NAMES[(n * n + n // 7) % len(NAMES)]} {(-1) ** (n // 3) * (n % 5)}".encode() for n in range(count)]


def functions_in(directory: Path) -> Path:
    path = directory / "accounts.py"
    path.write_text(FUNCTIONS)
    return path


def run(
    path: str, to: Path, functions: Path, fold: str = "apply", key: str | None = "account", every: int = 20,
    upto: int | None = None, group: Grouper = group_here,
) -> Replayed:
    found = find_function(f"{functions}:{key}") if key is not None else None
    return replay(Wanted(FileOrigin(path), to, find_function(f"{functions}:{fold}"), found, upto, every), group)


def rows_of(done: Replayed) -> dict[str, tuple[int, str]]:
    """(lsn, state) of every key."""
    found = [row for part in done.table.parts for row in pq.read_table(done.table.directory / part.file).to_pylist()]
    assert len({row["key"] for row in found}) == len(found) == done.table.rows
    return {row["key"]: (row["lsn"], row["state"]) for row in found}


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def dying(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    left = number

    def call(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    return call


if __name__ == "__main__":
    _, log, to, functions, every, point, number = sys.argv
    module, name = POINTS[point]
    setattr(module, name, dying(getattr(module, name), int(number)))
    run(log, Path(to), Path(functions), every=int(every))
