"""The root of the `alpo` command: global options, version, and the commands that are no group."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import trio
import typer

from alpo import __version__

from . import append as appending
from . import cluster, session
from . import read as reading
from . import status as standing
from .bench import commands as bench
from .exits import UsageProblem
from .options import ConfigFile, Json, Servers, Target, Timeout, check_client, remember, with_target
from .output import stand_in_for_closed_streams
from .times import parse_since

#: What an integer on the wire can be.
LSN_MAX = 2**63 - 1

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
)
app.add_typer(session.app, name="session")
app.add_typer(cluster.app, name="cluster")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"alpo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context, servers: Servers = None, config: ConfigFile = None, timeout: Timeout = None,
    json: Json = False,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, show_default=False,
                                          help="Print the version and exit.")] = False,
) -> None:
    """Append to, read and look after an ALPO cluster: a replicated append-only log.

    Examples:

        alpo cluster start --dir /tmp/demo

        alpo --servers 127.0.0.1:7100 append hello

        alpo read --servers 127.0.0.1:7100
    """
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
) -> None:
    """Append payloads: each TEXT, or each line of stdin.

    Prints the LSN of each TEXT; with --json one line an append. Exit code 3 means that the outcome is not known: the
    message gives --client, --serial and --epoch, with which the same payloads can be sent again, at most once in the
    log. A retry of several payloads takes the serials from --serial on.

    Examples:

        alpo append hello

        alpo append --file access.log --batch 100

        tail -f access.log | alpo append --client web-1 --json

        alpo append hello --client web-1 --serial 17 --epoch 4
    """
    _check_append(bool(text), file, null, whole, batch, atomic, client, serial, epoch)
    plan = appending.Plan(
        words=tuple(text or ()), file=file, separator=b"\0" if null else b"\n", whole=whole,
        batch=0 if atomic else batch or 1, client=client, serial=serial, epoch=epoch,
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
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, max=LSN_MAX, show_default=False,
                                              help="At most N payloads.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=0, max=LSN_MAX, show_default=False,
                                             help="The last N payloads.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", show_default=False,
                                              help="From this time on: RFC 3339, or 10m, 2h, 3d ago.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", show_default=False,
                                               help="Only this client's payloads.")] = None,
    raw: Annotated[bool, typer.Option("--raw", show_default=False,
                                      help="Bytes as they are, no separators.")] = False,
    follow: Annotated[bool, typer.Option("--follow", show_default=False,
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

        alpo read --from 1000 --to 1999 --json

        alpo read --follow --since 10m | grep ERROR

        alpo read --raw > copy.bin

        alpo read --local --server 2
    """
    if last is not None and (start is not None or since is not None):
        raise UsageProblem("--last does not go with --from or --since")
    if start is not None and since is not None:
        raise UsageProblem("--from does not go with --since")
    if start is not None and stop is not None and start > stop:
        raise UsageProblem(f"--from {start} is after --to {stop}")
    if server is not None and not local:
        raise UsageProblem("--server needs --local")
    if raw and target.json:
        raise UsageProblem("--raw does not go with --json")
    if client is not None:
        check_client(client, "--client")
    moment = None if since is None else parse_since(since, datetime.now(UTC))
    reading.run(target, reading.Wanted(start, stop, limit, last, moment, client, raw, follow, local, server))


@app.command()
@with_target
def status(target: Target) -> None:
    """Show every member: who leads, how far each log goes, who is behind.

    Examples:

        alpo status

        alpo status --json | jq '.members[] | select(.state == "leader") | .address'
    """
    standing.show(target, trio.run(standing.members, target))


def main() -> None:
    """The entry point."""
    stand_in_for_closed_streams()
    app(prog_name="alpo")


if __name__ == "__main__":
    main()
