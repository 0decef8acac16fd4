"""Spark driver of `make demo-spark`, in a process of its own that can be killed: `python -m … '{"lines": …, …}'`.

It counts words from one log into another until all lines are counted, then runs the jobs: archive, trim, read across
archive and log, audit. It reports each step as a JSON line on stdout.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpo.spark import append_batch, configure
from alpo.spark.jobs.archiving import archive, trim_archived
from alpo.spark.jobs.auditing import Wanted, audit
from alpo.spark.jobs.fan import QUIET, Runner, on_spark
from alpo.spark.jobs.history import read_history
from alpo.spark.live import ServerOrigin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Order = dict[str, Any]

#: Lines in a trigger, in a file, in a partition.
TRIGGER_LINES, FILE_LINES, PART_LINES = 400, 512, 600
TIMEOUT_S = 30.0
#: Seconds that a driver waits to be killed.
KILLED_WITHIN_S = 60.0
_LOOK_S = 0.1
#: Java options for a fast start and little output.
_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={QUIET.as_uri()}"


def tell(step: str, **fields: Any) -> None:
    """Report a step as a JSON line on stdout."""
    print(json.dumps({"step": step, **fields}), flush=True)


def session(home: Path) -> SparkSession:
    """Spark session on two cores that writes only under ``home``."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("alpo demo")
    for key, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_JAVA} -Djava.io.tmpdir={home}", "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }.items():
        builder = builder.config(key, value)
    return configure(builder).getOrCreate()


def word_count(spark: SparkSession, order: Order) -> StreamingQuery:
    """Start the query: each trigger appends, in one entry of the second log, the present counts of its lines' words."""
    def write(counts: DataFrame, batch: int) -> None:
        append_batch(counts.selectExpr("to_json(struct(*)) as payload"), batch, servers=order["counts"])
        if batch == order.get("last_batch"):
            tell("appended", batch=batch)
            time.sleep(KILLED_WITHIN_S)

    lines = (
        spark.readStream.format("alpo").option("servers", order["lines"]).option("startingLsn", "earliest")
        .option("maxRecordsPerTrigger", TRIGGER_LINES).load()
    )
    words = lines.selectExpr("explode(regexp_extract_all(cast(payload as string), r'[A-Za-z]+', 0)) as word")
    return (
        words.selectExpr("lower(word) as word").groupBy("word").count()
        .writeStream.outputMode("update").option("checkpointLocation", order["checkpoint"]).foreachBatch(write).start()
    )


def until_all_is_counted(query: StreamingQuery, total: int) -> None:
    """Wait until the query has counted ``total`` lines. Raises SystemExit if it ended by itself."""
    told = -1
    while True:
        ended = not query.isActive
        for progress in query.recentProgress:
            next_lsn = int(json.loads(progress["sources"][0]["endOffset"] or '{"lsn": 1}')["lsn"])
            if progress["batchId"] > told and progress["numInputRows"]:
                told = progress["batchId"]
                tell("batch", batch=told, lines=progress["numInputRows"], upto=next_lsn - 1)
            if next_lsn > total:
                query.stop()
                return
        if ended:
            raise SystemExit(f"the query has ended by itself: {query.exception()}")
        time.sleep(_LOOK_S)


def jobs(spark: SparkSession, order: Order, run: Runner) -> None:
    """Archive two thirds of the lines and trim them, read all lines, audit both logs."""
    servers, directory = tuple(order["lines"].split(",")), Path(order["archive"])
    began_s = time.monotonic()
    made = archive(ServerOrigin(servers, timeout_s=TIMEOUT_S), directory, FILE_LINES, order["archive_upto"], run)
    tell("archive", upto=made.last_lsn, files=made.ranges, bytes=made.file_bytes, checked=made.checked,
         took_s=time.monotonic() - began_s)
    tell("trim", first_lsn=trim_archived(servers, directory, TIMEOUT_S).first_lsn)
    rows = (
        spark.read.format("alpo").option("servers", order["lines"]).option("archivePath", order["archive"])
        .option("startingLsn", 1).option("recordsPerPartition", PART_LINES).load().select("lsn", "payload").collect()
    )
    digest = hashlib.sha256(b"".join(bytes(row.payload) + b"\n" for row in rows)).hexdigest()
    tell("read", rows=len(rows), in_order=[row.lsn for row in rows] == list(range(1, len(rows) + 1)), digest=digest)
    for name, told in (("lines", tuple(read_history(Path(order["history"])))), ("counts", ())):
        found = audit(Wanted(tuple(order[name].split(",")), (), told, TIMEOUT_S), run)
        tell("audit", log=name, copies=len(found.copies), compared=found.compared, told=found.told,
             trimmed=found.trimmed, faults=[fault.told() for fault in found.faults])


def main(order: Order) -> None:
    """Run the query and the jobs."""
    began_s = time.monotonic()
    spark = session(Path(order["home"]))
    query = word_count(spark, order)
    tell("begun", took_s=time.monotonic() - began_s)
    until_all_is_counted(query, order["total"])
    jobs(spark, order, on_spark(spark.sparkContext))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
