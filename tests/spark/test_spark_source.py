"""The data source in Spark itself: found without a register(), columns, push of limits, ends, and what errors say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_kit import CLUSTER, FileLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = FileLog(tmp_path / "data")
    log.append([[b"%03d" % n] for n in range(250)])
    yield log
    log.close()


def progress(query: Any) -> list[tuple[int, str]]:
    """Rows of each trigger that had any, and where it ended."""
    found = [(p["numInputRows"], p["sources"][0]["endOffset"]) for p in query.recentProgress]
    return [each for each in found if each[0]]


def test_a_batch_read(spark: SparkSession, log: FileLog) -> None:
    frame = spark.read.format("alpo").option("path", log.path).option("recordsPerPartition", 100).load()
    assert frame.columns == ["lsn", "id", "term", "time", "client", "serial", "payload"]
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.orderBy("lsn").collect()
    assert [bytes(row.payload) for row in rows] == [b"%03d" % n for n in range(250)]
    assert [row.lsn for row in rows] == list(range(1, 251))
    assert frame.filter("lsn > 240 and client = '~client'").count() == 10


def test_one_frame_with_several_filters(spark: SparkSession, log: FileLog) -> None:
    """Spark 4.3 keeps, for all uses of a frame, what a reader with `pushFilters` planned for one of them."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        frame = spark.read.format("alpo").option("path", log.path).load()
        few, rest = frame.where("lsn <= 10"), frame.where("lsn > 200")
        assert (few.union(rest).count(), frame.count()) == (60, 250)
    finally:
        spark.conf.unset(setting)


def test_a_schema_of_ones_own_reads_those_columns_alone(spark: SparkSession, log: FileLog) -> None:
    frame = spark.read.format("alpo").schema("SERIAL bigint, lsn bigint").option("path", log.path).load()
    found = frame.agg({"lsn": "max", "serial": "min"}).first()
    assert found is not None and (found["max(lsn)"], found["min(serial)"]) == (250, 1)
    with pytest.raises(Exception, match="there is no column topic: the columns are lsn, id"):
        spark.read.format("alpo").schema("topic string").option("path", log.path).load().collect()
    with pytest.raises(Exception, match="column lsn is a bigint, not a string"):
        spark.read.format("alpo").schema("lsn string").option("path", log.path).load().collect()


def test_an_empty_span(spark: SparkSession, log: FileLog) -> None:
    frame = spark.read.format("alpo").option("path", log.path).option("startingLsn", "latest").load()
    assert frame.collect() == []


def test_errors_say_what_is_wrong(spark: SparkSession, log: FileLog, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="option servers"):
        spark.read.format("alpo").load().collect()
    stream = spark.readStream.format("alpo").option("path", log.path).option("endingLsn", 5).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match=r"endingLsn does not go with spark\.readStream: a stream has no end") as caught:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)
    with pytest.raises(Exception, match="TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING alpo OPTIONS (path '{log.path}')")
    assert not spark.catalog.tableExists("kept")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING alpo OPTIONS (path '{log.path}')")
    assert spark.sql("SELECT max(LSN) FROM seen").collect()[0][0] == 250
    log.tamper("UPDATE log SET body = x'00' WHERE id = 9")
    with pytest.raises(Exception, match="entry 9: the body of entry 9 does not match its digest"):
        spark.read.format("alpo").option("path", log.path).load().collect()


def test_a_stream_goes_on_where_its_checkpoint_stands(spark: SparkSession, log: FileLog, tmp_path: Path) -> None:
    seen: list[int] = []

    def run() -> list[tuple[int, str]]:
        query = (
            spark.readStream.format("alpo").option("path", log.path).option("startingLsn", "earliest")
            .option("maxRecordsPerTrigger", 100).load().writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda frame, _: seen.extend(row.lsn for row in frame.collect())).start()
        )
        query.awaitTermination()
        return progress(query)

    offset = '{"log": "' + CLUSTER.hex() + '", "lsn": %d}'
    assert run() == [(100, offset % 101), (100, offset % 201), (50, offset % 251)]
    log.append([[b"more"]] * 7)
    assert run() == [(7, offset % 258)]
    assert sorted(seen) == list(range(1, 258))
