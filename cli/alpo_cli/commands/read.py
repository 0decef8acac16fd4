"""`alpo read`: write guaranteed payloads in order, as lines, long lines, JSON, CSV, TSV, or in a format of one's own.

Laws:

* Payloads are written by whole pages, at the pace of stdout's reader; reads never end with 3.
* Output that does not go to a terminal can be read back byte for byte, or is refused: payloads that are not UTF-8 have
  a column or a key of their own, and a payload with NUL is not ended with NUL.
* On a terminal, and in names everywhere, special characters are escaped: see `output`.
"""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from string import Formatter
from types import SimpleNamespace
from typing import Annotated, Any

import typer

import alpo
from alpo import Record
from alpo.core.entries import INT_MAX

from ..exits import Failed, UsageProblem, refuse
from ..inputs import parse_since
from ..options import Target, check_client, with_target
from ..output import Sink, escape, escape_bytes, json_line, json_value, payload_fields, rfc3339
from ..running import complete_ids, connected, run

#: Columns of CSV and TSV, and names that a user's format may have.
COLUMNS = ("lsn", "id", "term", "time", "client", "serial", "payload", "payload_base64")
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}

#: Encodes records for output.
Write = Callable[[Sequence[Record]], bytes]
One = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class Style:
    """The requested format. ``format``: "json", "csv", "tsv", a format with {names}, or "": payloads."""

    format: str = ""
    long: bool = False
    null: bool = False
    raw: bool = False
    json_payload: bool = False

    @staticmethod
    def of(
        as_json: bool, raw: bool, long: bool, null: bool, format: str | None, as_csv: bool, json_payload: bool
    ) -> Style:
        """Make a style of the options. Raises UsageProblem for contradicting options, and for unknown names."""
        asked = [flag for flag, given in (
            ("--json", as_json), ("--raw", raw), ("--long", long), ("--csv", as_csv), ("--format", format is not None),
        ) if given]
        if asked == ["--json", "--format"] and format == "json":
            asked = ["--json"]
        if len(asked) > 1:
            raise UsageProblem(f"{asked[0]} does not go with {asked[1]}")
        chosen = "json" if as_json else "csv" if as_csv else format or ""
        if format is not None and format not in ("json", "csv", "tsv"):
            _parsed(format)
        if null and (raw or chosen in ("json", "csv", "tsv")):
            raise UsageProblem("--null ends payloads, --long lines and lines of a --format of your own, nothing else")
        refuse(json_payload and chosen != "json", "--json-payload goes with --json")
        return Style(chosen, long, null, raw, json_payload)

    def head(self) -> bytes:
        """Bytes before the first record."""
        return self._separated([COLUMNS]) if self.format in ("csv", "tsv") else b""

    def writer(self, terminal: bool) -> Write:
        """Function that encodes records; it raises Failed for one that the format cannot express."""
        if self.format in ("csv", "tsv"):
            return lambda records: self._separated([_row(record, terminal) for record in records])
        one = self._one(terminal)
        return lambda records: b"".join(map(one, records))

    def _separated(self, rows: Sequence[Sequence[object]]) -> bytes:
        lines: list[str] = []
        # The csv module quotes the characters of its line end: with LF alone a CR would be unquoted, and read as a line
        # end.
        sink = SimpleNamespace(write=lines.append)
        csv.writer(sink, "excel" if self.format == "csv" else "excel-tab", lineterminator="\r\n").writerows(rows)
        return "".join([line.removesuffix("\r\n") + "\n" for line in lines]).encode()

    def _one(self, terminal: bool) -> One:
        if self.raw:
            return lambda record: record.payload
        if self.format == "json":
            fields = _parsed_payload if self.json_payload else record_fields
            return lambda record: (json_line(fields(record)) + "\n").encode()
        payload: One = (lambda record: escape_bytes(record.payload).encode()) if terminal else (lambda r: r.payload)
        if self.format:
            line = _line_of(self.format, payload)
        elif self.long:
            def line(record: Record) -> bytes:
                head = f"{record.lsn}  {rfc3339(record.time)}  {escape(record.client)}  "
                return head.encode() + payload(record)
        else:
            line = payload
        return _ended_by_nul(line) if self.null else lambda record: line(record) + b"\n"


