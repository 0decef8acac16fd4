"""`alpo log`: read a data directory or a backup from outside, whether or not a server runs on it.

Modules `log_export` and `log_query` do the work of `export` and `query`; `named_logs` has the commands of a cluster.

Law: a damaged entry is reported in its place, and later entries follow; the command then ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alpo.core.entries import INT_MAX, DamagedEntry, Entry, Kind, parse_body, parts, serials_of, split_payloads

from ..exits import Failed, UsageProblem, refuse, store_errors
from ..frame import Command
from ..inputs import a_new_file, picked
from ..named_logs import add_to
from ..options import Target, group, without_servers
from ..output import (
    counted,
    escape,
    escape_bytes,
    json_line,
    payload_fields,
    print_json,
    rfc3339_ms,
    say,
    slow_progress,
)

if TYPE_CHECKING:
    from alpo.offline import Found, Source

app = group("The logs of a cluster; and the log in a data directory or a backup, read from outside: a server that runs"
            " on it is not disturbed.", "alpo log list", "alpo log verify /var/lib/alpo")
add_to(app)

Where = Annotated[Path, typer.Argument(metavar="DATA_OR_BACKUP",
                                       help="A data directory, its alpo.db, or a file of `alpo backup`.")]
Picked = Annotated[str, typer.Option("--log", metavar="NAME", show_default="the first",
                                     help="In a data directory: the log with this name.")]
KindName = Enum("KindName", {kind.name: kind.name for kind in Kind})  # type: ignore[misc]


class Format(StrEnum):
    """Formats that `alpo log export` writes."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    SQLITE = "sqlite"


#: File name ending -> (what it says the file is, the format; None: not written here).
_NAMED: dict[str, tuple[str, Format | None]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), ("JSON lines", Format.JSONL)),
    **dict.fromkeys((".parquet", ".pq"), ("Parquet", Format.PARQUET)),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), ("a database", Format.SQLITE)),
    ".csv": ("CSV", None), ".tsv": ("TSV", None), ".alpo": ("a backup", None),
}


