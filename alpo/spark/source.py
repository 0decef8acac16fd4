"""The data source ``alpo`` in Spark's terms: thin layers over `reading`, for ``spark.read``, and `committing`, for
``df.write`` and ``df.writeStream``; and streams, ``spark.readStream``, with the planning behind them: how far each
trigger reads, delays, and the end.

A stream's offset is ``{"log": cluster id, "lsn": next}``: everything below ``lsn`` was read. Spark sends a writer to
the executors (`write`), and makes another for the driver's `commit` or `abort`: they share only what is in the
messages.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from . import columns, states
from .committing import Job, append_directly, commit, commit_one_entry, commit_unnumbered, opener
from .ledger import Ledger, Part, Tag, payloads_of, stage, staged_folder
from .live import ServerOrigin
from .options import WRITER_PREFIX, ReadOptions, WriteOptions, wants_state
from .origin import Extent, Origin, Range, SourceError, cut
from .reading import check_cluster, end_of, first_of, origin_of, pinned, rows_of, span_of, what_is_left

T = TypeVar("T")

_BACKEND = "trio"
#: Task properties in which Spark names the streaming query.
_QUERY, _RUN, _GROUP, _BATCH = (
    "sql.streaming.queryId", "sql.streaming.runId", "spark.jobGroup.id", "streaming.sql.batchId",
)


@dataclass
class Message(WriterCommitMessage):
    """A task's result: what it has staged, or None if it has appended everything itself."""

    part: Part | None


def check_columns(schema: StructType) -> None:
    """Raise `SourceError` unless there is a column ``payload`` and no other."""
    found = [(field.name, field.dataType) for field in schema.fields]
    if len(found) != 1 or found[0][0].lower() != "payload" or not isinstance(found[0][1], BinaryType | StringType):
        columns = ", ".join(f"{name} {type.simpleString()}" for name, type in found)
        raise SourceError(
            "a row that is written has one column: payload, binary or string (as UTF-8); the cluster gives the rest. "
            f"These rows have {columns or 'none'}. Choose what to write: "
            'df.selectExpr("to_json(struct(*)) as payload"), or df.select(df.value.alias("payload"))'
        )


