"""Root of `alpo-pipeline`, and its commands."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from alpo import __version__
from alpo.core.entries import INT_MAX
from alpo.tls import tls_given

from ..exits import Failed, UsageProblem, reason, refuse
from ..frame import App
from ..inputs import a_file, a_new_directory, a_new_file, ending_of, picked
from ..options import Target, only_json, root, split_servers, with_servers_if_given, with_target
from ..output import counted, escape, print_json, rfc3339, slow_progress, table
from . import spark

if TYPE_CHECKING:
    from alpo.spark.jobs.auditing import Audit
    from alpo.spark.jobs.tables import StateReplayed
    from alpo.spark.origin import Origin

app = App(name="alpo-pipeline", add_completion=True)

Master = Annotated[str, typer.Option("--master", metavar="URL", show_default="spark-submit's, else local[*]",
                                     help="Where Spark runs the tasks.")]
LogName = Annotated[str, typer.Option("--log", metavar="NAME", show_default="the first, whatever ALPO_LOG says",
                                      help="The log, of those that the servers or data directories keep.")]


#: Path, archive and log to replay.
_Places: TypeAlias = tuple[str | None, str | None, str]

app.callback(help="""
    Jobs over a log that run on Spark: on this machine, or on a cluster by --master or spark-submit.

    Examples:
        alpo-pipeline archive --servers 127.0.0.1:7100 --to /mnt/archive --trim
        alpo-pipeline audit --path /mnt/server-1 --path monday.alpo
        alpo-pipeline replay --servers 127.0.0.1:7100 --state --to states
        alpo-pipeline doctor
