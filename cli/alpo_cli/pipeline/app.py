"""The root of `alpo-pipeline`, and its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alpo import __version__
from alpo.core.entries import INT_MAX

from ..exits import UsageProblem
from ..options import (
    ConfigFile,
    Json,
    Servers,
    Target,
    Timeout,
    remember,
    unwrapped,
    with_servers_if_given,
    with_target,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")

Master = Annotated[str, typer.Option("--master", metavar="URL", show_default="spark-submit's, else local[*]",
                                     help="Where Spark runs the tasks.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"alpo-pipeline {__version__}")
        raise typer.Exit


@app.callback(help=unwrapped("""
    Jobs over a log that run on Spark: on this machine, or on a cluster by --master or spark-submit.

    Examples:

        alpo-pipeline archive --servers 127.0.0.1:7100 --to /mnt/archive --trim

        alpo-pipeline audit --path /mnt/server-1 --path monday.alpo
"""))
def root(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, timeout: Timeout = None,
    json: Json = False,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, show_default=False,
                                          help="Print the version and exit.")] = False,
) -> None:
    """What stands before the command."""
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
    work.run(target, tuple(path or ()), client_history, master)