@app.command()
@without_servers
def show(
    target: Target,
    where: Where,
    start: Annotated[int | None, typer.Option("--from", metavar="ID", min=1, max=INT_MAX, show_default="the first",
                                              help="Entry to begin with.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="ID", min=1, max=INT_MAX, show_default="the last",
                                             help="Entry to end with.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, max=INT_MAX, help="At most N entries.")] = None,
    kind: Annotated[list[KindName] | None, typer.Option("--kind", case_sensitive=False,
                                                        help="Only entries of this kind; may be repeated.")] = None,
    log: Picked = "",
) -> None:
    """Show entries, a line each: those of all kinds, also what is not guaranteed yet.

    Ids count entries, LSNs payloads. Damaged entries are shown as such, and end it with 1.

    Examples:
        alpo log show /var/lib/alpo --from 1000 --limit 20
        alpo log show monday.alpo --kind members --kind leader --json
    """
    from alpo.offline import open_source

    refuse(start is not None and stop is not None and start > stop, f"--from {start} is after --to {stop}")
    where = picked(where, log)
    kinds = {int(Kind[name.name]) for name in kind or ()}
    damaged = 0
    with store_errors(), open_source(where) as source:
        summary = source.summary()
        for what in summary.damage:
            say(what)
        last_id = min(stop or summary.end_id, summary.end_id)
        shown = 0
        for found in source.walk(max(start or 1, summary.first_id), last_id):
            if shown == limit:
                break
            if kinds and not found.damage and found.entry is not None and found.entry.kind not in kinds:
                continue
            shown += 1
            damaged += found.damage != ""
            print(json_line(_fields(found)) if target.json else _line(found))
        sys.stdout.flush()
    if damaged or summary.damage:
        raise Failed(f"{where} is damaged: alpo log verify")


def _fields(found: Found) -> dict[str, Any]:
    """JSON keys of an entry; for ids that cannot be read ``id`` is the first, ``last_id`` the last."""
    entry = found.entry
    if entry is None:
        return {"id": found.first_id, "last_id": found.last_id, "damage": found.damage}
    try:
        kind = Kind(entry.kind).name
        time = rfc3339_ms(entry.time_ms)
    except (ValueError, OverflowError, OSError):  # of a damaged entry
        kind, time = str(entry.kind), ""
    fields: dict[str, Any] = {
        "id": entry.id, "term": entry.term, "kind": kind, "time": time,
        "client": escape(entry.client) if found.damage else entry.client, "serial": entry.serial,
        "epoch": entry.epoch, "lsn": entry.lsn, "count": entry.count,
    }
    if found.damage:
        return {**fields, "damage": found.damage}
    if entry.kind == Kind.DATA:
        return {**fields, "payloads": _payloads(entry)}
    try:
        return {**fields, "body": parse_body(entry)}
    except DamagedEntry:
        return {**fields, "body": escape_bytes(entry.body)}


def _payloads(entry: Entry) -> list[dict[str, Any]]:
    """JSON keys of each payload; of a run (R32) with the serial of each."""
    if serials_of(entry.digest) == 1:
        return [payload_fields(payload) for payload in split_payloads(entry.count, entry.body)]
    return [
        {"serial": part.serial, **payload_fields(payload)}
        for part in parts(entry) for payload in split_payloads(part.count, part.body)
    ]


def _line(found: Found) -> str:
    """Line of text for an entry: id, term, kind, time, then its content."""
    if found.entry is None:
        ids = str(found.first_id) if found.first_id == found.last_id else f"{found.first_id} to {found.last_id}"
        return f"{ids}  DAMAGED  {escape(found.damage)}"
    fields, entry = _fields(found), found.entry
    head = f"{entry.id}  {entry.term}  {fields['kind']:7}  {fields['time']}"
    if found.damage:
        return f"{head}  DAMAGED  {escape(found.damage)}"
    if entry.kind != Kind.DATA:
        who = f"  {escape(entry.client)}" if entry.client else ""
        return f"{head}{who}  {escape_bytes(entry.body)}"
    lsns, serials = _numbers(entry.lsn, entry.count), _numbers(entry.serial, serials_of(entry.digest))
    payloads = "  ".join(escape_bytes(payload) for payload in split_payloads(entry.count, entry.body))
    return f"{head}  LSN {lsns}  {escape(entry.client)} {serials}  {payloads}"


def _numbers(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


@app.command()
@without_servers
def verify(target: Target, where: Where, log: Picked = "") -> None:
    """Check every checksum, and all that a log and the state saved beside it promise.

    Exit code 1 if anything is wrong, every damaged id told.

    Examples:
        alpo log verify /var/lib/alpo
        alpo log verify /var/lib/alpo --log billing
        alpo log verify monday.alpo --json | jq .sound
    """
    from alpo.offline import open_source, tell
    from alpo.offline import verify as audit

    where = picked(where, log)
    with slow_progress() as step, store_errors(), open_source(where) as source:
        verdict = audit(source, lambda id, end_id: step("checking", id, end_id))
    faults = len(verdict.faults) + verdict.faults_more
    if target.json:
        print_json({
            "sound": not faults, "first_id": verdict.first_id, "last_id": verdict.last_id,
            "first_lsn": verdict.first_lsn, "last_lsn": verdict.last_lsn, "entries": verdict.entries,
            "payloads": verdict.payloads, "guaranteed_id": verdict.guaranteed_id, "faults_more": verdict.faults_more,
            "faults": [{"first_id": f.first_id, "last_id": f.last_id, "what": f.what} for f in verdict.faults],
        })
    else:
        for fault in verdict.faults:
            print(escape(tell(fault)))
        if verdict.faults_more:
            print(f"and {verdict.faults_more} more")
        if not faults:
            entries, payloads = counted(verdict.entries, "entry"), counted(verdict.payloads, "payload")
            print(f"sound: {entries} ({verdict.first_id} to {verdict.last_id}), {payloads}"
                  f" (LSN {verdict.first_lsn} to {verdict.last_lsn}), guaranteed up to entry {verdict.guaranteed_id}")
    if faults:
        raise Failed(f"{where} is damaged: {counted(faults, 'fault')}")


@app.command()
@without_servers
def export(
    target: Target,
    where: Where,
    start: Annotated[int | None, typer.Option("--from", metavar="LSN", min=1, max=INT_MAX, show_default="the first",
                                              help="Payload to begin with.")] = None,
    to: Annotated[list[str] | None, typer.Option(
        "--to", metavar="LSN|FILE", show_default="the last",
        help="Payload to end with. What is no number is an SQLite database to make: --format sqlite --output FILE."
             " May be given for both.")] = None,
    format: Annotated[Format, typer.Option("--format", help="jsonl: the keys of `alpo read --json`. parquet needs"
                                                            " pip install 'alpo[export]'. sqlite: a database for"
                                                            " analysis.")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout",
                                                help="Where to; FILE appears when it is whole.")] = None,
    json_columns: Annotated[bool, typer.Option("--json-columns",
                                               help="sqlite: a column for each key of payloads that are JSON"
                                                    " objects.")] = False,
    fts: Annotated[bool, typer.Option("--fts", help="sqlite: full-text search.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="sqlite: FILE may be there already.")] = False,
    log: Picked = "",
) -> None:
    """Write payloads as JSON lines, Parquet, or an SQLite database for analysis.

    All that the file holds: payloads that were trimmed and not yet cleaned too, and those that are not known to be
    guaranteed, of which stderr tells. What is damaged is left out, told on stderr, and ends it with 1.

    Examples:
        alpo log export monday.alpo > monday.jsonl
        alpo log export /var/lib/alpo --from 1000 --format parquet --output log.parquet
        alpo log export monday.alpo --to monday.db --json-columns --fts
    """
    from .. import log_export as work

    stop, file = _ends(to or [])
    refuse(start is not None and stop is not None and start > stop, f"--from {start} is after --to {stop}")
    if file is not None:
        if output is not None or format is Format.PARQUET:
            raise UsageProblem(f"--to {file} is --format sqlite --output {file}: give no others")
        format, output = Format.SQLITE, file
    refuse(format is not Format.JSONL and output is None, f"--format {format} needs --output FILE")
    if format is not Format.SQLITE and (json_columns or fts or replace):
        raise UsageProblem("--json-columns, --fts and --replace are of a database: give --to FILE.db")
    where = picked(where, log)
    if output is not None:
        said = "--output" if file is None else "--to"
        _check_ending(output, format, said)
        a_new_file(output, said, inputs=(where,), replaced=True)
    wanted = work.Wanted(start or 1, stop or INT_MAX, format.value, output, json_columns, fts, replace)
    work.export(where, wanted, target.json)


def _check_ending(output: Path, format: Format, said: str) -> None:
    """Raise UsageProblem if the file's name says another format."""
    named = _NAMED.get(output.suffix.lower())
    if named is not None and named[1] is not format:
        hint = f": --format {named[1]}" if named[1] is not None else f"; what is written is {format}"
        raise UsageProblem(f"{said} {output}: its name says {named[0]}{hint}")


def _ends(given: list[str]) -> tuple[int | None, Path | None]:
    """Split the values of `--to`, given once or twice: (last LSN, database to make). Raises UsageProblem."""
    numbers = [word for word in given if word.isascii() and word.isdigit()]
    files = [word for word in given if word not in numbers]
    refuse(len(numbers) > 1 or len(files) > 1, "--to takes one LSN and one FILE")
    stop = int(numbers[0]) if numbers and len(numbers[0]) < 20 else INT_MAX if numbers else None
    if stop is not None and not 1 <= stop <= INT_MAX:
        raise UsageProblem(f"--to {numbers[0]}: an LSN is 1 to {INT_MAX}")
    return stop, Path(files[0]) if files else None


class _Pairs(Command):
    """Command that takes `-p NAME VALUE` for `-p NAME=VALUE`: Typer cannot read a list of pairs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined, words = [], iter(args)
        for word in words:
            joined.append(word)
            if word in ("-p", "--param"):
                name, value = next(words, None), None
                if name is not None and "=" not in name and (value := next(words, None)) is not None:
                    name = f"{name}={value}"
                joined += [] if name is None else [name]
        return super().parse_args(ctx, joined)


@app.command(cls=_Pairs)
@without_servers
def query(
    target: Target,
    where: Where,
    sql: Annotated[str, typer.Argument(help="One query.")],
    param: Annotated[list[str] | None, typer.Option("-p", "--param", metavar="NAME VALUE",
                                                    help="The value of :NAME in the query; may be repeated.")] = None,
    table: Annotated[bool, typer.Option("-t", "--table", help="A table.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, with a line of names.")] = False,
    nl: Annotated[bool, typer.Option("--nl", help="A JSON object a line, as --json.")] = False,
    log: Picked = "",
) -> None:
    """Ask SQL of the log: the views payloads, sessions, elections and events, or the tables themselves.

    A JSON array if nothing else is said. SQL that does more than read is refused. Of a directory on which a server may
    run, a query may take --timeout, 10 s if not said. A BLOB is shown as text where it is UTF-8.

    Examples:
        alpo log query monday.alpo 'select * from sessions' --table
        alpo log query /var/lib/alpo 'select * from log where id > :id' -p id 99
    """
    from .. import log_query as work

    where = picked(where, log)
    wanted = [name for name, given in (("table", table), ("csv", csv), ("nl", nl or target.json)) if given]
    refuse(len(wanted) > 1, "one of --table, --csv, --nl (or --json)")
    work.query(target, where, sql, param or [], wanted[0] if wanted else "json")


@app.command()
@without_servers
def diff(
    target: Target,
    a: Annotated[Path, typer.Argument(help="A data directory or a backup.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    log: Annotated[str, typer.Option("--log", metavar="NAME", show_default="the first",
                                     help="In data directories: the log with this name. A backup is of one log.")] = "",
) -> None:
    """Compare two logs, entry by entry, where both have any.

    Exit code 1 if they differ where both say that they are guaranteed, or one is damaged; 0 if they are equal, one goes
    further, or they differ only where one of them does not know that it is guaranteed.

    Examples:
        alpo log diff /var/lib/alpo monday.alpo
        alpo log diff /mnt/server-1 /mnt/server-2 --json
    """
    from alpo.offline import open_source

    a, b = (picked(where, "" if where.is_file() else log) for where in (a, b))
    with slow_progress() as step, store_errors(), open_source(a) as one, open_source(b) as other:
        of_a, of_b = one.summary(), other.summary()
        first_id, last_id = max(of_a.first_id, of_b.first_id), min(of_a.end_id, of_b.end_id)
        if of_a.hard is not None and of_b.hard is not None and of_a.hard.cluster != of_b.hard.cluster:
            say(f"these are of different clusters: {of_a.hard.cluster.hex()} and {of_b.hard.cluster.hex()}")
        damage = [*(f"{a}: {what}" for what in of_a.damage), *(f"{b}: {what}" for what in of_b.damage)]
        differs = None
        for left, right in _pairs(one, other, first_id, last_id):
            damage += [f"{where}: entry {found.first_id}: {found.damage}"
                       for where, found in ((a, left), (b, right)) if found.damage]
            if not left.damage and not right.damage and left.entry != right.entry:
                differs = left.first_id
                break
            step("comparing", left.last_id - first_id, last_id - first_id)
    mark = min(of_a.guaranteed_id, of_b.guaranteed_id)
    diverged = differs is not None and differs <= mark
    verdict = "damaged" if damage else "diverged" if diverged else "equal" if differs is None else "suffix"
    if target.json:
        print_json({
            "verdict": verdict, "first_difference": differs, "first_id": first_id, "last_id": last_id,
            "last_id_a": of_a.end_id, "last_id_b": of_b.end_id,
            "guaranteed_id_a": of_a.guaranteed_id, "guaranteed_id_b": of_b.guaranteed_id, "damage": damage,
        })
    else:
        for what in damage:
            print(escape(what))
        print(escape(_compared(first_id, last_id, differs, diverged, mark, bool(damage))))
        for where, summary, end_id in ((a, of_a, last_id), (b, of_b, last_id)):
            if summary.end_id > end_id:
                print(escape(f"{where} goes on to entry {summary.end_id}, guaranteed up to {summary.guaranteed_id}"))
    if diverged or damage:
        raise Failed(f"{a} and {b}: {verdict}")


def _compared(
    first_id: int, last_id: int, differs: int | None, diverged: bool, mark: int, damage: bool
) -> str:
    if differs is None:
        other = "all other entries from" if damage else "entries"
        return f"{other} {first_id} to {last_id} are equal" if last_id >= first_id else "they have no entries in common"
    if diverged:
        return f"DIVERGED: entry {differs} differs, and both say that it is guaranteed (up to {mark})"
    return f"entry {differs} differs, beyond what both know to be guaranteed (up to {mark}): one will expunge it"


def _pairs(one: Source, other: Source, first_id: int, last_id: int) -> Iterator[tuple[Found, Found]]:
    """Yield both logs' content for each id. Ranges that one cannot read are passed in both."""
    lefts, rights = one.walk(first_id, last_id), other.walk(first_id, last_id)
    left, right = next(lefts, None), next(rights, None)
    while left is not None and right is not None:
        if left.last_id >= right.first_id and right.last_id >= left.first_id:
            yield left, right
        ahead = left.last_id - right.last_id
        left = next(lefts, None) if ahead <= 0 else left
        right = next(rights, None) if ahead >= 0 else right
