"""Command line of `alpo read`; module `read` of the parent package does the work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from alpo.core.entries import INT_MAX

from ..completing import complete_ids
from ..exits import UsageProblem
from ..inputs import parse_since
from ..options import Target, check_client, with_target


@with_target
def read(
    target: Target,
    start: Annotated[int | None, typer.Option("--from", metavar="LSN", min=1, max=INT_MAX, show_default="the first",
                                              help="Where to begin.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="Where to end, inclusive.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=0, max=INT_MAX, show_default=False,
                                              help="At most N payloads.")] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=0, max=INT_MAX, show_default=False,
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
                                               autocompletion=complete_ids,
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
    from ..read import Style

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
    from .. import read as work

    work.run(target, work.Wanted(start, stop, limit, last, first, end, client, style, follow, local, server))