PLAIN = Style()


def _ended_by_nul(line: One) -> One:
    def ended(record: Record) -> bytes:
        text = line(record)
        if b"\0" in text:
            raise Failed(f"the payload at LSN {record.lsn} contains NUL: --null cannot tell where it ends (--json can)")
        return text + b"\0"

    return ended


def record_fields(record: Record) -> dict[str, Any]:
    """JSON keys of a record."""
    return {
        "lsn": record.lsn, "id": record.id, "term": record.term, "time": rfc3339(record.time),
        "client": record.client, "serial": record.serial, **payload_fields(record.payload),
    }


def _parsed_payload(record: Record) -> dict[str, Any]:
    """JSON keys of a record, with ``payload_json``, a value, replacing a payload that is JSON."""
    fields = record_fields(record)
    try:
        value = json_value(fields["payload"])
    except (KeyError, ValueError):
        return fields
    del fields["payload"]
    return {**fields, "payload_json": value}


def _row(record: Record, terminal: bool) -> list[object]:
    """Columns of a record: its payload is in one of the last two."""
    shown = escape if terminal else str
    found = payload_fields(record.payload)
    text, coded = shown(found.get("payload", "")), found.get("payload_base64", "")
    return [record.lsn, record.id, record.term, rfc3339(record.time), shown(record.client), record.serial, text, coded]


# -- formats of the user's own


_VALUES: dict[str, Callable[[Record], object]] = {
    "lsn": lambda r: r.lsn, "id": lambda r: r.id, "term": lambda r: r.term, "time": lambda r: rfc3339(r.time),
    "client": lambda r: escape(r.client), "serial": lambda r: r.serial,
    "payload_base64": lambda r: base64.b64encode(r.payload).decode("ascii"),
}
_NUMBERS = frozenset({"lsn", "id", "term", "serial"})


def _parsed(wanted: str) -> list[tuple[str, str | None, str]]:
    """(text, name or None, format specification) for each part. Raises UsageProblem."""
    try:
        parts = [(text, name, spec or "", conversion) for text, name, spec, conversion in Formatter().parse(wanted)]
    except ValueError as error:
        raise UsageProblem(f"--format {wanted}: {error} (a brace itself is {{{{ or }}}})") from error
    if not any(name is not None for _, name, _, _ in parts):
        raise UsageProblem(f"--format {wanted}: json, csv, tsv, or a text with {_names()}")
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in COLUMNS or conversion:
            unknown = name + (f"!{conversion}" if conversion else "")
            raise UsageProblem(f"--format: no {{{unknown}}}; there are {_names()}")
        try:
            if name == "payload" and spec:
                raise ValueError("a payload is written as it is")
            format(0 if name in _NUMBERS else "", spec)
        except ValueError as error:
            raise UsageProblem(f"--format: {{{name}:{spec}}}: {error}") from error
    return [(_unescaped(text), name, spec) for text, name, spec, _ in parts]


def _names() -> str:
    return " ".join(f"{{{name}}}" for name in COLUMNS)


def _unescaped(text: str) -> str:
    return re.sub(r"\\[tn\\]", lambda found: _ESCAPES[found[0]], text)


def _line_of(wanted: str, payload: One) -> One:
    """Function that encodes a record in a format that `_parsed` accepts."""
    steps: list[One] = []
    for text, name, spec in _parsed(wanted):
        steps.append(_constant(text))
        if name == "payload":
            steps.append(payload)
        elif name is not None:
            steps.append(_value(_VALUES[name], spec))
    return lambda record: b"".join([step(record) for step in steps])


def _constant(text: str) -> One:
    encoded = text.encode("utf-8", "surrogateescape")
    return lambda record: encoded


def _value(value: Callable[[Record], object], spec: str) -> One:
    return lambda record: format(value(record), spec).encode()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line's request; LSNs inclusive, None if not given."""

    start: int | None = None
    stop: int | None = None
    limit: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    client: str | None = None
    style: Style = PLAIN
    follow: bool = False
    local: bool = False
    server: int | None = None


