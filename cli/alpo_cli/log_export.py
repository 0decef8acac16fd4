"""Work of `alpo log export`: payloads as JSON lines, Parquet or, for analysis, an SQLite database.

Laws:

* A file appears by a rename, whole; stdout gets whole lines.
* A database replaces another file only on request: someone may be working in it.
* It is simple: two tables, a foreign key, indexes. It has no triggers and no WAL, nothing that a reader must know.
* A payload is stored unchanged: as text if it is UTF-8 without NUL, else as a BLOB. Columns made from it are
  additional.
* A JSON value is stored unchanged; a column of several types is TEXT.
* Memory is bounded by `_ROWS` payloads or `_BYTES` of them, and by `KEYS_MAX` columns.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from alpo.core.entries import Entry, Kind, parts, split_payloads
from alpo.offline import Fault, open_source, tell
from alpo.storage.backup import PARTIAL_SUFFIX
from alpo.storage.connections import as_database
from alpo.storage.schema import sync

from .exits import Failed, UsageProblem, store_errors
from .output import Step, counted, json_line, payload_fields, print_json, rfc3339_ms, say, slow_progress

#: Payloads in a row group, and bytes after which one is written.
_GROUP_ROWS, _GROUP_BYTES = 50_000, 32 << 20
#: Most keys that get a column, and characters of one.
KEYS_MAX, KEY_CHARS_MAX = 200, 100
_ROWS, _BYTES = 10_000, 8 << 20
#: Keys without a column that are named in the message, and characters of one.
_KEYS_TOLD, _KEY_CHARS_TOLD = 3, 40
_PAYLOADS = {"lsn": int, "id": int, "term": int, "time": str, "client": str, "serial": int, "payload": str}
_CLIENTS = {
    "client": str, "payloads": int, "first_lsn": int, "last_lsn": int, "first_time": str, "last_time": str,
    "last_serial": int,
}
_FILL_CLIENTS = (
    "INSERT INTO clients SELECT client, count(*), min(lsn), max(lsn), min(time), max(time), max(serial)"
    " FROM payloads GROUP BY client"
)
#: Types from narrow to wide: each can hold, with SQLite's conversion, the values of those before it.
_TYPES = (int, float, str)
_INT_END = 1 << 63


class Writer(Protocol):
    """Output format: takes payloads one by one, each with its entry, serial and LSN, and is complete after `close`."""

    def write(self, entry: Entry, serial: int, lsn: int, payload: bytes) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """Writer of JSON lines with the keys of `alpo read --json`."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, entry: Entry, serial: int, lsn: int, payload: bytes) -> None:
        fields = {
            "lsn": lsn, "id": entry.id, "term": entry.term, "time": rfc3339_ms(entry.time_ms), "client": entry.client,
            "serial": serial, **payload_fields(payload),
        }
        self._stream.write(json_line(fields) + "\n")

    def close(self) -> None:
        self._stream.flush()


