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

        alpo-pipeline sweep 1..20000 --to /mnt/sweep

        alpo-pipeline replay --servers 127.0.0.1:7100 --fold orders.py:apply --key orders.py:customer --to tables

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
def sweep(
    target: Target,
    seeds: Annotated[str, typer.Argument(metavar="A..B", show_default=False, help="The seeds, both ends included.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", show_default=False,
                                     help="Where the results go: a directory that all executors see.")],
    servers: Annotated[int | None, typer.Option("--servers", metavar="N", min=1, max=9, show_default="by the seed",
                                                help="Servers of every world.")] = None,
    seconds: Annotated[int | None, typer.Option("--seconds", metavar="S", min=1, max=86_400,
                                                show_default="60, or the mutation's",
                                                help="Virtual time under faults.")] = None,
    mutation: Annotated[str, typer.Option("--mutation", metavar="NAME", show_default=False,
                                          help="Break a rule on purpose, in the worlds in which that shows.")] = "",
    range_seeds: Annotated[int, typer.Option("--range-seeds", metavar="N", min=1, max=1_000_000,
                                             help="Seeds of one task and one file.")] = 25,
    shrink_max: Annotated[int, typer.Option("--shrink-max", metavar="N", min=0, max=1_000_000,
                                            help="Failures of each check that are shrunk; 0: none.")] = 20,
    shrink_s: Annotated[float, typer.Option("--shrink-s", metavar="S", min=1, max=86_400,
                                            help="Time to shrink one failure in; then the best so far.")] = 60,
    master: Master = "",
) -> None:
    """Run the simulator's worlds of many seeds; shrink what fails, and save it with the command that repeats it.

    It goes on where it was stopped, also by a kill: started again with the same seeds, options and directory it does
    what is missing. Another wish takes another directory, and so do other versions of the code.

    Exit code 1 if a seed failed. With --mutation seeds are to fail: exit code 1 if none did so by a check that is
    meant to see it (alpo-sim mutants lists them).

    Examples:

        alpo-pipeline sweep 1..20000 --to /mnt/sweep

        alpo-pipeline sweep 1..500 --servers 5 --seconds 20 --to five --json | jq .failed

        alpo-pipeline sweep 1..10 --mutation M3 --to caught && alpo-sim replay caught/failures/*.txt
    """
    from alpo_sim import sweep as work

    first, last = work.parse_seeds(seeds)
    a_new_directory(to, "--to")
    work.run(target, work.Wanted(
        first, last, to, servers, seconds, mutation, range_seeds, shrink_max, shrink_s, master,
    ))


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
    fold: Annotated[str | None, typer.Option("--fold", metavar="FILE.py:NAME", show_default=False,
                                             help="The function (state, record) -> state; also MODULE:NAME.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="FILE.py:NAME", show_default=False,
                                            help="The function record -> key, None, or a list of keys. Without it the"
                                                 " whole log is folded into one state.")] = None,
    state: Annotated[bool, typer.Option("--state", show_default=False,
                                        help="Fold the log's replicated state (alpo.state) instead: its variables.")
                     ] = False,
    path: Annotated[str | None, typer.Option("--path", metavar="DATA_OR_BACKUP", show_default=False,
                                             help="Read a data directory or a backup, not servers.")] = None,
    archive: Annotated[str | None, typer.Option("--archive", metavar="DIR", show_default=False,
                                                help="An archive: for what the log no longer has, or alone.")] = None,
    upto: Annotated[int | None, typer.Option("--upto", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="The last payload to fold.")] = None,
    every: Annotated[int | None, typer.Option("--every", metavar="N", min=1, max=INT_MAX, show_default="1000000",
                                              help="A table at every multiple of N, too: where a replay can go on.")
                     ] = None,
    master: Master = "",
) -> None:
    """Fold the log into a table, as of any LSN: a state for every key, by functions of yours; or the variables of the
    log's replicated state.

    A key's records are folded in the order of the log, different keys side by side. It goes on from the latest table
    that is not beyond the LSN asked for; it may be stopped anywhere and run again, and the same replay makes the same
    bytes. With --state it folds from the beginning, or the first snapshot, in this process, without Spark.

    Examples:

        alpo-pipeline replay --fold orders.py:apply --key orders.py:customer --to tables

        alpo-pipeline replay --state --to states --upto 120000

        alpo-pipeline replay --fold orders.py:apply --key orders.py:customer --to tables --upto 120000

        alpo-pipeline replay --archive /mnt/archive --fold orders.py:total --to totals --every 500000 --json
    """
    from . import replay as work

    if path is not None:
        a_log(Path(path), "--path")
    if archive is not None and not Path(archive).is_dir():
        raise UsageProblem(f"--archive {archive}: there is no such directory")
    a_new_directory(to, "--to")
    asked = work.Asked(fold, key, to, path, archive, upto, every, master)
    work.check(asked, state)
    work.run(target, asked)


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
