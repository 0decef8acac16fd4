"""Measure Spark's streams: the time from an append until a query sees it, and how fast the sink writes exactly once.

``python benchmarks/spark_streams.py DIR [--appends 100] [--batches 20]``: three real servers on loopback and Spark with
``local[2]``. Latency: one append after the other, half a second apart, to a query that asks for the next micro-batch as
soon as one is done; from before the append until ``foreachBatch`` has the row. Sink: micro-batches of 100,000 rows of
100 B.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import alpo
import alpo.spark
from alpo_cli.local_cluster import LocalCluster, free_base_port

_APART_S = 0.5
_WARM = 10
_ROWS = 100_000
_PAYLOAD_BYTES = 100


def _latency(spark: Any, addresses: str, checkpoint: Path, appends: int) -> list[float]:
    """Latency in seconds of each append, without the first few."""
    took_s: list[float] = []

    def seen(frame: Any, batch: int) -> None:
        rows = frame.select("payload").collect()
        now_s = time.time()
        took_s.extend(now_s - float(row.payload) for row in rows)

    stream = spark.readStream.format("alpo").option("servers", addresses).option("startingLsn", "1").load()
    query = stream.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint)).start()
    with alpo.connect_sync(addresses, timeout_s=60) as log:
        log.append(repr(time.time()).encode())
        while not took_s and query.exception() is None:  # until the query runs
            time.sleep(_APART_S)
        for _ in range(appends + _WARM):
            log.append(repr(time.time()).encode())
            time.sleep(_APART_S)
    while len(took_s) <= appends + _WARM and query.exception() is None:
        time.sleep(_APART_S)
    query.stop()
    return took_s[_WARM + 1 :]


def _sink(spark: Any, addresses: str, checkpoint: Path, batches: int) -> tuple[int, float]:
    """Number of rows and seconds of all micro-batches but the first."""
    from pyspark.sql import functions as f

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", 2).load()
    payloads = rows.select(f.rpad(f.col("value").cast("string"), _PAYLOAD_BYTES, ".").cast("binary").alias("payload"))
    writer = payloads.writeStream.format("alpo").option("servers", addresses)
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(checkpoint))
    while len(query.recentProgress) <= batches and query.exception() is None:
        time.sleep(_APART_S)
    done = query.recentProgress[1 : batches + 1]
    query.stop()
    with alpo.connect_sync(addresses, timeout_s=60) as log:
        ends = [row["last_lsn"] or 0 for row in log.status() if row["reachable"]]
        assert max(ends) > _ROWS * batches, "rows are missing"
    return sum(one.numInputRows for one in done), sum(one.batchDuration for one in done) / 1000


def main() -> None:
    """Measure latency and rate, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--appends", type=int, default=100)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    from pyspark.sql import SparkSession

    directory = given.directory / "streams"
    directory.mkdir(parents=True)
    cluster = LocalCluster.create(directory / "cluster", 3, free_base_port(3))
    cluster.spawn(cluster.servers)
    builder = alpo.spark.configure(SparkSession.builder.master("local[2]").appName("streams"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        took_s = _latency(spark, cluster.addresses, directory / "reading", given.appends)
        cuts = statistics.quantiles(took_s, n=100)
        print(f"append to visible: p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms of {len(took_s)} appends")
        rows, seconds = _sink(spark, cluster.addresses, directory / "writing", given.batches)
        print(f"sink: {rows:,} rows of {_PAYLOAD_BYTES} B in {seconds:.1f} s: {rows / seconds:,.0f} rows/s")
    finally:
        spark.stop()
        cluster.stop(grace_s=0.0)
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
