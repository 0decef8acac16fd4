"""Measure how fast Spark reads, audits and archives a log, and what appends notice of reading from live servers.

Three real servers on loopback and Spark with two tasks at a time (``local[2]``), all on this machine. ``python
benchmarks/spark_pipeline.py DIR --rows 1000000 --size 100``: the log is made in DIR once, and used again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import alpo
import alpo.spark
from alpo.spark.columns import ARROW
from alpo.spark.files import FileOrigin
from alpo.spark.jobs.archiving import archive
from alpo.spark.jobs.auditing import Wanted, audit
from alpo.spark.jobs.fan import on_spark
from alpo.spark.live import ServerOrigin
from alpo.spark.origin import Origin, cut
from alpo.spark.reading import pinned, rows_of
from alpo_cli.local_cluster import LocalCluster, free_base_port

_OUTSTANDING = 1000
#: Rows in a range of the archive: small enough that both tasks have equally much to do.
_RANGE_ROWS = 32_768


def _line(what: str, wall_s: float, rows: int, size: int, more: str = "") -> None:
    rates = f"{rows / wall_s:10,.0f} rows/s {rows * size / wall_s / 1e6:7.0f} MB/s"
    print(f"{what:34} {wall_s:7.2f} s {rates}  {more}", flush=True)


def _timed(do: Callable[[], object]) -> float:
    start_s = time.monotonic()
    do()
    return time.monotonic() - start_s


def _fill(cluster: LocalCluster, rows: int, size: int) -> None:
    under_way: deque[Future[Any]] = deque()
    with alpo.connect_sync(cluster.addresses, timeout_s=120) as log:
        for _ in range(rows):
            under_way.append(log.append_nowait(os.urandom(size)))
            if len(under_way) >= _OUTSTANDING:
                under_way.popleft().result()
        while under_way:
            under_way.popleft().result()
        log.wait_everyone(rows)


def _made(directory: Path, rows: int, size: int) -> LocalCluster:
    """Stopped servers that hold the log, made if it does not exist."""
    if LocalCluster.exists(directory):
        return LocalCluster.load(directory)
    cluster = LocalCluster.create(directory, 3, free_base_port(3))
    cluster.spawn(cluster.servers)
    try:
        _fill(cluster, rows, size)
    finally:
        cluster.stop()
    return cluster


def _append(addresses: str, over: Event, told: Connection) -> None:
    """Append 100 B at a time until ``over``, in a process of its own; sends the seconds that each append took."""
    os.setsid()  # another user's process, so to speak: it does not share Spark's part of the processors
    took_s: list[float] = []
    with alpo.connect_sync(addresses, timeout_s=60) as log:
        log.append(bytes(100))
        told.send(took_s)  # appends begin
        while not over.is_set():
            took_s.append(_timed(lambda: log.append(bytes(100))))
    told.send(took_s)


@contextmanager
def _appending(addresses: str) -> Iterator[list[float]]:
    """Append meanwhile; yields a list that holds the seconds of each append afterwards."""
    context = multiprocessing.get_context("spawn")
    over, (hearing, told) = context.Event(), context.Pipe(duplex=False)
    appender = context.Process(target=_append, args=(addresses, over, told))
    appender.start()
    told.close()  # close this end: if the appender dies, receiving raises EOFError
    took_s: list[float] = hearing.recv()
    try:
        yield took_s
    finally:
        over.set()
        took_s += hearing.recv()
        appender.join()


def _told(took_s: list[float]) -> str:
    hundredths = statistics.quantiles(took_s[5:], n=100)
    return f"appends: p50 {1000 * hundredths[49]:.1f} ms, p99 {1000 * hundredths[98]:.1f} ms ({len(took_s)})"


def _plain(origin: Origin, rows: int) -> tuple[float, float]:
    """Read without Spark, to Arrow batches; returns wall seconds and this process's processor seconds."""
    cpu_s = time.process_time()
    wall_s = _timed(lambda: [
        batch.num_rows for part in cut(1, rows, 65_536) for batch in rows_of(origin, part, ARROW.names, True)
    ])
    return wall_s, time.process_time() - cpu_s


def _measure(cluster: LocalCluster, directory: Path, rows: int, size: int) -> None:
    from pyspark.sql import SparkSession

    path = str(cluster.servers[0].data)
    rows = min(rows, FileOrigin(path).extent().next_lsn - 1)  # the guaranteed mark reaches the disk a little later
    builder = alpo.spark.configure(SparkSession.builder.master("local[2]").appName("benchmark"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    table = directory / "table.parquet"

    def read(**options: str) -> Callable[[], object]:
        frame = spark.read.format("alpo").options(endingLsn=str(rows), **options).load()
        return lambda: frame.write.format("noop").mode("overwrite").save()

    def out_of(origin: Origin, what: str) -> None:
        wall_s, cpu_s = _plain(origin, rows)
        _line(f"plain Python, {what}", wall_s, rows, size, f"CPU {1e6 * cpu_s / rows:.2f} s a million rows")

    read(path=path)()  # warm up
    if not table.exists():
        spark.read.format("alpo").options(path=path, endingLsn=str(rows)).load().write.parquet(str(table))
    for _ in range(3):
        out_of(FileOrigin(path), "path")
        _line("Spark, path", _timed(read(path=path)), rows, size)
        parquet = spark.read.parquet(str(table)).write.format("noop").mode("overwrite")
        _line("Spark, its own Parquet", _timed(parquet.save), rows, size)
    paths = tuple(str(server.data) for server in cluster.servers)
    _line("audit, 3 data directories", _timed(lambda: _sound(paths, spark)), 3 * rows, size)
    cluster.spawn(cluster.servers)
    try:
        with alpo.connect_sync(cluster.addresses, timeout_s=60) as log:
            log.append(b"")
        origin = pinned(ServerOrigin(tuple(cluster.addresses.split(","))), FileOrigin(path).extent().cluster)
        for _ in range(3):
            out_of(origin, "servers")
            _line("Spark, servers", _timed(read(servers=cluster.addresses)), rows, size)
        live, run = ServerOrigin(tuple(cluster.addresses.split(","))), on_spark(spark.sparkContext)
        for _ in range(3):
            shutil.rmtree(directory / "archive", ignore_errors=True)
            _line("archive", _timed(lambda: archive(live, directory / "archive", _RANGE_ROWS, rows, run)), rows, size)
        with _appending(cluster.addresses) as quiet_s:
            time.sleep(5)
        print(f"without reading: {_told(quiet_s)}")
        with _appending(cluster.addresses) as busy_s:
            walls_s = [_timed(read(servers=cluster.addresses)) for _ in range(5)]
        for wall_s in walls_s:
            _line("Spark, servers, beside appends", wall_s, rows, size)
        print(f"beside reading: {_told(busy_s)}")
    finally:
        cluster.stop()
        spark.stop()


def _sound(paths: tuple[str, ...], spark: Any) -> None:
    found = audit(Wanted((), paths), on_spark(spark.sparkContext))
    assert not found.faults, found.faults


def main() -> None:
    """Make the log if needed, then run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    given = parser.parse_args()
    cluster = _made(given.directory, given.rows, given.size)
    print(f"{given.rows:,} payloads of {given.size} B; load average {os.getloadavg()[0]:.1f} as it begins")
    _measure(cluster, given.directory, given.rows, given.size)
    print(f"load average {os.getloadavg()[0]:.1f} as it ends")


if __name__ == "__main__":
    main()
