"""Database that `alpo log export --to FILE.db` writes: payloads in SQLite, for analysis.

Laws:

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
from pathlib import Path
from typing import Any

from alpo.core.entries import Entry
from alpo.storage.connections import as_database

from .exits import Failed
from .output import rfc3339_ms, say
from .progress import Step

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
