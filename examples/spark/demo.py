"""Spark counts a log's words into a second log and is killed in the middle: exactly once; then archive, trim, audit.

    python examples/spark/demo.py [FILE]        (make demo-spark)

Six alpod processes on loopback and Spark on two cores, all in a temporary directory. Exits with 0 only if every check
held; in any case no process and no file is left behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from demo_proof import batch_of, ends_of, prove, row_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import alpo
from alpo.spark import append_batch, configure
from alpo.spark.jobs.archiving import archive, trim_archived
from alpo.spark.jobs.auditing import Wanted, audit, read_history
from alpo.spark.jobs.fan import QUIET, on_spark
from alpo.spark.live import ServerOrigin
from alpo_cli.local_cluster import LocalCluster, free_base_port

TEXT = Path(__file__).parents[2] / "tests" / "data" / "alice.txt"
SIZE, CLIENT = 3, "demo"
#: Appends per second, so that the stream goes on while Spark starts, dies, and starts again.
PACE = 120.0
#: Micro-batch in which Spark is killed, the third.
KILL_BATCH = 2
LINES_MIN = 1_500
TRIGGER_LINES, FILE_LINES, PART_LINES = 400, 512, 600
TIMEOUT_S, WITHIN_S = 30.0, 240.0


def check(holds: object, claim: str) -> None:
    """Print what was seen to hold. Raises SystemExit if it does not."""
    if not holds:
        raise SystemExit(f"  ✗ NOT so: {claim}")
    print(f"  ✓ {claim}", flush=True)


def session(home: str) -> SparkSession:
    """Spark on two cores that writes under ``home`` only."""
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={QUIET.as_uri()}"
    builder = configure(SparkSession.builder.master("local[2]").appName("alpo demo"))
    for key, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={home}", "spark.local.dir": f"{home}/local",
        "spark.sql.warehouse.dir": f"{home}/warehouse",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def word_count(spark: SparkSession, home: str, lines: str, counts: str, hang_in: int = -1) -> StreamingQuery:
    """Start the query: each trigger appends, in one entry of the second log, the present counts of its lines' words."""
    def write(found: DataFrame, batch: int) -> None:
        append_batch(found.selectExpr("to_json(struct(*)) as payload"), batch, servers=counts)
        if batch == hang_in:
            print("appended", flush=True)
            time.sleep(WITHIN_S)

    log = (
        spark.readStream.format("alpo").option("servers", lines).option("startingLsn", "earliest")
        .option("maxRecordsPerTrigger", TRIGGER_LINES).load()
    )
    words = log.selectExpr("explode(regexp_extract_all(cast(payload as string), r'[A-Za-z]+', 0)) as word")
    return (
        words.selectExpr("lower(word) as word").groupBy("word").count()
        .writeStream.outputMode("update").option("checkpointLocation", f"{home}/checkpoint").foreachBatch(write).start()
    )


def feed(servers: str, lines: list[bytes], history: Path) -> None:
    """Append every line at a fixed pace, and note the answers for the audit."""
    began_s = time.monotonic()
    with history.open("w") as told, alpo.connect_sync(servers, client=CLIENT, timeout_s=TIMEOUT_S) as log:
        for number, line in enumerate(lines):
            lsn = log.append(line)
            told.write(json.dumps({"client": CLIENT, "serial": number + 1, "lsn": lsn, "count": 1}) + "\n")
            time.sleep(max(0.0, began_s + number / PACE - time.monotonic()))


def records(servers: str) -> list[alpo.Record]:
    """All records of a log."""
    with alpo.connect_sync(servers, timeout_s=TIMEOUT_S) as log:
        return list(log.read())


def killed_once(home: str, lines: str, counts: str) -> None:
    """Run Spark in a process of its own; kill it when a batch is in the second log, and Spark has not noted that."""
    with Path(home, "spark.log").open("wb") as said:
        driver = subprocess.Popen(
            [sys.executable, __file__, "--first", home, lines, counts], stdout=subprocess.PIPE, stderr=said,
            start_new_session=True,
        )
    try:
        assert driver.stdout is not None
        check(driver.stdout.readline() == b"begun\n", "Spark counts words into the second log")
        appended = driver.stdout.readline()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    unnoted = appended == b"appended\n" and not Path(f"{home}/checkpoint/commits/{KILL_BATCH}").exists()
    there = sum(batch_of(record) == KILL_BATCH for record in records(counts))
    check(unnoted and there, f"micro-batch {KILL_BATCH + 1}: kill -9 of Spark; its {there:,} rows are in the second"
                             " log, and Spark, which has not noted that, will do the batch again")


