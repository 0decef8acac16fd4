"""Work of `alpo log query`: run SQL on a data directory or a backup, and print its rows.

Laws:

* SQL may only read: anything not known to be reading is refused before it runs. The file is also opened read-only.
* If a server may run on the directory, rows are stored until the query is done, within `--timeout`: no read transaction
  stays open while a pager waits, so the server's WAL can start over.
"""

from __future__ import annotations

import base64
import csv
import math
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from alpo.offline import open_source
from alpo.storage.connections import as_database

from .exits import Failed, UsageProblem, refuse, store_errors
from .options import Target
from .output import escape, escape_bytes, json_line, table

#: Most rows of `--table`, which needs all of them in memory.
TABLE_ROWS_MAX = 10_000
_PUT_BY_BYTES = 8 << 20
_STEPS_A_LOOK = 20_000

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
#: Pragmas that only report: without a value; with the name of a table or an index.
_TELLING = {
    "application_id", "auto_vacuum", "collation_list", "compile_options", "database_list", "encoding", "freelist_count",
    "function_list", "journal_mode", "module_list", "page_count", "page_size", "pragma_list", "schema_version",
    "table_list", "user_version", "integrity_check", "quick_check",
}
_TELLING_OF = {
    "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check", "quick_check", "table_info",
    "table_list", "table_xinfo",
}
#: Names of other actions, for messages; any action not listed writes.
_REFUSED = {
    sqlite3.SQLITE_ATTACH: "ATTACH", sqlite3.SQLITE_DETACH: "DETACH", sqlite3.SQLITE_TRANSACTION: "a transaction",
    sqlite3.SQLITE_SAVEPOINT: "a savepoint", sqlite3.SQLITE_PRAGMA: "PRAGMA", sqlite3.SQLITE_FUNCTION: "that function",
}
#: SQLite errors of the given SQL, not of the file.
_OF_SQL = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_MISMATCH,
}
#: Writes rows with these columns to a stream.
Shape = Callable[[IO[str], list[str], Iterable[tuple[Any, ...]]], None]


def query(target: Target, where: Path, sql: str, params: list[str], shape: str) -> None:
    """Run the query; ``shape``: table, csv, nl or json.

    Raises UsageProblem for SQL that is wrong or would write, Failed for a file that cannot be read.
    """
    given = dict(map(_parameter, params))
    cells: list[list[str]] = []
    with store_errors(), open_source(where) as source, _out(source.live) as out:
        with source.snapshot() as db, _only_reading(db, target.timeout_s if source.live else math.inf):
            columns, rows = _rows(db, sql, given)
            if shape == "table":
                cells = _cells(rows)
            else:
                _SHAPES[shape](out, columns, rows)
    if shape == "table":
        table("", columns, cells)


@contextmanager
def _out(put_by: bool) -> Iterator[IO[str]]:
    """stdout; or, if ``put_by``, a temporary file whose content is copied to stdout at the end."""
    if not put_by:
        yield sys.stdout
        return
    with tempfile.SpooledTemporaryFile(_PUT_BY_BYTES, "w+", encoding="utf-8", newline="") as out:
        yield out
        out.seek(0)
        shutil.copyfileobj(out, sys.stdout)


def _parameter(text: str) -> tuple[str, int | str]:
    """Parse NAME=VALUE; a value written like an SQLite integer is one. Raises UsageProblem."""
    name, equals, value = text.partition("=")
    refuse(not name or not equals, "-p takes a NAME and its VALUE: -p client web-1, for :client in the SQL")
    try:
        number = int(value)
    except ValueError:
        return name, value
    return name, number if str(number) == value and -1 << 63 <= number < 1 << 63 else value


