"""``spark.readStream.format("alpo")``: the methods that Spark's planner and executors call for a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .following import Follower
from .options import ReadOptions
from .origin import Origin, SourceError
from .ranges import Range, cut
from .reading import check_cluster, pinned, rows_of, what_is_left


@dataclass
class StreamPartition(InputPartition):
    """A range of LSNs and the origin to read it from."""

    origin: Origin
    range: Range


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one stream. The planner's methods run in one process for the query's life; `read` in executors, on a
    copy."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._follower: Follower | None = None

    def _plan(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(self._options)
        return self._follower

    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.records_max:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        return self._plan().latest(start, records_max, bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().fix_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan().reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        plan = self._plan()
        extent = plan.origin.extent()
        check_cluster(plan.origin, extent, str(end["log"]))
        last = int(end["lsn"]) - 1
        first = what_is_left(self._options, plan.origin, extent, int(start["lsn"]), last)
        origin = pinned(plan.origin, extent.cluster)
        return [StreamPartition(origin, part) for part in cut(first, last, self._options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamPartition):
            yield from rows_of(partition.origin, partition.range, self._columns, self._options.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the stream's cursor, if it has one: everything before ``end`` is done. Offsets are in the checkpoint."""
        self._plan().committed(end)

    def stop(self) -> None:
        """Do nothing: nothing is held open between calls."""


class RefusedStreamReader(LogStreamReader):
    """Reader of a stream that cannot be. Its first call raises ``why``: what is raised while there is no reader yet,
    PySpark's planner hides behind an error of its own."""

    def __init__(self, why: SourceError) -> None:
        self._why = why

    def _plan(self) -> Follower:
        raise self._why

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._why
