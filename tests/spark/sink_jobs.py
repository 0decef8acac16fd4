"""Writing from Spark in every way there is but by a stream, and what went wrong with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import alpo.spark


def error_of(write: Any) -> str:
    """The first line that names what the data source said."""
    try:
        write()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if ".SourceError: " in line]
        return lines[0].strip() if lines else str(error)
    return ""


def warned_of_another_file_system(spark: SparkSession, servers: str, folder: Path, scheme: str) -> bool:
    """Write as a stream where Spark's own file system is not this machine's: /…/here is in /…/there for Spark. True if
    the sink has warned that it does not find what Spark plans."""
    here, there = folder / "here", folder / "there"
    for directory in (here, there):
        directory.mkdir(parents=True)
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://other/")
    session.conf.set(f"fs.viewfs.mounttable.other.link.{here}", f"file://{there}")
    stream = (
        session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        .selectExpr(f"concat('elsewhere{scheme}-', value) as payload").writeStream.format("alpo")
        .option("servers", servers).option("checkpointLocation", f"{scheme}{here}/checkpoint").start()
    )
    while stream.isActive and len(stream.recentProgress) < 2:
        stream.awaitTermination(1)
    stream.stop()
    assert stream.exception() is None, stream.exception()
    return (here / "checkpoint" / "alpo" / "unplanned").exists()


def write_in_every_way(spark: SparkSession, servers: str, folder: Path) -> dict[str, str]:
    def failing_once(rows: Any) -> Any:
        """Fail once, as an executor that dies after it gave all rows. (Nested, so that Spark sends it by value.)"""
        yield from rows
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() == 0 and task.partitionId() == 1:
            raise RuntimeError("this attempt fails")

    def rows(tag: str, count: int) -> DataFrame:
        return spark.range(count).repartition(2).selectExpr(f"concat('{tag}-', id) as payload")

    def once(df: DataFrame) -> DataFrame:
        return spark.createDataFrame(df.rdd.mapPartitions(failing_once), "payload string")

    def write(df: DataFrame, **options: Any) -> None:
        df.write.format("alpo").mode("append").option("servers", servers).options(**options).save()

    def each(tag: str, checkpoint: str | None) -> str:
        def twice(df: Any, batch: int) -> None:
            for _ in range(2):
                alpo.spark.append_batch(df, batch, servers=servers, checkpoint=checkpoint)

        stream = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
            .selectExpr(f"concat('{tag}-', value) as payload").writeStream
            .foreachBatch(twice).start()
        )
        while stream.isActive and len(stream.recentProgress) < 3:
            stream.awaitTermination(1)
        stream.stop()
        return str(stream.exception() or "")

    cp = str(folder / "jobs")
    found = {}
    found["plain"] = error_of(lambda: write(once(rows("plain", 100))))
    for name, options in (("txn", {}), ("txn-dir", {"checkpointLocation": cp})):
        for _ in range(2):
            found[name] = error_of(lambda: write(rows(name, 100), txnAppId=name, txnVersion=5, **options))
    found["large"] = error_of(lambda: write(rows("large", 500), txnAppId="large", txnVersion=1))
    found["direct"] = error_of(lambda: write(rows("direct", 100), mode="direct"))
    found["binary"] = error_of(lambda: write(rows("binary", 10).selectExpr("cast(payload as binary) payload")))
    found["each"] = each("each", None)
    found["each-dir"] = each("each-dir", str(folder / "each"))
    for scheme in ("", "file://"):
        found["plans" + scheme] = str(warned_of_another_file_system(spark, servers, folder / f"fs{scheme[:4]}", scheme))
    two = rows("two", 1).selectExpr("payload", "1 as n")
    found["two columns"] = error_of(lambda: write(two))
    found["null"] = error_of(lambda: write(rows("null", 1).selectExpr("cast(null as string) as payload")))
    found["overwrite"] = error_of(
        lambda: rows("o", 1).write.format("alpo").mode("overwrite").option("servers", servers).save()
    )
    return found