class _Given(dict[str, Any]):
    """Parameters, recording which ones SQLite has asked for."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)


def _rows(db: sqlite3.Connection, sql: str, params: dict[str, Any]) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    from sqlite_utils.utils import dedupe_keys

    given = _Given(params)
    found = as_database(db).execute(sql, given)
    if unused := [name for name in params if name not in given.used]:
        raise UsageProblem(f"-p {unused[0]}: there is no :{unused[0]} in the SQL")
    refuse(found.description is None, "this is no query: it gives no rows")
    return list(dedupe_keys(column[0] for column in found.description)), iter(found)


@contextmanager
def _only_reading(db: sqlite3.Connection, within_s: float) -> Iterator[None]:
    """Restrict a connection to reading, for at most ``within_s``; also lets Ctrl-C end a query that yields no rows."""
    stop_s = time.monotonic() + within_s
    refused: list[str] = []

    def may(action: int, first: str | None, second: str | None, *_: object) -> int:
        if action in _READING and second != "load_extension":
            return sqlite3.SQLITE_OK
        # table-valued functions register like this; SQLite itself rejects real updates
        if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
            return sqlite3.SQLITE_OK  # known; SQLite itself lets nobody else
        pragma = (first or "").lower()
        if action == sqlite3.SQLITE_PRAGMA and pragma in (_TELLING if second is None else _TELLING_OF):
            return sqlite3.SQLITE_OK
        name = _REFUSED.get(action, "SQL that writes")
        refused.append(f"{name} {pragma}" if action == sqlite3.SQLITE_PRAGMA else name)
        return sqlite3.SQLITE_DENY

    db.set_authorizer(may)
    db.set_progress_handler(lambda: time.monotonic() > stop_s, _STEPS_A_LOOK)
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_INTERRUPT and time.monotonic() > stop_s:
            raise Failed(
                f"the query took longer than {within_s:g} s, and a server may run on this directory: allow more with"
                " --timeout, or query a backup"
            ) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if refused:
            raise UsageProblem(f"alpo log query only reads: {refused[0]} is refused") from error
        of_sql = isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning)
        if of_sql or (code is not None and code & 0xFF in _OF_SQL):
            raise UsageProblem(f"SQL: {error}") from error
        raise
    finally:
        db.set_progress_handler(None, 0)
        db.set_authorizer(None)


def _text(value: Any) -> Any:
    """A value with bytes decoded if they are UTF-8. Text that is not valid stays bytes."""
    if type(value) is str and not value.isascii():
        value = value.encode("utf-8", "surrogateescape")
    if type(value) is not bytes:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _json(columns: list[str], row: tuple[Any, ...]) -> str:
    return json_line({column: _plain(value) for column, value in zip(columns, row, strict=True)})


def _plain(value: Any) -> Any:
    value = _text(value)
    if type(value) is bytes:
        return {"$base64": True, "encoded": base64.b64encode(value).decode()}
    return None if type(value) is float and not math.isfinite(value) else value


def _as_array(out: IO[str], columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    before = "["
    for row in rows:
        out.write(before + _json(columns, row))
        before = ",\n "
    out.write("[]\n" if before == "[" else "]\n")


def _as_lines(out: IO[str], columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        out.write(_json(columns, row) + "\n")


def _as_csv(out: IO[str], columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    def cell(value: Any) -> Any:
        value = _text(value)
        if type(value) is bytes:
            return base64.b64encode(value).decode()
        return escape(value) if type(value) is str and sys.stdout.isatty() else value

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(cell, row) for row in rows)


def _cells(rows: Iterable[tuple[Any, ...]]) -> list[list[str]]:
    """Cells of a table. Raises UsageProblem if there are too many rows."""
    cells: list[list[str]] = []
    for row in rows:
        if len(cells) == TABLE_ROWS_MAX:
            raise UsageProblem(f"more than {TABLE_ROWS_MAX:,} rows are no table: LIMIT them, or take --csv or --nl")
        cells.append([_cell(_text(value)) for value in row])
    return cells


def _cell(value: Any) -> str:
    return "" if value is None else escape_bytes(value) if type(value) is bytes else str(value)


_SHAPES: dict[str, Shape] = {"json": _as_array, "nl": _as_lines, "csv": _as_csv}
