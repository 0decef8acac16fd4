"""``df.write.format("alpo")`` and ``df.writeStream.format("alpo")`` in Spark's terms: a thin layer over `committing`.

Spark sends a writer to the executors (`write`), and makes another for the driver's `commit` or `abort`: they share only
what is in the messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import uuid4

import anyio
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from .committing import Job, append_directly, commit, commit_one_entry, commit_unnumbered, opener
from .ledger import Ledger, Part, Tag, payloads_of, stage, staged_folder
from .options import WRITER_PREFIX, WriteOptions
from .origin import SourceError

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
