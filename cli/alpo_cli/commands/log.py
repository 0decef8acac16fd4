"""`alpo log`: read a data directory or a backup from outside, whether or not a server runs on it."""

from __future__ import annotations

from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from alpo.core.entries import INT_MAX, Kind

from ..exits import UsageProblem
from ..frame import App, Command
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
    to: Annotated[list[str] | None, typer.Option(
        "--to", metavar="LSN|FILE", show_default="the last",
        help="Payload to end with. What is no number is an SQLite database to make: --format sqlite --output FILE."
             " May be given for both.")] = None,
    format: Annotated[Format, typer.Option("--format", help="jsonl: the keys of `alpo read --json`. parquet needs"
                                                            " pip install 'alpo[export]'. sqlite: a database for"
                                                            " analysis.")] = Format.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout",
                                                help="Where to; FILE appears when it is whole.")] = None,
    json_columns: Annotated[bool, typer.Option("--json-columns", show_default=False,
                                               help="sqlite: a column for each key of payloads that are JSON"
                                                    " objects.")] = False,
    fts: Annotated[bool, typer.Option("--fts", show_default=False, help="sqlite: full-text search.")] = False,
    replace: Annotated[bool, typer.Option("--replace", show_default=False,
                                          help="sqlite: FILE may be there already.")] = False,
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
    if start is not None and stop is not None and start > stop:
        raise UsageProblem(f"--from {start} is after --to {stop}")
    if file is not None:
        if output is not None or format is Format.PARQUET:
            raise UsageProblem(f"--to {file} is --format sqlite --output {file}: give no others")
        format, output = Format.SQLITE, file
    if format is not Format.JSONL and output is None:
        raise UsageProblem(f"--format {format} needs --output FILE")
    if format is not Format.SQLITE and (json_columns or fts or replace):
        raise UsageProblem("--json-columns, --fts and --replace are of a database: give --to FILE.db")
    a_log(where)
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
    if len(numbers) > 1 or len(files) > 1:
        raise UsageProblem("--to takes one LSN and one FILE")
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
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False, help="One query.")],
    param: Annotated[list[str] | None, typer.Option("-p", "--param", metavar="NAME VALUE", show_default=False,
                                                    help="The value of :NAME in the query; may be repeated.")] = None,
    table: Annotated[bool, typer.Option("-t", "--table", show_default=False, help="A table.")] = False,
    csv: Annotated[bool, typer.Option("--csv", show_default=False, help="CSV, with a line of names.")] = False,
    nl: Annotated[bool, typer.Option("--nl", show_default=False, help="A JSON object a line, as --json.")] = False,
) -> None:
    """Ask SQL of the log: the views payloads, sessions, elections and events, or the tables themselves.

    A JSON array if nothing else is said. SQL that does more than read is refused. Of a directory on which a server may
    run, a query may take --timeout, 10 s if not said. A BLOB is shown as text where it is UTF-8.

    Examples:

        alpo log query monday.alpo 'select * from sessions' --table

        alpo log query /var/lib/alpo 'select * from log where id > :id' -p id 99
    """
    from .. import log_query as work

    a_log(where)
    wanted = [name for name, given in (("table", table), ("csv", csv), ("nl", nl or target.json)) if given]
    if len(wanted) > 1:
        raise UsageProblem("one of --table, --csv, --nl (or --json)")
    work.query(target, where, sql, param or [], wanted[0] if wanted else "json")


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