def until_all_is_counted(query: StreamingQuery, total: int) -> None:
    """Wait until the query is done with all lines, and stop it. Raises SystemExit."""
    for _ in range(int(WITHIN_S / 0.1)):
        ends = [progress["sources"][0]["endOffset"] for progress in query.recentProgress]
        if any(end and int(json.loads(end)["lsn"]) > total for end in ends):
            query.stop()
            return
        if not query.isActive:
            break
        time.sleep(0.1)
    raise SystemExit(f"the query came to no end: {query.exception()}")


def jobs(spark: SparkSession, home: str, lines: str, counts: str, content: list[bytes]) -> None:
    """Archive two thirds of the lines and trim them, read all lines, audit both logs."""
    run, servers, directory = on_spark(spark.sparkContext), tuple(lines.split(",")), Path(home, "archive")
    made = archive(ServerOrigin(servers, timeout_s=TIMEOUT_S), directory, FILE_LINES, len(content) * 2 // 3, run)
    check(made.checked, f"archived lines 1 to {made.last_lsn:,}: {made.ranges} Parquet files, {made.file_bytes:,}"
                        " bytes, each checked against a second replica")
    first_lsn = trim_archived(servers, directory, TIMEOUT_S).first_lsn
    check(first_lsn > 1, f"trimmed: the first log now begins at line {first_lsn:,}")
    reader = spark.read.format("alpo").option("servers", lines).option("archivePath", str(directory))
    rows = reader.option("startingLsn", 1).option("recordsPerPartition", PART_LINES).load().collect()
    same = [(row.lsn, bytes(row.payload)) for row in rows] == list(enumerate(content, 1))
    digest = hashlib.sha256(b"".join(line + b"\n" for line in content)).hexdigest()
    check(same, f"read across the seam, archive and log as one: {len(rows):,} lines, sha256 {digest[:16]}…, identical"
                " to the file")
    for name, log, told in (("lines", lines, read_history(Path(home, "history"))), ("counts", counts, [])):
        found = audit(Wanted(tuple(log.split(",")), (), tuple(told), TIMEOUT_S), run)
        for fault in found.faults:
            print(fault.told())
        checked = f", {found.told:,} answers to the appender checked" if found.told else ""
        check(not found.faults, f"audited the log of {name}: {len(found.copies)} servers, {found.compared:,} entries"
                                f" compared{checked}: no fault")


def demo(home: str, lines: str, counts: str, content: list[bytes]) -> None:
    """Run it all on two logs that are there. Raises SystemExit unless every claim holds."""
    with ThreadPoolExecutor(1) as beside:
        feeding = beside.submit(feed, lines, content, Path(home, "history"))
        killed_once(home, lines, counts)
        feeding.result()
    check(True, f"all {len(content):,} lines are in the first log")
    spark = session(home)
    until_all_is_counted(word_count(spark, home, lines, counts), len(content))
    proof = prove(content, ends_of(Path(home, "checkpoint")), [row_of(record) for record in records(counts)])
    check(proof.holds, "another driver went on from the checkpoint, to the end; the second log beside plain Python:\n"
                       "    batches {}, rows {:,}, lost {}, doubled {}, words {:,}, wrong {}".format(*proof))
    jobs(spark, home, lines, counts, content)
    spark.stop()


def main(*words: str) -> None:
    """Set up, run the demo, clean up."""
    if words[:1] == ("--first",):
        home, lines, counts = words[1:]
        query = word_count(session(home), home, lines, counts, KILL_BATCH)
        print("begun", flush=True)
        query.awaitTermination()
        return
    text = Path(words[0]) if words else TEXT
    content = text.read_bytes().removesuffix(b"\n").split(b"\n")
    if len(content) < LINES_MIN:
        raise SystemExit(f"{text} has {len(content)} lines: {LINES_MIN} or more are needed to kill Spark in the middle")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s, base = time.monotonic(), free_base_port(2 * SIZE)
    with tempfile.TemporaryDirectory(prefix="alpo-demo-", ignore_cleanup_errors=True) as home:
        first, second = logs = [LocalCluster.create(Path(home, f"log-{at}"), SIZE, base + SIZE * at) for at in (0, 1)]
        try:
            for log in logs:
                log.spawn(log.servers)
            print(f"Two logs, {SIZE} servers each; {text.name} flows into the first, {PACE:.0f} lines a second:")
            demo(home, first.addresses, second.addresses, content)
        except BaseException:
            said = Path(home, "spark.log")
            print(*said.read_text("utf-8", "replace").splitlines()[-15:] if said.exists() else (), sep="\n")
            raise
        finally:
            for log in logs:
                log.stop(grace_s=0.0)  # the directory goes too: no handover is needed
    took_s = time.monotonic() - began_s
    print(f"Exactly once through a killed Spark: nothing lost, nothing doubled. {took_s:.0f} s in all.")


if __name__ == "__main__":
    main(*sys.argv[1:])