class _Parquet:
    """Writer of Parquet with the same columns; ``time`` is a timestamp in UTC, ``payload`` binary."""

    def __init__(self, file: Path) -> None:
        try:
            pyarrow: Any = import_module("pyarrow")
            parquet: Any = import_module("pyarrow.parquet")
        except ImportError as error:
            raise UsageProblem("--format parquet needs pyarrow: pip install 'alpo[export]'") from error
        self._arrow = pyarrow
        self._schema = pyarrow.schema([
            ("lsn", pyarrow.int64()), ("id", pyarrow.int64()), ("term", pyarrow.int64()),
            ("time", pyarrow.timestamp("ms", tz="UTC")), ("client", pyarrow.string()), ("serial", pyarrow.int64()),
            ("payload", pyarrow.binary()),
        ])
        self._writer: Any = parquet.ParquetWriter(file, self._schema)
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def write(self, entry: Entry, serial: int, lsn: int, payload: bytes) -> None:
        self._rows.append((lsn, entry.id, entry.term, entry.time_ms, entry.client, serial, payload))
        self._bytes += len(payload)
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = [self._arrow.array(column, field.type)
                       for column, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)]
            self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class DatabaseWriter:
    """Writer of the database, which is whole after `close`. Raises Failed for what SQLite refuses."""

    def __init__(self, file: Path, json_columns: bool, fts: bool, step: Step) -> None:
        file.unlink(missing_ok=True)
        self._connection = sqlite3.connect(file, isolation_level=None)
        self._db = as_database(self._connection)
        self._json_columns, self._fts, self._step = json_columns, fts, step
        self._rows: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._bytes = 0
        self._names: dict[str, str] = {}  # key -> column
        self._types: dict[str, type] = {}  # column -> type, for columns made from keys
        self._keys_left_out: list[str] = []  # the first few
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):  # an unfinished database is never used
            self._db.execute(f"PRAGMA {pragma}")
        self._db.begin()
        self._db.table("clients").create(_CLIENTS, pk="client", not_null=set(_CLIENTS))
        self._payloads = self._db.table("payloads").create(
            _PAYLOADS, pk="lsn", not_null=set(_PAYLOADS) - {"lsn"}, foreign_keys=[("client", "clients", "client")],
        )
        if fts:
            self._index_words()

    def _index_words(self) -> None:
        try:
            self._payloads.enable_fts(["payload"])
        except sqlite3.OperationalError as error:
            self.give_up()
            raise Failed(f"--fts: this Python's SQLite has no full-text search: {error}") from error

    def write(self, entry: Entry, serial: int, lsn: int, payload: bytes) -> None:
        """Add a payload."""
        text = _text(payload)
        self._rows.append((
            (lsn, entry.id, entry.term, rfc3339_ms(entry.time_ms), entry.client, serial,
             payload if text is None else text),
            self._columns_of(text) if self._json_columns and text is not None else {},
        ))
        self._bytes += len(payload)
        if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
            self._flush()

    def _columns_of(self, text: str) -> dict[str, Any]:
        """Values by column from a payload that is a JSON object; {} for anything else."""
        try:
            found = json.loads(text) if text.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            found = None
        if type(found) is not dict:
            return {}
        pairs = ((self._column(key), _value(value)) for key, value in found.items())
        return {column: value for column, value in pairs if column and value is not None}

    def _column(self, key: str) -> str:
        """The column for ``key``, with "_" appended while another has that name; "" if the key gets none."""
        if key in self._names:
            return self._names[key]
        if len(self._names) == KEYS_MAX or not 0 < len(key) <= KEY_CHARS_MAX or not key.isprintable():
            if len(self._keys_left_out) <= _KEYS_TOLD and key not in self._keys_left_out:
                self._keys_left_out.append(key)
            return ""
        taken = {name.lower() for name in (*_PAYLOADS, *self._names.values())}
        column = key
        while column.lower() in taken:
            column += "_"
        self._names[key] = column
        return column

    def _flush(self) -> None:
        self._make_columns()
        columns = [*_PAYLOADS, *self._types]
        self._payloads.insert_all([columns, *([*row, *map(made.get, self._types)] for row, made in self._rows)])
        self._rows, self._bytes = [], 0

    def _make_columns(self) -> None:
        """Add the columns that the rows need, and widen types."""
        wanted = dict(self._types)
        for _, made in self._rows:
            for column, value in made.items():
                wanted[column] = max(wanted.get(column, int), type(value), key=_TYPES.index)
        for column in list(wanted)[len(self._types):]:  # the new ones
            self._payloads.add_column(column, wanted[column])
        if wider := {column: wanted[column] for column in self._types if wanted[column] is not self._types[column]}:
            self._payloads.transform(types=wider)
        self._types = wanted

    def close(self) -> None:
        """Write the rest, then indexes and the clients' table."""
        self._flush()
        self._step("indexing", 0, 0)
        for columns in (["client", "serial"], ["time"], ["id"]):
            self._payloads.create_index(columns)
        self._db.execute(_FILL_CLIENTS)
        if self._fts:
            self._payloads.rebuild_fts()
        self._db.commit()
        self._db.close()
        if self._keys_left_out:
            told = ", ".join(json.dumps(_short(key), ensure_ascii=False) for key in self._keys_left_out[:_KEYS_TOLD])
            more = " and more" if len(self._keys_left_out) > _KEYS_TOLD else ""
            say(f"some keys have no column: {told}{more}; they are those after the first {KEYS_MAX}, and what"
                f" is no name of one (1 to {KEY_CHARS_MAX} printable characters)")

    def give_up(self) -> None:
        """Close the file after an error: it is useless."""
        self._db.close()


