"""The root of the `alpo` command: global options, version, and the commands that are no group."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import trio
import typer

from . import append as appending
from . import cluster, compact, cursor, doctor, explain, importing, log, member, offline, session, settings, spark
from . import outcome as outcomes
from . import read as reading
from . import status as standing
from . import trim as trimming
from .bench import commands as bench
from .exits import UsageProblem
from .options import (
    ConfigFile,
    Json,
    Servers,
    Target,
    Timeout,
    check_client,
    remember,
    unwrapped,
    version_option,
    with_target,
)
from .record_format import Style
from .times import parse_since

#: What an integer on the wire can be.
LSN_MAX = 2**63 - 1

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
)
app.add_typer(session.app, name="session")
app.add_typer(cursor.app, name="cursor")
app.add_typer(settings.app, name="settings")
app.add_typer(cluster.app, name="cluster")
app.add_typer(member.app, name="member")
app.add_typer(bench.app, name="bench")
app.add_typer(log.app, name="log")
app.add_typer(spark.app, name="spark")
app.command()(offline.backup)
app.command()(offline.restore)
app.command()(offline.recover)


@app.callback(help=unwrapped("""
    Append to, read and look after an ALPO cluster: a replicated append-only log.

    Examples:

        alpo cluster start --dir /tmp/demo

        alpo --servers 127.0.0.1:7100 append hello

        alpo read --servers 127.0.0.1:7100
