"""Work of `alpo-pipeline archive`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpo.tls import tls_given

from ..options import Target
from ..output import print_json, table
from ..progress import slow_progress
from . import spark


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options. ``to``: directory of the archive."""

    to: Path
    range_rows: int
    trim: bool
    upto: int | None
    master: str


def run(target: Target, wanted: Wanted) -> None:
    """Archive, trim if asked, and print the result. Raises UsageProblem, `SourceError`."""
    spark.require()
    from alpo.spark.jobs.archiving import archive, trim_archived
    from alpo.spark.live import ServerOrigin

    began_s = time.monotonic()
    origin = ServerOrigin(
        target.servers, timeout_s=max(target.timeout_s, spark.TIMEOUT_S_LEAST), tls=tls_given(os.environ)
    )
    with slow_progress() as step, spark.runner("alpo-pipeline archive", wanted.master) as runner:
        done = archive(
            origin, wanted.to, wanted.range_rows, wanted.upto, runner,
            lambda done, all: step("archiving", done, all),
        )
    took_s = time.monotonic() - began_s
    fields: dict[str, Any] = {
        "archive": str(wanted.to), "cluster": done.cluster, "archived_first_lsn": done.first_lsn,
        "archived_last_lsn": done.last_lsn, "ranges": done.ranges, "ranges_found": done.found, "payloads": done.rows,
        "bytes": done.bytes, "file_bytes": done.file_bytes, "checked": done.checked, "seconds": round(took_s, 3),
    }
    if wanted.trim:
        trimmed = trim_archived(target.servers, wanted.to, origin.timeout_s)
        fields |= {"first_lsn": trimmed.first_lsn, "held_by": trimmed.held_by or None}
    if target.json:
        print_json(fields)
    else:
        _print(wanted, fields)


def _print(wanted: Wanted, fields: dict[str, Any]) -> None:
    first_lsn, last_lsn = fields["archived_first_lsn"], fields["archived_last_lsn"]
    rows = [
        ["the archive holds", f"LSN {first_lsn} to {last_lsn}" if last_lsn >= first_lsn else "nothing"],
        ["new files", f"{fields['ranges']}, {fields['ranges_found']} of them found written"],
        ["new payloads", f"{fields['payloads']:,}"],
        ["their bytes", f"{fields['bytes']:,}, in files of {fields['file_bytes']:,}"],
        ["checked against a second replica", "yes" if fields["checked"] else "no: there is none"],
        ["took", f"{fields['seconds']:.1f} s"],
    ]
    if wanted.trim:
        held_by = fields["held_by"]
        why = f" (cursor {held_by} needs it)" if held_by else ""
        rows.append(["the log now begins at", f"LSN {fields['first_lsn']}{why}"])
    table(f"archive {wanted.to}", ["", ""], rows)