def _short(key: str) -> str:
    return key if len(key) <= _KEY_CHARS_TOLD else key[:_KEY_CHARS_TOLD] + "…"


def _text(payload: bytes) -> str | None:
    """The payload as text; None if SQL would not show it whole as text."""
    try:
        return None if b"\0" in payload else payload.decode()
    except UnicodeDecodeError:
        return None


def _value(value: Any) -> int | float | str | None:
    """A JSON value for SQLite; nested values as JSON text."""
    if type(value) is bool or (type(value) is int and -_INT_END <= value < _INT_END):
        return int(value)
    if value is None or (type(value) is float and not math.isfinite(value)):
        return None
    if type(value) is float:
        return value
    text = value if type(value) is str else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


class Wanted(NamedTuple):
    """The command line's request: payloads ``start`` … ``stop`` in ``format`` to ``output`` (None: stdout). The other
    fields are for databases."""

    start: int
    stop: int
    format: str
    output: Path | None
    json_columns: bool = False
    fts: bool = False
    replace: bool = False


def export(where: Path, wanted: Wanted, as_json: bool) -> None:
    """Export; ``as_json``: what was written to a file is told on stdout. Raises UsageProblem if a database exists
    already; Failed, after all sound payloads were written, if anything is damaged."""
    start, stop = wanted.start, wanted.stop
    faults: list[Fault] = []
    written = beyond = 0
    with slow_progress() as step, store_errors(), open_source(where) as source:
        summary = source.summary()
        faults += [Fault(0, 0, what) for what in summary.damage]
        with _opened(wanted, step) as writer:
            for found in source.walk(summary.first_id, summary.end_id):
                entry = found.entry
                if entry is None or found.damage:
                    faults.append(Fault(found.first_id, found.last_id, found.damage))
                    continue
                step("exporting", entry.id, summary.end_id)
                if entry.kind != Kind.DATA or entry.lsn > stop or entry.lsn + entry.count <= start:
                    continue
                for part in parts(entry):
                    for lsn, payload in enumerate(split_payloads(part.count, part.body), part.lsn):
                        if start <= lsn <= stop:
                            writer.write(entry, part.serial, lsn, payload)
                            written += 1
                            beyond += entry.id > summary.guaranteed_id
    if beyond:
        known = f"not known here to be guaranteed (beyond entry {summary.guaranteed_id})"
        say(f"at the end {counted(beyond, 'payload')} {known}")
    if as_json and wanted.output is not None:
        print_json({"file": str(wanted.output), "payloads": written, "not_guaranteed": beyond, "damaged": len(faults)})
    for fault in faults:
        say(tell(fault))
    if faults:
        raise Failed(f"{where} is damaged: what could be read was exported")


@contextmanager
def _opened(wanted: Wanted, step: Step) -> Iterator[Writer]:
    """Open the output's writer; a file gets its name if the block ends without error."""
    output = wanted.output
    if output is None:
        writer: Writer = _Lines(sys.stdout)
        yield writer
        writer.close()
        return
    partial = output.with_name(output.name + PARTIAL_SUFFIX)
    if wanted.format == "sqlite":
        _require_free(output, wanted.replace)
    try:
        with ExitStack() as stack:
            if wanted.format == "sqlite":
                writer = DatabaseWriter(partial, wanted.json_columns, wanted.fts, step)
                stack.callback(writer.give_up)
            elif wanted.format == "parquet":
                writer = _Parquet(partial)
            else:
                writer = _Lines(stack.enter_context(partial.open("w", encoding="utf-8", errors="surrogateescape")))
            yield writer
            writer.close()
        if wanted.format == "sqlite":
            _require_free(output, wanted.replace)
        sync(partial)
        partial.replace(output)
        sync(output.absolute().parent)
    except sqlite3.Error as error:
        raise Failed(f"{partial}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _require_free(output: Path, replace: bool) -> None:
    """Raise UsageProblem if a database exists that may not be replaced."""
    if output.exists() and not replace:
        raise UsageProblem(f"{output} is there already: --replace puts the new one in its place")
    for suffix in ("-wal", "-journal"):  # SQLite would take these for the new file's
        if (beside := output.with_name(output.name + suffix)).exists():
            raise UsageProblem(f"{beside} is there: {output} is in use, or was not closed")
