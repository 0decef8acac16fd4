"""A stream in Spark that finds its log trimmed, or another log: it does not pass over payloads in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_kit import CLUSTER, FileLog

from alpo.spark.archive import extend_manifest, write_file
from alpo.spark.columns import ARROW
from alpo.spark.files import FileOrigin
from alpo.spark.origin import Range
from alpo.spark.reading import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    """Payloads 1 … 20."""
    log = FileLog(tmp_path / "data")
    log.append([[b"%d" % lsn] for lsn in range(1, 21)])
    yield log
    log.close()


def run(spark: SparkSession, log: FileLog, checkpoint: Path, **options: str) -> list[int]:
    """The stream, from its checkpoint to the end of the log: the LSNs it gives."""
    seen: list[int] = []
    query = (
        spark.readStream.format("alpo").option("path", log.path).option("startingLsn", "earliest").options(**options)
        .load().writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda frame, _: seen.extend(row.lsn for row in frame.select("lsn").collect())).start()
    )
    query.awaitTermination()
    return sorted(seen)


@pytest.mark.parametrize("kept", ["nothing", "archived", "allowed"])
def test_a_trim_between_two_runs(spark: SparkSession, log: FileLog, tmp_path: Path, kept: str) -> None:
    checkpoint, archive = tmp_path / "checkpoint", tmp_path / "archive"
    assert run(spark, log, checkpoint) == list(range(1, 21))
    log.append([[b"%d" % lsn] for lsn in range(21, 41)])
    archive.mkdir()
    first = Range(1, 35, 0)
    batches = rows_of(FileOrigin(log.path), first, ARROW.names, True)
    extend_manifest(archive, CLUSTER.hex(), [write_file(archive, first, batches)])
    log.clean(30)
    if kept == "archived":
        assert run(spark, log, checkpoint, archivePath=str(archive)) == list(range(21, 41))
    elif kept == "allowed":
        assert run(spark, log, checkpoint, failOnDataLoss="false") == list(range(31, 41))
    else:
        with pytest.raises(Exception, match="ALPO_DATA_LOSS: payloads 21 to 30"):
            run(spark, log, checkpoint)
        assert run(spark, log, checkpoint, archivePath=str(archive)) == list(range(21, 41)), "nothing was given up"


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_checkpoint_of_another_cluster(spark: SparkSession, log: FileLog, tmp_path: Path, fails: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, log, checkpoint)
    offset = checkpoint / "offsets" / "0"
    before = offset.read_text("utf-8")
    offset.write_text(before.replace(CLUSTER.hex(), "ab" * 16), "utf-8")
    assert before.count(CLUSTER.hex()) == 1
    offset.with_name(".0.crc").unlink()
    log.append([[b"more"]])
    with pytest.raises(Exception, match="ALPO_OTHER_LOG"):
        run(spark, log, checkpoint, failOnDataLoss=fails)
