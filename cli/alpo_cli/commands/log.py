"""`alpo log`: a data directory or a backup looked at from outside, whether or not a server runs on it."""

from __future__ import annotations

from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated

import typer

from alpo.core.entries import INT_MAX, Kind

from ..exits import UsageProblem
from ..frame import App
from ..inputs import a_log, a_new_file
from ..options import Target, remember, without_servers

app = App(
    callback=remember,
    help="The log in a data directory or a backup, read from outside: a server that runs on it is not"
         " disturbed.\n\nExamples:\n\n    alpo log verify /var/lib/alpo",
)

Where = Annotated[Path, typer.Argument(metavar="DATA_OR_BACKUP", show_default=False,
                                       help="A data directory, its alpo.db, or a file of `alpo backup`.")]
KindName = Enum("KindName", {kind.name: kind.name for kind in Kind})  # type: ignore[misc]


class Format(StrEnum):
    """What `alpo log export` writes."""

    JSONL = "jsonl"
    PARQUET = "parquet"


@app.command()
@without_servers
def show(
    target: Target,
    where: Where,
    start: Annotated[int | None, typer.Option("--from", metavar="ID", min=1, max=INT_MAX, show_default="the first",
                                              help="Entry to begin with.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="ID", min=1, max=INT_MAX, show_default="the last",
                                             help="Entry to end with.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=0, max=INT_MAX, show_default=False,
                                              help="At most N entries.")] = None,
    kind: Annotated[list[KindName] | None, typer.Option("--kind", case_sensitive=False, show_default=False,
                                                        help="Only entries of this kind; may be repeated.")] = None,
) -> None:
    """Show entries, a line each: those of all kinds, also what is not guaranteed yet.

    Ids count entries, LSNs payloads. Damaged entries are shown as such, and end it with 1.

    Examples:

        alpo log show /var/lib/alpo --from 1000 --limit 20

        alpo log show monday.alpo --kind members --kind leader --json
    """
    from .. import log_work as work

    if start is not None and stop is not None and start > stop:
        raise UsageProblem(f"--from {start} is after --to {stop}")
    a_log(where)
    work.show(target, where, start, stop, limit, frozenset(int(Kind[name.name]) for name in kind or ()))


@app.command()
@without_servers
def verify(target: Target, where: Where) -> None:
    """Check every checksum, and all that a log and the state saved beside it promise.

    Exit code 1 if anything is wrong, every damaged id told.

    Examples:

        alpo log verify /var/lib/alpo

        alpo log verify monday.alpo --json | jq .sound
    """
    from .. import log_work as work

    a_log(where)
    work.verify(target, where)


@app.command()
@without_servers
def export(
    target: Target,
    where: Where,
    start: Annotated[int | None, typer.Option("--from", metavar="LSN", min=1, max=INT_MAX, show_default="the first",
                                              help="Payload to begin with.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="LSN", min=1, max=INT_MAX, show_default="the last",
                                             help="Payload to end with.")] = None,
    format: Annotated[Format, typer.Option("--format", help="jsonl: the keys of `alpo read --json`. parquet needs"
                                                            " pip install 'alpo[export]'.")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout",
                                                help="Where to; FILE appears when it is whole.")] = None,
) -> None:
    """Write payloads as JSON lines or Parquet.

    All that the file holds: payloads that were trimmed and not yet cleaned too, and those that are not known to be
    guaranteed, of which stderr tells. What is damaged is left out, told on stderr, and ends it with 1.

    Examples:

        alpo log export monday.alpo > monday.jsonl

        alpo log export /var/lib/alpo --from 1000 --format parquet --output log.parquet
    """
    from .. import log_export as work

    if start is not None and stop is not None and start > stop:
        raise UsageProblem(f"--from {start} is after --to {stop}")
    if format is Format.PARQUET and output is None:
        raise UsageProblem("--format parquet needs --output FILE")
    a_log(where)
    if output is not None:
        a_new_file(output, "--output")
    work.export(where, start or 1, stop or INT_MAX, format is Format.PARQUET, output)


@app.command()
@without_servers
def diff(
    target: Target,
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False, help="A data directory or a backup.")],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False, help="Another one.")],
) -> None:
    """Compare two logs, entry by entry, where both have any.

    Exit code 1 if they differ where both say that they are guaranteed, or one is damaged; 0 if they are equal, one goes
    further, or they differ only where one of them does not know that it is guaranteed.

    Examples:

        alpo log diff /var/lib/alpo monday.alpo

        alpo log diff /mnt/server-1 /mnt/server-2 --json
    """
    from .. import log_work as work

    for log in (a, b):
        a_log(log)
    work.diff(target, a, b)