def _run(function: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(function, backend=_BACKEND)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [m.part for m in messages if isinstance(m, Message) and m.part is not None]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SourceError("this is for Spark's tasks only")
    return task


def _stream_run(task: TaskContext) -> str:
    """The run of the streaming query that a task belongs to; "" if to none."""
    if not task.getLocalProperty(_QUERY):
        return ""
    return task.getLocalProperty(_RUN) or task.getLocalProperty(_GROUP) or ""


def _direct(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Message:
    pieces = (payloads_of(batch).to_pylist() for batch in batches)
    _run(partial(append_directly, pieces, opener(options)))
    return Message(None)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Sink of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        if self._options.direct:
            return _direct(iterator, self._options)
        task = _task()
        query, batch, run = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH), _stream_run(task)
        if not query or not batch or not run:
            raise SourceError("this version of Spark does not tell tasks their query and batch: use foreachBatch")
        tag = Tag(query, run, int(batch), task.partitionId(), task.taskAttemptId())
        return Message(stage(iterator, tag, staged_folder(self._options.directory)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.direct:
            return
        parts, ledger = _parts(messages), Ledger(self._options.directory)
        if not parts:  # no task ran this time
            if ledger.client:
                _run(partial(commit, Job(ledger.client, batchId, uuid4().hex), parts, ledger, opener(self._options)))
            return
        found = {(part.tag.query, part.tag.run, part.tag.batch) for part in parts}
        if len(found) != 1 or parts[0].tag.batch != batchId:
            raise SourceError(f"batch {batchId} got what was staged for others: {sorted(found)}")
        tag = parts[0].tag
        job = Job(WRITER_PREFIX + tag.query, batchId, tag.run, self._options.repeat, ledger.plan(batchId, tag.run))
        _run(partial(commit, job, parts, ledger, opener(self._options)))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if not self._options.direct:
            Ledger(self._options.directory).discard(_parts(messages), batchId)


class LogWriter(DataSourceArrowWriter):
    """Sink of a batch job: of numbered writes (txnAppId, txnVersion), or of one that is not repeated."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SourceError('a log is only appended to: write with .mode("append")')
        check_columns(schema)
        self._options = options
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        options = self._options
        if options.direct:
            return _direct(iterator, options)
        task = _task()
        tag = Tag(
            options.app, (options.app and _stream_run(task)) or self._run, max(options.version, 0), task.partitionId(),
            task.taskAttemptId(),
        )
        return Message(stage(iterator, tag, staged_folder(options.directory) if options.directory else None))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts, options, ledger = _parts(messages), self._options, self._ledger()
        if options.direct:
            return
        run = parts[0].tag.run if parts else self._run
        job = Job(WRITER_PREFIX + options.app, options.version, run, options.repeat)
        if not options.app:
            _run(partial(commit_unnumbered, parts, ledger.staged if ledger else None, opener(options)))
            self.abort(messages)  # staged files are no longer needed
        elif ledger is None:
            _run(partial(commit_one_entry, job, parts, opener(options)))
        else:
            _run(partial(commit, job, parts, ledger, opener(options)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        ledger = self._ledger()
        if ledger and self._options.app:
            ledger.discard(_parts(messages), self._options.version)
        elif ledger:
            ledger.discard_run(self._run)

    def _ledger(self) -> Ledger | None:
        return Ledger(self._options.directory) if self._options.directory else None


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
        servers = ServerOrigin(
            given.servers, timeout_s=given.timeout_s, cluster=str(offset["log"]), tls=given.tls,
            log=given.log,
        )
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


@dataclass
class LogPartition(InputPartition):
    """A range of LSNs and the origin to read it from."""

    origin: Origin
    range: Range


@dataclass
class StatePartition(InputPartition):
    """The state as of ``lsn``, and the origin to fold it from."""

    origin: Origin
    extent: Extent
    lsn: int


def columns_of(schema: StructType, types: Mapping[str, str] = columns.TYPES) -> list[str]:
    """Names of the columns that the user wants, in the user's case. Raises `SourceError` for an unknown one, one of
    another type, one that is named twice, and NOT NULL."""
    names = [field.name for field in schema.fields]
    for name, field in zip(names, schema.fields, strict=True):
        wanted = types.get(name.lower())
        if wanted is None:
            raise SourceError(f"there is no column {name}: the columns are {', '.join(types)}")
        if field.dataType.simpleString() != wanted:
            raise SourceError(f"column {name} is a {wanted}, not a {field.dataType.simpleString()}")
        if not field.nullable:
            raise SourceError(f"column {name}: leave NOT NULL out (Spark compares it with what the columns are)")
        if [other.lower() for other in names].count(name.lower()) > 1:
            raise SourceError(f"column {name} is named twice")
    return names


class AlpoDataSource(DataSource):
    """Data source for ``format("alpo")`` of ``spark.read``, ``readStream``, ``df.write``, ``writeStream``; options in
    docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "alpo"

    def schema(self) -> str:
        return states.DDL if wants_state(self.options) else columns.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options, streaming=False)
        if options.state:
            return StateReader(options, columns_of(schema, states.TYPES))
        return LogReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(WriteOptions.of(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(WriteOptions.of(self.options, streaming=True), schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        try:
            return LogStreamReader(ReadOptions.of(self.options, streaming=True), columns_of(schema))
        except SourceError as error:
            return RefusedStreamReader(error)


class LogReader(DataSourceReader):
    """A batch read; its end is fixed when its partitions are planned."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        origin = origin_of(self._options)
        extent, first, last = span_of(self._options, origin)
        origin = pinned(origin, extent.cluster)
        return [LogPartition(origin, part) for part in cut(first, last, self._options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):  # Spark passes a partition of its own for an empty plan
            yield from rows_of(
                partition.origin, partition.range, self._columns, self._options.fail_on_data_loss
            )


class StateReader(DataSourceReader):
    """A read of the state as of an LSN, fixed when it is planned. The fold is sequential: one task does it."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        origin = origin_of(self._options)
        extent = origin.extent()
        return [StatePartition(pinned(origin, extent.cluster), extent, end_of(self._options, origin, extent))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StatePartition):
            from .folded import state_at  # imported here, with `alpo.state`: few workers need it

            state = state_at(partition.origin, partition.extent, partition.lsn)
            yield from states.batches_of(state, self._columns)
