"""The driver, or Spark Connect's client, of shipped.py.

    python -S shipped_driver.py '{"url": "local-cluster[2,1,1024]", "settings": {…}, "servers": …, "package": …,
                                  "folder": …}'

``url``: of a Spark master, or of a Spark Connect server (sc://…), which has ALPO itself. Reads the log as a batch,
copies it as a stream into the log, an executor killed in the middle, and runs the stream once more. Prints as JSON what
was found.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote


def session(url: str, settings: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = builder.remote(url) if url.startswith("sc://") else builder.master(url)
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    return made


class WhereReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(4)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        found = importlib.util.find_spec("alpo")
        yield ("" if found is None else str(found.origin),)


class Where(DataSource):
    """A data source that gives the place from which executors import ALPO; "" if they cannot import it."""

    @classmethod
    def name(cls) -> str:
        return "where"

    def schema(self) -> str:
        return "found string"

    def reader(self, schema: StructType) -> WhereReader:
        return WhereReader()


def where_alpo_is(spark: SparkSession) -> list[str]:
    spark.dataSource.register(Where)
    return sorted({row.found for row in spark.read.format("where").load().collect()})


def ship(spark: SparkSession, package: str) -> None:
    """Ship ALPO to the executors as docs/spark.md says."""
    spark.sparkContext.addPyFile(package)
    from pyspark_alpo import DefaultSource

    spark.dataSource.register(DefaultSource)


def copy_all(spark: SparkSession, servers: str, folder: Path) -> int:
    """Append a copy of each payload that is no copy, with "copy:" before it; return the number of triggers so far. The
    first executor that reads payload 150 is killed."""
    died = str(folder / "died")

    def copied(payload: bytearray) -> bytes:
        if payload == b"150" and not Path(died).exists():
            Path(died).touch()
            daemon = os.getppid()
            java = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(java, signal.SIGKILL)
            signal.pause()  # gone when the executor's end of the pipe is
        return b"copy:" + payload

    rows = (
        spark.readStream.format("alpo").option("servers", servers).option("startingLsn", "earliest")
        .option("maxRecordsPerTrigger", 100).option("recordsPerPartition", 40).load()
        .where("cast(payload as string) not like 'copy:%'")
    )
    query = (
        rows.select(udf(copied, "binary")("payload").alias("payload")).writeStream.format("alpo")
        .option("servers", servers).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return sum(path.name.isdigit() for path in (folder / "checkpoint" / "commits").iterdir())


def main(order: dict[str, Any]) -> dict[str, Any]:
    servers, folder = order["servers"], Path(order["folder"])
    spark = session(order["url"], order["settings"])
    found: dict[str, Any] = {"before": where_alpo_is(spark)}
    if not is_remote():
        ship(spark, order["package"])
    found["shipped"] = where_alpo_is(spark)
    frame = spark.read.format("alpo").option("servers", servers).option("recordsPerPartition", 50).load()
    found["read"] = [[row.lsn, bytes(row.payload).decode()] for row in frame.orderBy("lsn").collect()]
    found["commits"] = [copy_all(spark, servers, folder) for _ in range(2)]
    found["died"] = (folder / "died").exists()
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