"""))
def root(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, timeout: Timeout = None,
    json: Json = False,
    version: Annotated[bool, version_option("alpo")] = False,
) -> None:
    """What stands before the command."""
    remember(ctx, servers, config, timeout, json)


@app.command()
@with_target
def append(
    target: Target,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False,
                                                     help="Payloads. Without any: lines of stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", show_default=False,
                                              help="Read from FILE instead of stdin.")] = None,
    null: Annotated[bool, typer.Option("--null", show_default=False,
                                       help="Payloads end with NUL, not with a line end.")] = False,
    whole: Annotated[bool, typer.Option("--whole", show_default=False,
                                        help="All of the input is one payload.")] = False,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, show_default=False,
                                              help="Atomic batches of N payloads.")] = None,
    atomic: Annotated[bool, typer.Option("--atomic", show_default=False,
                                         help="Everything given is one atomic batch.")] = False,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Append as this named client.")] = None,
    serial: Annotated[int | None, typer.Option("--serial", metavar="N", min=1, max=LSN_MAX, show_default=False,
                                               help="Retry what was sent under this serial (needs --client).")] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", metavar="E", min=0, max=LSN_MAX, show_default=False,
                                              help="The epoch it was sent under (needs --serial).")] = None,
    wait: Annotated[Literal["everyone"] | None, typer.Option("--wait", metavar="everyone", show_default=False,
                                                             help="Wait until every member has it.")] = None,
) -> None:
    """Append payloads: each TEXT, or each line of stdin.

    Prints the LSN of each TEXT; with --json one line an append. Exit code 3 means that the outcome is not known: the
    message gives --client, --serial and --epoch, with which the same payloads can be sent again, at most once in the
    log. A retry of several payloads takes the serials from --serial on.

    An append that is answered is on a majority's disks. With --wait everyone the command ends once all that it has
    appended is on every member's; if that takes longer than --timeout, it says who lacks it and ends with 1.

    Examples:

        alpo append hello

        alpo append --file access.log --batch 100

        tail -f access.log | alpo append --client web-1 --json

        alpo append hello --client web-1 --serial 17 --epoch 4

        alpo append "maintenance begins" --wait everyone
    """
    _check_append(bool(text), file, null, whole, batch, atomic, client, serial, epoch)
    plan = appending.Plan(
        words=tuple(text or ()), file=file, separator=b"\0" if null else b"\n", whole=whole,
        batch=0 if atomic else batch or 1, client=client, serial=serial, epoch=epoch,
        everyone=wait is not None,
    )
    trio.run(appending.append_by_hand if serial is not None else appending.append_all, target, plan)


def _check_append(
    words: bool, file: Path | None, null: bool, whole: bool, batch: int | None, atomic: bool,
    client: str | None, serial: int | None, epoch: int | None,
) -> None:
    if words and (file is not None or null or whole):
        raise UsageProblem("TEXT does not go with --file, --null or --whole")
    if null and whole:
        raise UsageProblem("--null does not go with --whole")
    if atomic and batch is not None:
        raise UsageProblem("--atomic does not go with --batch")
    if serial is not None and client is None:
        raise UsageProblem("--serial needs --client")
    if epoch is not None and serial is None:
        raise UsageProblem("--epoch needs --serial")
    if client is not None:
        check_client(client, "--client")
    if client is not None and client.startswith("~") and serial is None:
        raise UsageProblem("--client: names do not begin with ~ (a random client's append can only be retried)")


@app.command()
@with_target
def read(
    target: Target,
    start: Annotated[int | None, typer.Option("--from", metavar="LSN", min=1, max=LSN_MAX, show_default="the first",
                                              help="Where to begin.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="LSN", min=1, max=LSN_MAX, show_default="the end now",
                                             help="Where to end, inclusive.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=0, max=LSN_MAX, show_default=False,
                                              help="At most N payloads.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=0, max=LSN_MAX, show_default=False,
                                             help="The last N payloads.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", show_default=False,
                                              help="From this time on: RFC 3339, or 10m, 2h, 3d ago.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", show_default=False,
                                              help="Up to this time, inclusive; TIME as for --since.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Only this client's payloads.")] = None,
    long: Annotated[bool, typer.Option("--long", show_default=False,
                                       help="LSN, time and client before each payload.")] = False,
    format: Annotated[str | None, typer.Option("--format", metavar="json|csv|tsv|FORMAT", show_default=False,
                                               help="FORMAT: a text with {lsn} {id} {term} {time} {client} {serial}"
                                                    " {payload} {payload_base64}.")] = None,
    csv: Annotated[bool, typer.Option("--csv", show_default=False, help="Short for --format csv.")] = False,
    json_payload: Annotated[bool, typer.Option("--json-payload", show_default=False,
                                               help="With --json: a payload that is JSON as a value, under the key"
                                                    " payload_json.")] = False,
    null: Annotated[bool, typer.Option("--null", show_default=False,
                                       help="End each with NUL, as append --null takes them.")] = False,
    raw: Annotated[bool, typer.Option("--raw", show_default=False,
                                      help="Bytes as they are, no separators.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", show_default=False,
                                         help="Wait for more; Ctrl-C ends it.")] = False,
    local: Annotated[bool, typer.Option("--local", show_default=False,
                                        help="A server's own copy, however far it is.")] = False,
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, show_default=False,
                                               help="Which server (needs --local).")] = None,
) -> None:
    """Read guaranteed payloads in order, one a line.

    The end is that of the log as of the call. LSNs are inclusive. On a terminal control characters are escaped.

    Examples:

        alpo read --last 10

        alpo read --long --since 2h --until 1h

        alpo read --from 1000 --to 1999 --json

        alpo read --format '{lsn}\\t{payload}' --client web-1

        alpo read --json --json-payload | jq .payload_json.user

        alpo read --follow --since 10m | grep ERROR

        alpo read --raw > copy.bin

        alpo read --local --server 2
    """
    style = Style.of(target.json, raw, long, null, format, csv, json_payload)
    if last is not None and (start is not None or since is not None):
        raise UsageProblem("--last does not go with --from or --since")
    if last is not None and until is not None:
        raise UsageProblem("--last does not go with --until (it counts from the end of the log)")
    if last is not None and stop is not None:
        raise UsageProblem("--last does not go with --to (--from and --to name a stretch)")
    if start is not None and since is not None:
        raise UsageProblem("--from does not go with --since")
    if start is not None and stop is not None and start > stop:
        raise UsageProblem(f"--from {start} is after --to {stop}")
    if server is not None and not local:
        raise UsageProblem("--server needs --local")
    if client is not None:
        check_client(client, "--client")
    now = datetime.now(UTC)
    first = None if since is None else parse_since(since, now)
    end = None if until is None else parse_since(until, now, "--until")
    if first is not None and end is not None and first > end:
        raise UsageProblem(f"--since {since} is after --until {until}")
    reading.run(target, reading.Wanted(start, stop, limit, last, first, end, client, style, follow, local, server))


@app.command("import")
@with_target
def import_(
    target: Target,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", show_default=False,
                                                help="Where the lines are; without it, or -: stdin.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Append as this named client: a later run goes on where this one"
                                                    " ended.")] = None,
    json_lines: Annotated[bool, typer.Option("--json-lines", show_default=False,
                                             help="Lines are JSON objects, as `alpo read --json` and `alpo log export`"
                                                  " write them.")] = False,
) -> None:
    """Append each line of a file, or of stdin: the fastest way in, and one that can be gone on with.

    Not atomic. With --client the payload of line k has serial k: the same command again, after a stop of whatever kind,
    skips what is in the log and appends the rest, nothing twice. A name serves for one input, and for nothing else.

    Examples:

        alpo import access.log --client access-2026-01

        alpo log export monday.alpo | alpo import --json-lines

        zcat old.gz | alpo import --client old --json
    """
    if client is not None:
        check_client(client, "--client")
        if client.startswith("~"):
            raise UsageProblem("--client: names do not begin with ~")
    named = None if file is None or str(file) == "-" else file
    trio.run(importing.import_all, target, importing.Wanted(named, client, json_lines))


@app.command()
@with_target
def outcome(
    target: Target,
    client: Annotated[str, typer.Argument(metavar="CLIENT", show_default=False,
                                          help="A name, or a random client's id.")],
    serial: Annotated[int, typer.Argument(metavar="SERIAL", min=1, max=LSN_MAX, show_default=False,
                                          help="As the message of exit 3 gives it.")],
) -> None:
    """Tell what became of an append: appended at an LSN, not appended, or too old to tell.

    It is told as of now: what is still on its way to the cluster may be appended later. To make sure that the payloads
    are in the log, once, send them again: alpo append --client --serial --epoch.

    Examples:

        alpo outcome billing-7 42

        alpo outcome '~01890a5d-ac96-774b-bcce-b302099a8057' 1 --json | jq -r .outcome
    """
    check_client(client, "CLIENT")
    outcomes.run(target, client, serial)


@app.command()
@with_target
def trim(
    target: Target,
    before: Annotated[int, typer.Option("--before", metavar="LSN", min=1, max=LSN_MAX, show_default=False,
                                        help="The first LSN to be kept.")],
    force: Annotated[bool, typer.Option("--force", show_default=False,
                                        help="Also what a cursor's reader needs: such cursors are dropped.")] = False,
) -> None:
    """Give up all payloads below an LSN, on all servers and for good.

    They cannot be read any more once this is done; the servers free their space soon after. To do it again does no
    harm. What the reader of a cursor needs is not trimmed (alpo cursor list), unless forced.

    Examples:

        alpo trim --before 1000000

        alpo trim --before "$(alpo read --since 30d --limit 1 --json | jq .lsn)"
    """
    trimming.run(target, before, force)


@app.command("compact")
@with_target
def compact_(
    target: Target,
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, show_default=False,
                                               help="This server's file.")] = None,
    every: Annotated[bool, typer.Option("--all", show_default=False,
                                        help="Every member's file, one after the other.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", show_default=False,
                                       help="Wait until all is given back.")] = True,
) -> None:
    """Give the free space in servers' data files back to the file system, while they serve.

    What trims and retention have freed is used again by what comes, and stays with the file until more than half of it
    is free. This gives all of it back now, in small steps beside the appends.

    Examples:

        alpo compact --server 2

        alpo compact --all --json

        alpo compact --all --no-wait
    """
    if every == (server is not None):
        raise UsageProblem("whose file? --server ID or --all")
    compact.run(target, compact.Wanted(server, wait))


@app.command("explain")
@with_target
def explain_(
    target: Target,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, max=1000, show_default="1",
                                             help="The last N elections.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", show_default=False,
                                              help="All elections since: RFC 3339, or 10m, 2h, 3d ago.")] = None,
    every: Annotated[bool, typer.Option("--all", show_default=False,
                                        help="Every event kept, not the story of elections.")] = False,
) -> None:
    """Tell the story of the last election: who noticed, who won, how long nobody led, what was expunged.

    It is told from the events that the servers keep, of all that answer, in time order.

    Examples:

        alpo explain

        alpo explain --since 1h

        alpo explain --all --json | jq 'select(.name == "slow_fsync")'
    """
    if every and last is not None:
        raise UsageProblem("--last does not go with --all")
    moment = None if since is None else parse_since(since, datetime.now(UTC))
    explain.run(target, explain.Wanted(last or (1 if moment is None else 1000), moment, every))


@app.command("doctor")
@with_target
def doctor_(target: Target) -> None:
    """Check disks, clocks, connections, space, versions and timers, and say what to do.

    Exit code 1 when something is bad.

    Examples:

        alpo doctor

        alpo doctor --json | jq 'select(.verdict != "ok")'
    """
    doctor.run(target)


@app.command()
@with_target
def transfer(
    target: Target,
    id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False, help="The server that shall lead.")],
) -> None:
    """Hand leadership over to a server of your choice.

    It takes a few milliseconds; appends under way are done by the old leader or sent to the new one, never lost.

    Examples:

        alpo transfer 2
    """
    member.hand_over(target, id)


@app.command()
@with_target
def status(target: Target) -> None:
    """Show every member: who leads, how far each log goes, who is behind.

    Examples:

        alpo status

        alpo status --json | jq '.members[] | select(.state == "leader") | .address'
    """
    standing.show(target, trio.run(standing.members, target))
