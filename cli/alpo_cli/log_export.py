"""What `alpo log export` does: payloads as JSON lines or Parquet.

Law: a file that was asked for appears by a rename, whole; stdout gets whole lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from alpo.core.entries import Entry, Kind, split_payloads
from alpo.storage.audit import Fault, tell
from alpo.storage.backup import PARTIAL_SUFFIX
from alpo.storage.offline import open_source
from alpo.storage.schema import sync

from .backup import store_errors
from .exits import Failed, UsageProblem
from .output import counted, json_line, payload_fields, rfc3339_ms, say
from .progress import slow_progress

#: Payloads of one row group, and bytes that are gathered before one is written.
_GROUP_ROWS, _GROUP_BYTES = 50_000, 32 << 20


class Writer(Protocol):
    def write(self, entry: Entry, lsn: int, payload: bytes) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """JSON lines, the keys of `alpo read --json`."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, entry: Entry, lsn: int, payload: bytes) -> None:
        fields = {
            "lsn": lsn, "id": entry.id, "term": entry.term, "time": rfc3339_ms(entry.time_ms), "client": entry.client,
            "serial": entry.serial, **payload_fields(payload),
        }
        self._stream.write(json_line(fields) + "\n")

    def close(self) -> None:
        self._stream.flush()


class _Parquet:
    """The same columns; ``time`` a timestamp in UTC, ``payload`` binary."""

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

    def write(self, entry: Entry, lsn: int, payload: bytes) -> None:
        self._rows.append((lsn, entry.id, entry.term, entry.time_ms, entry.client, entry.serial, payload))
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


def export(where: Path, start: int, stop: int, parquet: bool, output: Path | None) -> None:
    """Payloads ``start`` … ``stop``. Raises Failed, after all that is sound was written, if anything is damaged."""
    faults: list[Fault] = []
    beyond = 0
    with slow_progress() as step, store_errors(), open_source(where) as source:
        summary = source.summary()
        faults += [Fault(0, 0, what) for what in summary.damage]
        with _opened(output, parquet) as writer:
            for found in source.walk(summary.first_id, summary.end_id):
                entry = found.entry
                if entry is None or found.damage:
                    faults.append(Fault(found.first_id, found.last_id, found.damage))
                    continue
                step("exporting", entry.id, summary.end_id)
                if entry.kind != Kind.DATA or entry.lsn > stop or entry.lsn + entry.count <= start:
                    continue
                for lsn, payload in enumerate(split_payloads(entry.count, entry.body), entry.lsn):
                    if start <= lsn <= stop:
                        writer.write(entry, lsn, payload)
                        beyond += entry.id > summary.guaranteed_id
    if beyond:
        known = f"not known here to be guaranteed (beyond entry {summary.guaranteed_id})"
        say(f"at the end {counted(beyond, 'payload')} {known}")
    for fault in faults:
        say(tell(fault))
    if faults:
        raise Failed(f"{where} is damaged: what could be read was exported")


@contextmanager
def _opened(output: Path | None, parquet: bool) -> Iterator[Writer]:
    """Where to write; FILE is put in place on leaving well."""
    if output is None:
        writer: Writer = _Lines(sys.stdout)
        yield writer
        writer.close()
        return
    partial = output.with_name(output.name + PARTIAL_SUFFIX)
    try:
        if parquet:
            writer = _Parquet(partial)
            yield writer
            writer.close()
        else:
            with partial.open("w", encoding="utf-8", errors="surrogateescape") as stream:
                writer = _Lines(stream)
                yield writer
                writer.close()
        sync(partial)
        partial.replace(output)
        sync(output.absolute().parent)
    finally:
        partial.unlink(missing_ok=True)
