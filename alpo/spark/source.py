"""The data source ``alpo`` in Spark's terms: a thin layer over `reading` and `stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from . import columns, states
from .options import ReadOptions, WriteOptions, wants_state
from .origin import Extent, Origin, Range, SourceError, cut
from .reading import end_of, origin_of, pinned, rows_of, span_of
from .sink import LogStreamWriter, LogWriter
from .stream import LogStreamReader, RefusedStreamReader


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