""")(root("alpo-pipeline", ("servers", "config", "timeout", "json")))


@app.command()
@with_target
def archive(
    target: Target,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The archive: a directory that all executors see.")],
    range_rows: Annotated[int, typer.Option("--range-rows", min=1, max=INT_MAX,
                                            help="Payloads of one file.")] = 131_072,
    trim: Annotated[bool, typer.Option("--trim",
                                       help="Afterwards give up, in the log, what is archived and no cursor needs."
                                       )] = False,
    upto: Annotated[int | None, typer.Option("--upto", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="The last payload to archive.")] = None,
    master: Master = "",
    log: LogName = "",
) -> None:
    """Copy payloads to Parquet files, each range checked against a second replica; then trim, if asked.

    It goes on where the archive ends. It may be stopped anywhere and run again, also several at once; only what the
    archive's manifest lists is trimmed.

    Examples:
        alpo-pipeline archive --to /mnt/archive
        alpo-pipeline archive --to /mnt/archive --trim --json | jq .first_lsn
        alpo-pipeline archive --to /mnt/archive --upto 1000000 --range-rows 50000
        alpo-pipeline archive --log billing --to /mnt/billing
    """
    a_new_directory(to, "--to")
    log = _checked(log)
    spark.require()
    from alpo.spark.jobs import archiving
    from alpo.spark.live import ServerOrigin

    began_s = time.monotonic()
    origin = ServerOrigin(
        target.servers, timeout_s=max(target.timeout_s, spark.TIMEOUT_S_LEAST), tls=tls_given(os.environ), log=log
    )
    with slow_progress() as step, spark.runner("alpo-pipeline archive", master) as runner:
        done = archiving.archive(
            origin, to, range_rows, upto, runner,
            lambda done, all: step("archiving", done, all),
        )
    took_s = time.monotonic() - began_s
    fields: dict[str, Any] = {
        "archive": str(to), "cluster": done.cluster, "archived_first_lsn": done.first_lsn,
        "archived_last_lsn": done.last_lsn, "ranges": done.ranges, "ranges_found": done.found, "payloads": done.rows,
        "bytes": done.bytes, "file_bytes": done.file_bytes, "checked": done.checked, "seconds": round(took_s, 3),
    }
    if trim:
        trimmed = archiving.trim_archived(target.servers, to, origin.timeout_s, log)
        fields |= {"first_lsn": trimmed.first_lsn, "held_by": trimmed.held_by or None}
    _tell_archive(target, to, fields)


def _tell_archive(target: Target, to: Path, fields: dict[str, Any]) -> None:
    first_lsn, last_lsn = fields["archived_first_lsn"], fields["archived_last_lsn"]
    rows = [
        ["the archive holds", f"LSN {first_lsn} to {last_lsn}" if last_lsn >= first_lsn else "nothing"],
        ["new files", f"{fields['ranges']}, {fields['ranges_found']} of them found written"],
        ["new payloads", f"{fields['payloads']:,}"],
        ["their bytes", f"{fields['bytes']:,}, in files of {fields['file_bytes']:,}"],
        ["checked against a second replica", "yes" if fields["checked"] else "no: there is none"],
        ["took", f"{fields['seconds']:.1f} s"],
    ]
    if "held_by" in fields:
        held_by = fields["held_by"]
        why = f" (cursor {held_by} needs it)" if held_by else ""
        rows.append(["the log now begins at", f"LSN {fields['first_lsn']}{why}"])
    target.show([fields], ["", ""], rows, f"archive {to}")


@app.command()
@with_servers_if_given
def audit(
    target: Target,
    path: Annotated[list[str] | None, typer.Option("--path", metavar="DATA_OR_BACKUP",
                                                   help="A data directory or a backup; may be repeated.")] = None,
    client_history: Annotated[Path | None, typer.Option("--client-history", metavar="FILE",
                                                        help="What `alpo append --json` printed: is it so?")] = None,
    master: Master = "",
    log: LogName = "",
) -> None:
    """Check all copies of a log, servers, data directories and backups: each by itself, and all against each other.

    Every difference, gap, duplicate and damage is told with its entry, its LSN and the copy that it is in. Copies are
    compared as far as each knows its entries to be guaranteed. Exit code 1 if anything is wrong.

    Examples:
        alpo-pipeline audit --servers 127.0.0.1:7100,127.0.0.1:7101
        alpo-pipeline audit --path /mnt/server-1 --path /mnt/server-2 --path monday.alpo
        alpo-pipeline audit --servers 127.0.0.1:7100 --client-history appended.jsonl --json | jq .sound
    """
    refuse(path is not None and len(set(path)) < len(path), "--path: the same copy twice")
    log = _checked(log)
    paths = tuple(str(picked(Path(copy), "" if Path(copy).is_file() else log, "--path")) for copy in path or ())
    if client_history is not None:
        a_file(client_history, "--client-history")
    servers = _servers_of(
        target, bool(path), "what shall be looked at? --servers HOST:PORT,… or --path DATA_OR_BACKUP, or both"
    )
    spark.require()
    from alpo.spark.jobs import auditing

    began_s = time.monotonic()
    told = () if client_history is None else tuple(auditing.read_history(client_history))
    wanted = auditing.Wanted(servers, paths, told, max(target.timeout_s, spark.TIMEOUT_S_LEAST), log)
    with slow_progress() as step, spark.runner("alpo-pipeline audit", master) as runner:
        found = auditing.audit(wanted, runner, lambda done, all: step("auditing", done, all))
    took_s = time.monotonic() - began_s
    if target.json:
        print_json(_audit_fields(found, took_s))
    else:
        _print_audit(found, client_history is not None, took_s)
    if found.faults:
        raise Failed(f"the audit found {counted(len(found.faults), 'fault')}")


def _audit_fields(found: Audit, took_s: float) -> dict[str, Any]:
    return {
        "sound": not found.faults, "cluster": found.cluster, "entries_compared": found.compared,
        "history_checked": found.told, "history_trimmed": found.trimmed, "seconds": round(took_s, 3),
        "copies": [
            {"copy": copy.name, "first_id": copy.first_id, "guaranteed_id": copy.end_id} for copy in found.copies
        ],
        "faults": [fault._asdict() for fault in found.faults],
    }


def _print_audit(found: Audit, history: bool, took_s: float) -> None:
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


@app.command()
@only_json
def report(
    target: Target,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.html", help="The page; replaced if it exists.")],
    log: Annotated[list[str], typer.Option("--log", metavar="DATA_OR_BACKUP",
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
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageProblem("this draws with Matplotlib: pip install 'alpo[report]'") from error
    from .report import of_logs, page

    sections = of_logs(log)
    text = page("ALPO report", f"Made by alpo-pipeline report {__version__}, {rfc3339(datetime.now(UTC))}.", sections)
    partial = to.with_name(f".{to.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(to)
    except OSError as error:
        raise Failed(f"{to} cannot be written: {reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
    titles = [section.title for section in sections]
    target.tell({"report": str(to), "bytes": len(text.encode()), "sections": titles}, f"{to}: {', '.join(titles)}")


@app.command()
@with_servers_if_given
def replay(
    target: Target,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR",
                                            help="With --state, where the tables go: a directory that all executors"
                                                 " see.")] = None,
    state: Annotated[bool, typer.Option("--state",
                                        help="Fold the log's replicated state (alpo.state): its variables.")] = False,
    machine: Annotated[str | None, typer.Option("--machine", metavar="MODULE:CLASS",
                                                help="Fold the log's machine (alpo.rsm), with this class of yours."
                                                )] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The machine's name.")] = None,
    code_version: Annotated[int, typer.Option("--code-version", min=1, max=65_535,
                                              help="The machine's version that the class is made for.")] = 1,
    items: Annotated[Path | None, typer.Option("--items", metavar="FILE",
                                               help="With --machine, where its items go, a JSON line each."
                                               )] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="DATA_OR_BACKUP",
                                             help="Read a data directory or a backup, not servers.")] = None,
    archive: Annotated[str | None, typer.Option("--archive", metavar="DIR",
                                                help="An archive: for what the log no longer has, or alone.")] = None,
    upto: Annotated[int | None, typer.Option("--upto", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="The last payload to fold.")] = None,
    log: LogName = "",
) -> None:
    """Fold what is replicated in the log, as of any LSN: its state into a table of the variables, or a machine of your
    own into its items and their digest.

    It folds from the beginning, or the first snapshot, in this process, without Spark. It may be stopped anywhere and
    run again, and the same replay makes the same bytes. Any other log is folded by functions of yours with Spark
    itself: examples/spark/fold.py.

    Examples:
        alpo-pipeline replay --state --to states
        alpo-pipeline replay --state --path monday.alpo --archive /mnt/archive --to states
        alpo-pipeline replay --machine ledger:Ledger --name ledger
        alpo-pipeline replay --machine ledger:Ledger --name ledger --upto 120000 --items accounts.jsonl --json
    """
    refuse(state == (machine is not None),
           "what shall be folded? --state: the log's state; or --machine MODULE:CLASS: the machine in it")
    log = _checked(log)
    if path is not None:
        path = str(picked(Path(path), log, "--path"))
    refuse(archive is not None and not Path(archive).is_dir(), f"--archive {archive}: there is no such directory")
    if machine is None:
        refuse(name or items, "--name and --items go with --machine")
        _replay_state(target, to, (path, archive, log), upto)
    else:
        refuse(to, "--to goes with --state; the items of a machine go to --items FILE")
        refuse(not name, "--machine needs the machine's --name")
        _replay_machine(target, (machine, name or "", code_version), items, (path, archive, log), upto)


def _replay_state(target: Target, to: Path | None, places: _Places, upto: int | None) -> None:
    if to is None:
        raise UsageProblem("where shall the tables go? --to DIR")
    a_new_directory(to, "--to")
    spark.require()
    began_s = time.monotonic()
    origin = _origin(target, *places)
    from alpo.spark.jobs.tables import StateWanted, replay_state

    with slow_progress() as step:
        made = replay_state(StateWanted(origin, to, upto), lambda done, all: step("replaying", done, all))
    _tell_replay(target, _replay_fields(made, time.monotonic() - began_s))


def _replay_machine(
    target: Target, named: tuple[str, str, int], items: Path | None, places: _Places, upto: int | None,
) -> None:
    if items is not None:
        a_new_file(items, "--items", inputs=[Path(each) for each in places[:2] if each], replaced=True)
    spark.require()
    from . import machine

    began_s = time.monotonic()
    made = machine.made(*named)
    origin = _origin(target, *places)
    with slow_progress() as step:
        fields = machine.replay(made, origin, upto, items, lambda done, all: step("replaying", done, all))
    took_s = time.monotonic() - began_s
    target.show([{**fields, "seconds": round(took_s, 3)}], ["", ""], machine.rows(fields, took_s), "replay a machine")


def _origin(target: Target, path: str | None, archive: str | None, log: str) -> Origin:
    """Origin to read: servers (``log`` of them) or a path, an archive, or one of the former with an archive. Raises
    UsageProblem."""
    from alpo.spark.options import ReadOptions
    from alpo.spark.reading import origin_of

    servers = _servers_of(
        target, bool(path or archive),
        "what shall be replayed? --servers HOST:PORT,… or --path DATA_OR_BACKUP, --archive DIR",
    )
    refuse(servers and path, "--servers or --path, not both: with --archive or without")
    refuse(log and not (servers or path), "--log goes with --servers or --path: an archive is of one log")
    return origin_of(ReadOptions(
        servers, path or "", archive or "", timeout_s=max(target.timeout_s, spark.TIMEOUT_S_LEAST),
        tls=tls_given(os.environ), log="" if path else log,
    ))


def _replay_fields(done: StateReplayed, took_s: float) -> dict[str, Any]:
    return {
        "table": str(done.table.directory), "cluster": done.table.cluster, "state": done.state_id,
        "lsn": done.table.lsn, "from_lsn": done.from_lsn, "tables": int(done.made),
        "payloads": done.payloads, "folded": done.folded, "keys": done.table.rows, "file_bytes": done.table.bytes,
        "seconds": round(took_s, 3),
    }


def _tell_replay(target: Target, fields: dict[str, Any]) -> None:
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
    target.show([fields], ["", ""], [*rows, ["took", f"{fields['seconds']:.1f} s"]], "replay the state")


def _checked(log: str) -> str:
    """The name of a log; "" for the first. Raises UsageProblem."""
    from alpo.client.servers import given_log

    try:
        return given_log(log)
    except ValueError as error:
        raise UsageProblem(f"--log: {error}") from error


def _servers_of(target: Target, other: bool, ask: str) -> tuple[str, ...]:
    """The servers given; those of the environment, if there is no ``other`` copy. Raises UsageProblem: ``ask``."""
    if target.servers or other:
        return target.servers
    refuse(not os.environ.get("ALPO_SERVERS"), ask)
    return split_servers(os.environ["ALPO_SERVERS"], "ALPO_SERVERS")


@app.command()
@only_json
def doctor(target: Target) -> None:
    """Check PySpark, PyArrow, Java and the workers' Python, and say what to do.

    Exit code 1 when Spark could not work here. Needs no cluster, and starts no Spark.

    Examples:
        alpo-pipeline doctor
        alpo-pipeline doctor --json | jq 'select(.ok | not)'
    """
    spark.tell(target)
