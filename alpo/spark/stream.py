"""``spark.readStream.format("alpo")``: the methods that Spark's planner and executors call for a stream, and the
planning behind them: how far each trigger reads, delays, and the end.

An offset is ``{"log": cluster id, "lsn": next}``: everything below ``lsn`` was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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

from .live import ServerOrigin
from .options import ReadOptions
from .origin import Extent, Origin, Range, SourceError, cut
from .reading import check_cluster, first_of, origin_of, pinned, rows_of, what_is_left

Offset = dict[str, Any]


class Follower:
    """Planner of one stream. Lives as long as the query, on the driver."""

    def __init__(self, options: ReadOptions, now_s: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.origin: Origin = origin_of(options)
        self._now_s = now_s
        self._waits_since_s: float | None = None
        self._end_lsn: int | None = None
        self._cursor_lsn = 0
        self._initial: Offset = {}

    def initial(self) -> Offset:
        """Offset at which a query without a checkpoint begins. Spark asks again when it has planned the first trigger:
        an end that has moved on meanwhile would leave out what that trigger is to read."""
        if not self._initial:
            extent = self.origin.extent()
            self._initial = {"log": extent.cluster, "lsn": first_of(self.options, self.origin, extent)}
            self.committed(self._initial)
        return self._initial

    def committed(self, offset: Offset) -> None:
        """Move the cursor, if there is one: what comes before ``offset`` is not needed any more. Raises `SourceError`
        if the cluster does not take it; if it does not answer, the next one comes."""
        lsn = int(offset["lsn"])
        if not self.options.cursor or lsn == self._cursor_lsn:
            return
        given = self.options
        servers = ServerOrigin(given.servers, timeout_s=given.timeout_s, cluster=str(offset["log"]), tls=given.tls)
        if servers.move_cursor(given.cursor, lsn):
            self._cursor_lsn = lsn

    def fix_end(self) -> None:
        """Let the stream end at what exists now (Spark's AvailableNow)."""
        self._end_lsn = self.origin.extent().next_lsn

    def latest(self, start: Offset, records_max: int, bytes_max: int) -> Offset:
        """Offset up to which the next trigger reads from ``start`` on; ``start`` if there is nothing. 0: no limit."""
        extent = self._extent(start)
        begin = int(start["lsn"])
        end = max(begin, extent.next_lsn if self._end_lsn is None else min(self._end_lsn, extent.next_lsn))
        if end == begin or self._waits_for_more(end - max(begin, extent.first_lsn)):
            return start
        if records_max:
            end = min(end, max(begin, extent.first_lsn) + records_max)
        if bytes_max:
            end = self._within(max(begin, extent.first_lsn), end, bytes_max)
        return {"log": extent.cluster, "lsn": end}

    def reported(self) -> Offset:
        """Offset of the end of the log, to measure how far the stream is behind."""
        extent = self.origin.extent()
        return {"log": extent.cluster, "lsn": extent.next_lsn}

    def _extent(self, start: Offset) -> Extent:
        extent = self.origin.extent()
        check_cluster(self.origin, extent, str(start["log"]))
        return extent

    def _waits_for_more(self, there: int) -> bool:
        """True while fewer than minRecordsPerTrigger records wait, for at most maxTriggerDelay; False once the end is
        fixed."""
        now_s = self._now_s()
        if there >= self.options.records_min or self._end_lsn is not None:
            self._waits_since_s = None
            return False
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        if now_s - self._waits_since_s >= self.options.delay_s:
            self._waits_since_s = None
            return False
        return True

    def _within(self, begin: int, end: int, bytes_max: int) -> int:
        """LSN at which payloads from ``begin`` on add up to ``bytes_max``; after the first entry at least."""
        size = 0
        for page in self.origin.pages(begin, end - 1, 0):
            for lsn, count, body in zip(page.lsns, page.counts, page.bodies, strict=True):
                size += len(body)
                if size > bytes_max and lsn > begin:
                    return min(lsn, end)
                if size >= bytes_max:
                    return min(lsn + count, end)
        return end


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
