"""Logs to read: data directories with what a test wants in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from store_kit import LogBuilder, SqliteBench, base_of, table, write

from alpo.core.disk import StartState
from alpo.core.entries import Entry
from alpo.core.members import StartStatus
from alpo.spark.options import ReadOptions
from alpo.spark.origin import Origin, cut
from alpo.spark.reading import origin_of, rows_of, span_of

CLUSTER = b"c" * 16
_STARTED = StartState(StartStatus.STARTED, (), b"d" * 16, CLUSTER, [[1, "h:1", 0, "aa" * 16, 1, []]], {"window": 1024})


class FileLog:
    """A data directory. Entries are guaranteed as they come, unless ``guaranteed_id`` says otherwise."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory)
        self._bench = SqliteBench(directory)
        self._builder = LogBuilder()
        self._serial = 1
        self._bench.store.commit([write(start=_STARTED, term=1)])
        self.entries: list[Entry] = []

    def append(self, payloads: Iterable[Sequence[bytes]], guaranteed_id: int | None = None) -> None:
        """An entry for each sequence of payloads; () is one without any."""
        self._commit(
            [self._builder.data(payloads=tuple(p)) if p else self._builder.leader() for p in payloads], guaranteed_id
        )

    def append_runs(self, runs: Iterable[Sequence[tuple[bytes, ...]]]) -> None:
        """An entry for each sequence of appends, of which each is the payloads of one; () is one without any. Serials
        go up by one, from 1."""
        entries: list[Entry] = []
        for appends in runs:
            entries.append(self._builder.run(self._serial, *appends) if appends else self._builder.leader())
            self._serial += len(appends)
        self._commit(entries)

    def _commit(self, entries: list[Entry], guaranteed_id: int | None = None) -> None:
        mark = entries[-1].id if guaranteed_id is None else guaranteed_id
        runs: Any = None if not self.entries else []
        saved = table(mark, [])
        self._bench.store.commit([write(entries, runs=runs, guaranteed_id=mark, fully_replicated_id=mark, table=saved)])
        self.entries += entries

    def clean(self, id: int) -> None:
        """Clean the log up to entry ``id``."""
        mark = self.entries[-1].id
        base = base_of(self.entries[id - 1])
        self._bench.store.commit([write(base=base, term=1, guaranteed_id=mark, fully_replicated_id=mark)])

    def tamper(self, sql: str) -> None:
        self._bench.tamper(sql)

    def close(self) -> None:
        self._bench.store.close()


def options(streaming: bool = False, **given: object) -> ReadOptions:
    return ReadOptions.of({name: str(value) for name, value in given.items()}, streaming=streaming)


def read_all(given: ReadOptions, columns: Sequence[str] = ("lsn", "payload")) -> list[tuple[Any, ...]]:
    """A batch read, as Spark would do it."""
    origin = origin_of(given)
    _, first, last = span_of(given, origin)
    return read_span(origin, given, first, last, columns)


def read_span(
    origin: Origin, given: ReadOptions, first: int, last: int, columns: Sequence[str] = ("lsn", "payload")
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for part in cut(first, last, given.records_per_partition):
        for batch in rows_of(origin, part, columns, given.fail_on_data_loss):
            rows += rows_in(batch)
    return rows


def rows_in(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
