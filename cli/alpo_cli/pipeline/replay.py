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
    from alpo.spark.jobs.tables import StateReplayed
    from alpo.spark.origin import Origin


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's options."""

    to: Path
    path: str | None
    archive: str | None
    upto: int | None


def run(target: Target, asked: Asked) -> None:
    """Replay, and print the result. Raises UsageProblem, `SourceError`."""
    spark.require()
    began_s = time.monotonic()
    origin = _origin(target, asked)
    from alpo.spark.jobs.tables import StateWanted, replay_state

    with slow_progress() as step:
        made = replay_state(StateWanted(origin, asked.to, asked.upto), lambda done, all: step("replaying", done, all))
    _tell(target, _fields(made, time.monotonic() - began_s))


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


def _fields(done: StateReplayed, took_s: float) -> dict[str, Any]:
    return {
        "table": str(done.table.directory), "cluster": done.table.cluster, "state": done.state_id,
        "lsn": done.table.lsn, "from_lsn": done.from_lsn, "tables": int(done.made),
        "payloads": done.payloads, "folded": done.folded, "keys": done.table.rows, "file_bytes": done.table.bytes,
        "seconds": round(took_s, 3),
    }


def _tell(target: Target, fields: dict[str, Any]) -> None:
    if target.json:
        print_json(fields)
        return
    rows = [
        ["the table", fields["table"]],
        ["is the log up to", f"LSN {fields['lsn']}"],
        ["variables", f"{fields['keys']:,}"],
        ["files", f"{fields['file_bytes']:,} bytes"],
    ]
    if fields["tables"]:
        began = f"the snapshot at LSN {fields['from_lsn']}" if fields["from_lsn"] else "the first payload"
        rows += [
            ["went on from", began],
            ["payloads", f"{fields['payloads']:,}"],
            ["of the state", f"{fields['folded']:,}"],
            ["new tables", f"{fields['tables']:,}"],
        ]
    else:
        rows.append(["new tables", "none: it was there"])
    table("replay the state", ["", ""], [*rows, ["took", f"{fields['seconds']:.1f} s"]])
