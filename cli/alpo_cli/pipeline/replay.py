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
    from alpo.spark.origin import Origin


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's options."""

    fold: str
    key: str | None
    to: Path
    path: str | None
    archive: str | None
    upto: int | None
    every: int
    master: str


def run(target: Target, asked: Asked) -> None:
    """Replay, and print the result. Raises UsageProblem, `SourceError`."""
    spark.require()
    from alpo.spark.jobs.functions import NoFunction, find_function
    from alpo.spark.jobs.replaying import Wanted, replay

    began_s = time.monotonic()
    origin = _origin(target, asked)
    try:
        fold = find_function(asked.fold)
        key = find_function(asked.key) if asked.key is not None else None
    except NoFunction as error:
        raise UsageProblem(str(error)) from error
    wanted = Wanted(origin, asked.to, fold, key, asked.upto, asked.every)
    with slow_progress() as step, spark.grouper("replay", asked.master) as group:
        done = replay(wanted, group, lambda done, all: step("replaying", done, all))
    fields = _fields(done, time.monotonic() - began_s)
    if target.json:
        print_json(fields)
    else:
        _print(asked, fields)


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


def _print(asked: Asked, fields: dict[str, Any]) -> None:
    went_on = f"the table at LSN {fields['from_lsn']}" if fields["from_lsn"] else "the first payload"
    rows = [
        ["the table", fields["table"]],
        ["is the log up to", f"LSN {fields['lsn']}"],
        ["keys", f"{fields['keys']:,}"],
        ["files", f"{fields['file_bytes']:,} bytes"],
    ]
    if fields["tables"]:
        rows += [
            ["went on from", went_on],
            ["payloads", f"{fields['payloads']:,}"],
            ["calls of the fold", f"{fields['folded']:,}"],
            ["new tables", f"{fields['tables']:,}"],
        ]
    else:
        rows.append(["new tables", "none: it was there"])
    table(f"replay {asked.fold}", ["", ""], [*rows, ["took", f"{fields['seconds']:.1f} s"]])
