"""A stream in Spark from live servers, across a trim: it reads all payloads with an archive, and fails without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alpo_command import Alpo, until

from alpo.spark.jobs.archiving import archive
from alpo.spark.jobs.fan import run_here
from alpo.spark.live import ServerOrigin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append(alpo: Alpo, first: int, last: int) -> None:
    alpo.out("append", "--wait", "everyone", stdin=b"".join(b"%d\n" % n for n in range(first, last + 1)))


def test_across_a_trim(spark: SparkSession, alpo: Alpo, tmp_path: Path) -> None:
    def run(**options: str) -> list[tuple[int, str]]:
        """Read from the checkpoint to the end of the log."""
        seen: list[tuple[int, str]] = []
        query = (
            spark.readStream.format("alpo").option("servers", alpo.servers).option("startingLsn", "earliest")
            .option("recordsPerPartition", "7").options(**options).load()
            .writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda frame, _: seen.extend((row.lsn, row.payload.decode()) for row in frame.collect()))
            .start()
        )
        query.awaitTermination()
        return sorted(seen)

    def due(first: int, last: int) -> list[tuple[int, str]]:
        return [(lsn, str(lsn)) for lsn in range(first, last + 1)]

    append(alpo, 1, 20)
    assert run() == due(1, 20)
    append(alpo, 21, 60)
    archive(ServerOrigin(tuple(alpo.servers.split(","))), tmp_path / "archive", 16, 50, run_here)
    alpo.run("trim", "--before", "41")
    until(lambda: all(m["first_lsn"] == 41 for m in alpo.lines("status")[0]["members"]))  # on followers later
    with pytest.raises(Exception, match="ALPO_DATA_LOSS: payloads 21 to 40"):
        run()
    assert run(archivePath=str(tmp_path / "archive")) == due(21, 60), "nothing was given up"
    append(alpo, 61, 70)
    assert run() == due(61, 70)
