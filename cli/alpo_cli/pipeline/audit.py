"""Work of `alpo-pipeline audit`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..exits import Failed, UsageProblem
from ..options import Target, split_servers
from ..output import counted, escape, print_json, table
from ..progress import slow_progress
from . import spark

if TYPE_CHECKING:
    from alpo.spark.jobs.auditing import Audit


def run(target: Target, paths: tuple[str, ...], history: Path | None, master: str) -> None:
    """Audit, and print the result. Raises Failed if there are faults, UsageProblem, `SourceError`."""
    servers = target.servers
    if not servers and not paths:
        if not os.environ.get("ALPO_SERVERS"):
            raise UsageProblem("what shall be looked at? --servers HOST:PORT,… or --path DATA_OR_BACKUP, or both")
        servers = split_servers(os.environ["ALPO_SERVERS"], "ALPO_SERVERS")
    spark.require()
    from alpo.spark.jobs.auditing import Wanted, audit, read_history

    began_s = time.monotonic()
    told = () if history is None else tuple(read_history(history))
    wanted = Wanted(servers, paths, told, max(target.timeout_s, spark.TIMEOUT_S_LEAST))
    with slow_progress() as step, spark.runner("alpo-pipeline audit", master) as runner:
        found = audit(wanted, runner, lambda done, all: step("auditing", done, all))
    took_s = time.monotonic() - began_s
    if target.json:
        print_json(_fields(found, took_s))
    else:
        _print(found, history is not None, took_s)
    if found.faults:
        raise Failed(f"the audit found {counted(len(found.faults), 'fault')}")


def _fields(found: Audit, took_s: float) -> dict[str, Any]:
    return {
        "sound": not found.faults, "cluster": found.cluster, "entries_compared": found.compared,
        "history_checked": found.told, "history_trimmed": found.trimmed, "seconds": round(took_s, 3),
        "copies": [
            {"copy": copy.name, "first_id": copy.first_id, "guaranteed_id": copy.end_id} for copy in found.copies
        ],
        "faults": [fault._asdict() for fault in found.faults],
    }


def _print(found: Audit, history: bool, took_s: float) -> None:
    for fault in found.faults:
        print(escape(fault.told()))
    rows = []
    for copy in found.copies:
        faults = sum(copy.name in fault.copy.split(", ") for fault in found.faults)
        rows.append([copy.name, f"{copy.first_id:,}", f"{copy.end_id:,}", str(faults) if faults else "none"])
    table(f"cluster {found.cluster}", ["copy", "first entry", "guaranteed up to", "faults"], rows)
    answers = ""
    if history:
        answers = f", {counted(found.told, 'answer')} to clients checked"
        answers += f" ({found.trimmed:,} more are of what was trimmed)" if found.trimmed else ""
    print(f"{counted(found.compared, 'entry')} compared{answers}, in {took_s:.1f} s")
