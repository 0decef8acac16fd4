"""Work of `alpo log export`: payloads as JSON lines, Parquet or an SQLite database.

Laws:

* A file appears by a rename, whole; stdout gets whole lines.
* A database replaces another file only on request: someone may be working in it.
"""

from __future__ import annotations

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
from alpo.storage.schema import sync

from .backup import store_errors
from .exits import Failed, UsageProblem
from .log_database import DatabaseWriter
from .output import counted, json_line, payload_fields, print_json, rfc3339_ms, say
from .progress import Step, slow_progress

#: Payloads in a row group, and bytes after which one is written.
_GROUP_ROWS, _GROUP_BYTES = 50_000, 32 << 20


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
