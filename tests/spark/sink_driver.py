"""A driver for the sink's kill tests: streams numbered rows into a log, and dies where it is told to.

    python sink_driver.py '{"servers": …, "checkpoint": …, "partitions": 2, "batches": 4, "rows": 1000, "plan": "same",
                            "kill_at": "", "kill_batch": 2}'

Rows of batch B are ``B:V:…``, V from 0 to rows - 1. Where it dies is decided in Spark's own worker processes, by a data
source that is the product's but for that: it kills the driver's JVM and Python, as a machine that fails does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from alpo.spark import committing, configure, ledger
from alpo.spark.source import AlpoDataSource, LogStreamWriter

#: Places within a micro-batch at which a driver can die.
POINTS = (
    "mid-write", "after-staging", "before-manifest", "after-manifest", "mid-append", "after-append", "after-finish",
)
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(folder: Path) -> SparkSession:
    """Spark as small as it gets."""
    return (
        configure(SparkSession.builder).master("local[2,3]").appName("sink")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _JAVA).config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )


def killed(order: dict[str, Any], pids: list[int]) -> None:
    """Kill the driver and all its processes; or only pause them, if ``order`` says so."""
    all_pids = [*pids, os.getpid()]
    Path(order["checkpoint"] + ".died").write_text(json.dumps(all_pids), "utf-8")
    for pid in all_pids:
        os.kill(pid, signal.SIGSTOP if order.get("pause") else signal.SIGKILL)


def before(function: Callable[..., Any], die: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        die()
        return function(*arguments, **options)
    return call


def after(function: Callable[..., Any], die: Callable[[], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        function(*arguments, **options)
        die()
    return call


def small(order: dict[str, Any]) -> None:
    """Lower the limits, so that little data takes several entries, and files."""
    ledger.INLINE_BYTES = order.get("inline_bytes", 2000)
    for module in (committing, committing):
        vars(module)["ENTRY_BYTES"] = order.get("entry_bytes", 512)
    committing.UNDER_WAY_MAX = 2


def killing(order: dict[str, Any], pids: list[int]) -> type[AlpoDataSource]:
    """The data source, dying at ``order["kill_at"]`` of batch ``order["kill_batch"]``."""
    die = partial(killed, order, pids)

    def dies(point: str, batch: int) -> bool:
        return bool(order["kill_at"] == point and batch == order["kill_batch"])

    def cut_short(pieces: Any, limit: int) -> Iterator[list[bytes]]:
        """Die while some entries are on their way, and the first ones are answered."""
        for number, chunk in enumerate(_cut(pieces, limit)):
            if number == order.get("kill_entry", 4):
                die()
            yield chunk

    _cut = committing.cut

    class KillingWriter(LogStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            small(order)
            task = TaskContext.get()
            assert task is not None
            batch = int(task.getLocalProperty("streaming.sql.batchId") or -1)

            def rows() -> Iterator[pa.RecordBatch]:
                for found in iterator:
                    yield found
                    if dies("mid-write", batch) and task.partitionId() == 1:
                        die()

            message = super().write(rows())
            if dies("after-staging", batch) and task.partitionId() == 1:
                die()
            return message

        def commit(self, messages: Any, batchId: int) -> None:
            small(order)
            if dies("before-manifest", batchId):
                ledger.Ledger.fix = before(ledger.Ledger.fix, die)  # type: ignore[method-assign]
            if dies("after-manifest", batchId):
                ledger.Ledger.fix = after(ledger.Ledger.fix, die)  # type: ignore[method-assign]
            if dies("mid-append", batchId):
                committing.cut = cut_short
            if dies("after-append", batchId):
                ledger.Ledger.finish = before(ledger.Ledger.finish, die)  # type: ignore[method-assign]
            super().commit(messages, batchId)
            if dies("after-finish", batchId):
                die()

    class Killing(AlpoDataSource):
        @classmethod
        def name(cls) -> str:
            return "alpo-killing"

        def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:
            made = super().streamWriter(schema, overwrite)
            made.__class__ = KillingWriter
            return made

    return Killing


def main(order: dict[str, Any]) -> None:
    spark = session(Path(order["checkpoint"]).parent)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pids = [int(jvm.java.lang.ProcessHandle.current().pid()), os.getpid()]
    spark.dataSource.register(killing(order, pids))
    rows = order["rows"]
    stream = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        .option("numPartitions", order["partitions"]).load()
    )
    text = f"concat(value div {rows}, ':', value % {rows}, ':', repeat('x', 10)"
    if order["plan"] == "random":  # other bytes, in other partitions and order, each time
        text += ", rand()"
        stream = stream.repartition(3)
    query = (
        stream.selectExpr(f"{text}) as payload").writeStream.format("alpo-killing")
        .option("servers", order["servers"]).option("checkpointLocation", order["checkpoint"]).start()
    )
    told = 0
    while query.isActive and told < order["batches"]:
        for progress in query.recentProgress:
            if progress["batchId"] >= told:
                told = progress["batchId"] + 1
                print(f"batch {told - 1} done", progress["durationMs"], flush=True)
        query.awaitTermination(0.05)  # type: ignore[arg-type]  # takes parts of a second, whatever its types say
    query.stop()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
