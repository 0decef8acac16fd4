"""Root of `alpo-pipeline`, and its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alpo.core.entries import INT_MAX

from ..exits import UsageProblem
from ..frame import App
from ..inputs import a_file, a_log, a_new_directory, a_new_file, ending_of
from ..options import (
    ConfigFile,
    Json,
    Servers,
    Target,
    Timeout,
    only_json,
    remember,
    version_option,
    with_servers_if_given,
    with_target,
)

app = App(name="alpo-pipeline", add_completion=True)

Master = Annotated[str, typer.Option("--master", metavar="URL", show_default="spark-submit's, else local[*]",
                                     help="Where Spark runs the tasks.")]


@app.callback(help="""
    Jobs over a log that run on Spark: on this machine, or on a cluster by --master or spark-submit.

    Examples:

        alpo-pipeline archive --servers 127.0.0.1:7100 --to /mnt/archive --trim

        alpo-pipeline audit --path /mnt/server-1 --path monday.alpo

        alpo-pipeline replay --servers 127.0.0.1:7100 --state --to states

        alpo-pipeline doctor
""")
def root(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, timeout: Timeout = None,
    json: Json = False,
    version: Annotated[bool, version_option("alpo-pipeline")] = False,
) -> None:
    """Take the options before the command."""
    remember(ctx, servers, config, timeout, json)


@app.command()
@with_target
def archive(
    target: Target,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", show_default=False,
                                     help="The archive: a directory that all executors see.")],
    range_rows: Annotated[int, typer.Option("--range-rows", metavar="N", min=1, max=INT_MAX,
                                            help="Payloads of one file.")] = 131_072,
    trim: Annotated[bool, typer.Option("--trim", show_default=False,
                                       help="Afterwards give up, in the log, what is archived and no cursor needs."
                                       )] = False,
    upto: Annotated[int | None, typer.Option("--upto", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="The last payload to archive.")] = None,
    master: Master = "",
) -> None:
    """Copy payloads to Parquet files, each range checked against a second replica; then trim, if asked.

    It goes on where the archive ends. It may be stopped anywhere and run again, also several at once; only what the
    archive's manifest lists is trimmed.

    Examples:

        alpo-pipeline archive --to /mnt/archive

        alpo-pipeline archive --to /mnt/archive --trim --json | jq .first_lsn

        alpo-pipeline archive --to /mnt/archive --upto 1000000 --range-rows 50000
    """
    from . import archive as work

    a_new_directory(to, "--to")
    work.run(target, work.Wanted(to, range_rows, trim, upto, master))


@app.command()
@with_servers_if_given
def audit(
    target: Target,
    path: Annotated[list[str] | None, typer.Option("--path", metavar="DATA_OR_BACKUP", show_default=False,
                                                   help="A data directory or a backup; may be repeated.")] = None,
    client_history: Annotated[Path | None, typer.Option("--client-history", metavar="FILE", show_default=False,
                                                        help="What `alpo append --json` printed: is it so?")] = None,
    master: Master = "",
) -> None:
    """Check all copies of a log, servers, data directories and backups: each by itself, and all against each other.

    Every difference, gap, duplicate and damage is told with its entry, its LSN and the copy that it is in. Copies are
    compared as far as each knows its entries to be guaranteed. Exit code 1 if anything is wrong.

    Examples:

        alpo-pipeline audit --servers 127.0.0.1:7100,127.0.0.1:7101

        alpo-pipeline audit --path /mnt/server-1 --path /mnt/server-2 --path monday.alpo

        alpo-pipeline audit --servers 127.0.0.1:7100 --client-history appended.jsonl --json | jq .sound
    """
    from . import audit as work

    if path is not None and len(set(path)) < len(path):
        raise UsageProblem("--path: the same copy twice")
    for copy in path or ():
        a_log(Path(copy), "--path")
    if client_history is not None:
        a_file(client_history, "--client-history")
    work.run(target, tuple(path or ()), client_history, master)


@app.command()
@only_json
def report(
    target: Target,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", show_default=False,
                                     help="The page; replaced if it exists.")],
    log: Annotated[list[str], typer.Option("--log", metavar="DATA_OR_BACKUP", show_default=False,
                                           help="A data directory or a backup; may be repeated, of one log.")],
) -> None:
    """Draw a log over time as one HTML file that needs no network.

    It shows the log's elections, its throughput, and how far readers and copies are behind. Reads files only: no
    servers, no Spark.

    Examples:

        alpo-pipeline report --log /var/lib/alpo-1 --log /var/lib/alpo-2 --to log.html

        alpo-pipeline report --log monday.alpo --to monday.html
    """
    ending_of(to, (".html", ".htm"), "--to")
    a_new_file(to, "--to", inputs=map(Path, log), replaced=True)
    from . import report as work

    work.run(target, work.Wanted(to, tuple(log)))


@app.command()
@with_servers_if_given
def replay(
    target: Target,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", show_default=False,
                                     help="Where the tables go: a directory that all executors see.")],
    state: Annotated[bool, typer.Option("--state", show_default=False,
                                        help="Fold the log's replicated state (alpo.state): its variables.")] = False,
    path: Annotated[str | None, typer.Option("--path", metavar="DATA_OR_BACKUP", show_default=False,
                                             help="Read a data directory or a backup, not servers.")] = None,
    archive: Annotated[str | None, typer.Option("--archive", metavar="DIR", show_default=False,
                                                help="An archive: for what the log no longer has, or alone.")] = None,
    upto: Annotated[int | None, typer.Option("--upto", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="The last payload to fold.")] = None,
) -> None:
    """Fold the log's replicated state into a table of its variables, as of any LSN.

    It folds from the beginning, or the first snapshot, in this process, without Spark. It may be stopped anywhere and
    run again, and the same replay makes the same bytes. A log is folded by functions of yours with Spark itself:
    examples/spark/fold.py.

    Examples:

        alpo-pipeline replay --state --to states

        alpo-pipeline replay --state --to states --upto 120000 --json

        alpo-pipeline replay --state --path monday.alpo --archive /mnt/archive --to states
    """
    from . import replay as work

    if not state:
        raise UsageProblem("what shall be folded? --state: the log's replicated state")
    if path is not None:
        a_log(Path(path), "--path")
    if archive is not None and not Path(archive).is_dir():
        raise UsageProblem(f"--archive {archive}: there is no such directory")
    a_new_directory(to, "--to")
    work.run(target, work.Asked(to, path, archive, upto))


@app.command()
@only_json
def doctor(target: Target) -> None:
    """Check PySpark, PyArrow, Java and the workers' Python, and say what to do.

    Exit code 1 when Spark could not work here. Needs no cluster, and starts no Spark.

    Examples:

        alpo-pipeline doctor

        alpo-pipeline doctor --json | jq 'select(.ok | not)'
    """
    from .spark import tell

    tell(target)