def clip(
    records: Sequence[Record], stop: int | None, left: int | None, until: datetime | None = None
) -> tuple[Sequence[Record], bool]:
    """The wanted part of a page: up to LSN ``stop``, up to time ``until``, at most ``left`` records. Also True if that
    was the last."""
    done = False
    if until is not None and records and records[-1].time > until:  # times never decrease
        records = [record for record in records if record.time <= until]
        done = True
    if stop is not None and records and records[-1].lsn >= stop:
        records = [record for record in records if record.lsn <= stop]
        done = True
    if left is not None and len(records) >= left:
        records, done = records[:left], True
    return records, done


def _pages(log: alpo.Log, wanted: Wanted) -> AsyncIterator[list[Record]]:
    """The library's pages for the request."""
    options: dict[str, Any] = {
        "local": wanted.local, "server": wanted.server, "last": wanted.last, "since": wanted.since,
        "client": wanted.client,
    }
    if wanted.follow:
        return log.follow_batches(wanted.start, **options)
    return log.read_batches(wanted.start, wanted.stop, **options)


async def _write(target: Target, wanted: Wanted, sink: Sink) -> None:
    """Write the wanted records to the sink. Raises the library's errors, BrokenPipeError."""
    write, head = wanted.style.writer(sink.terminal), wanted.style.head()
    if wanted.limit == 0 or wanted.last == 0:
        return await sink.write(head)
    left = wanted.limit
    async with connected(target) as log:
        async with aclosing(_pages(log, wanted)) as stream:  # type: ignore[type-var]
            async for page in stream:
                records, done = clip(page, wanted.stop, left, wanted.until)
                left = None if left is None else left - len(records)
                await sink.write(head + write(records))
                head = b""
                if done:
                    return
    await sink.write(head)


@with_target
def read(
    target: Target,
    start: Annotated[int | None, typer.Option("--from", metavar="LSN", min=1, max=INT_MAX, show_default="the first",
                                              help="Where to begin.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="LSN", min=1, max=INT_MAX, show_default="the end now",
                                             help="Where to end, inclusive.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, max=INT_MAX, help="At most N payloads.")] = None,
    last: Annotated[int | None, typer.Option("--last", min=0, max=INT_MAX, help="The last N payloads.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME",
                                              help="From this time on: RFC 3339, or 10m, 2h, 3d ago.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME",
                                              help="Up to this time, inclusive; TIME as for --since.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME", help="Only this client's payloads.")] = None,
    long: Annotated[bool, typer.Option("--long", help="LSN, time and client before each payload.")] = False,
    format: Annotated[str | None, typer.Option("--format", metavar="json|csv|tsv|FORMAT",
                                               help="FORMAT: a text with {lsn} {id} {term} {time} {client} {serial}"
                                                    " {payload} {payload_base64}.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Short for --format csv.")] = False,
    json_payload: Annotated[bool, typer.Option("--json-payload",
                                               help="With --json: a payload that is JSON as a value, under the key"
                                                    " payload_json.")] = False,
    null: Annotated[bool, typer.Option("--null", help="End each with NUL, as append --null takes them.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Bytes as they are, no separators.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends it.")] = False,
    local: Annotated[bool, typer.Option("--local", help="A server's own copy, however far it is.")] = False,
    server: Annotated[int | None, typer.Option("--server", metavar="ID", min=1, autocompletion=complete_ids,
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
    refuse(last is not None and (start is not None or since is not None), "--last does not go with --from or --since")
    if last is not None and until is not None:
        raise UsageProblem("--last does not go with --until (it counts from the end of the log)")
    refuse(last is not None and stop is not None, "--last does not go with --to (--from and --to name a stretch)")
    refuse(start is not None and since is not None, "--from does not go with --since")
    refuse(start is not None and stop is not None and start > stop, f"--from {start} is after --to {stop}")
    refuse(server is not None and not local, "--server needs --local")
    if client is not None:
        check_client(client, "--client")
    now = datetime.now(UTC)
    first = None if since is None else parse_since(since, now)
    end = None if until is None else parse_since(until, now, "--until")
    refuse(first is not None and end is not None and first > end, f"--since {since} is after --until {until}")
    wanted = Wanted(start, stop, limit, last, first, end, client, style, follow, local, server)
    with suppress(KeyboardInterrupt) if follow else nullcontext():  # Ctrl-C is how a follow ends, and no error
        run(_write, target, wanted, Sink())
