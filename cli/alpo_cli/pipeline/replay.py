"""Work of `alpo-pipeline replay`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpo.tls import tls_given

from ..exits import UsageProblem
from ..options import Target, split_servers
from ..output import print_json, table
from ..progress import slow_progress
from . import spark

if TYPE_CHECKING:
    from alpo.spark.jobs.replaying import Replayed
    from alpo.spark.jobs.stating import StateReplayed
    from alpo.spark.origin import Origin


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's options. ``fold`` None: the replicated state."""

    fold: str | None
    key: str | None
    to: Path
    path: str | None
    archive: str | None
    upto: int | None
    every: int | None
    master: str


def check(asked: Asked, state: bool) -> None:
    """Raise UsageProblem unless the options say one thing to fold."""
    if asked.fold is None and not state:
        raise UsageProblem("what shall be folded? --fold FILE.py:NAME, or --state: the log's replicated state")
    if not state:
        return
    if asked.fold is not None or asked.key is not None:
        raise UsageProblem("--state or --fold with --key, not both: a state is folded by rules of its own")
    if asked.every is not None or asked.master:
        raise UsageProblem("--state makes one table, in this process: it takes neither --every nor --master")


def run(target: Target, asked: Asked) -> None:
    """Replay, and print the result. Raises UsageProblem, `SourceError`."""
    spark.require()
    began_s = time.monotonic()
    origin = _origin(target, asked)
    if asked.fold is None:
        from alpo.spark.jobs.stating import StateWanted, replay_state

        with slow_progress() as step:
            made = replay_state(
                StateWanted(origin, asked.to, asked.upto), lambda done, all: step("replaying", done, all)
            )
        _tell(target, "the state", _state_fields(made, time.monotonic() - began_s))
        return
    done = _replay(asked, origin, asked.fold)
    _tell(target, asked.fold, _fields(done, time.monotonic() - began_s))


def _replay(asked: Asked, origin: Origin, fold_name: str) -> Replayed:
    from alpo.spark.jobs.functions import NoFunction, find_function
    from alpo.spark.jobs.replaying import EVERY, Wanted, replay

    try:
        fold = find_function(fold_name)
        key = find_function(asked.key) if asked.key is not None else None
    except NoFunction as error:
        raise UsageProblem(str(error)) from error
    wanted = Wanted(origin, asked.to, fold, key, asked.upto, asked.every or EVERY)
    with slow_progress() as step, spark.grouper("alpo-pipeline replay", asked.master) as group:
        return replay(wanted, group, lambda done, all: step("replaying", done, all))


def _origin(target: Target, asked: Asked) -> Origin:
    """Origin to read: servers or a path, an archive, or one of the former with an archive. Raises UsageProblem."""
    from alpo.spark.options import ReadOptions
    from alpo.spark.reading import origin_of

    servers = target.servers
    if not (servers or asked.path or asked.archive):
        if not os.environ.get("ALPO_SERVERS"):
            raise UsageProblem("what shall be replayed? --servers HOST:PORT,… or --path DATA_OR_BACKUP, --archive DIR")
        servers = split_servers(os.environ["ALPO_SERVERS"], "ALPO_SERVERS")
    if servers and asked.path:
        raise UsageProblem("--servers or --path, not both: with --archive or without")
    return origin_of(ReadOptions(
        servers, asked.path or "", asked.archive or "", timeout_s=max(target.timeout_s, spark.TIMEOUT_S_LEAST),
        tls=tls_given(os.environ),
    ))


def _fields(done: Replayed, took_s: float) -> dict[str, Any]:
    return {
        "table": str(done.table.directory), "cluster": done.table.cluster, "lsn": done.table.lsn,
        "from_lsn": done.from_lsn, "tables": done.made, "payloads": done.payloads, "folded": done.folded,
        "keys": done.table.rows, "file_bytes": done.table.bytes, "seconds": round(took_s, 3),
    }


def _state_fields(done: StateReplayed, took_s: float) -> dict[str, Any]:
    return {
        "table": str(done.table.directory), "cluster": done.table.cluster, "state": done.state_id,
        "lsn": done.table.lsn, "from_lsn": done.from_lsn, "tables": int(done.made),
        "payloads": done.payloads, "folded": done.folded, "keys": done.table.rows, "file_bytes": done.table.bytes,
        "seconds": round(took_s, 3),
    }


def _tell(target: Target, what: str, fields: dict[str, Any]) -> None:
    if target.json:
        print_json(fields)
        return
    state = "state" in fields
    went_on = f"the {'snapshot' if state else 'table'} at LSN {fields['from_lsn']}"
    rows = [
        ["the table", fields["table"]],
        ["is the log up to", f"LSN {fields['lsn']}"],
        ["variables" if state else "keys", f"{fields['keys']:,}"],
        ["files", f"{fields['file_bytes']:,} bytes"],
    ]
    if fields["tables"]:
        rows += [
            ["went on from", went_on if fields["from_lsn"] else "the first payload"],
            ["payloads", f"{fields['payloads']:,}"],
            ["of the state" if state else "calls of the fold", f"{fields['folded']:,}"],
            ["new tables", f"{fields['tables']:,}"],
        ]
    else:
        rows.append(["new tables", "none: it was there"])
    table(f"replay {what}", ["", ""], [*rows, ["took", f"{fields['seconds']:.1f} s"]])
