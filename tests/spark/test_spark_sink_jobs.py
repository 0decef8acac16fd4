"""Writing from Spark otherwise than by a stream: jobs, numbered jobs, foreachBatch, direct; and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from harness import cluster
from sink_jobs import write_in_every_way

from alpo import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(240)
@pytest.mark.trio
async def test_every_way_to_write(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"payload_bytes_max": 512, "batch_bytes_max": 2048}
    async with cluster(tmp_path, 3, settings=settings) as running:
        await running.level()
        said = await trio.to_thread.run_sync(write_in_every_way, spark, running.addresses, tmp_path)
        async with connect(running.addresses) as log:
            records = [(record.client, record.payload.decode()) async for record in log.read()]
    counts = Counter(payload for _, payload in records)
    there = Counter(payload.rpartition("-")[0] for payload in counts)
    assert {payload for payload, count in counts.items() if count != 1} == set()
    for tag, number in {"plain": 100, "txn": 100, "txn-dir": 100, "direct": 100, "binary": 10}.items():
        assert (there[tag], said[tag]) == (number, ""), said
    for tag in ("each", "each-dir"):
        assert there[tag] >= 150 and there[tag] % 50 == 0 and said[tag] == "", said
    assert {client for client, payload in records if payload.startswith("txn-")} >= {"spark:txn", "spark:txn-dir"}
    assert there["large"] == 0 and "give checkpointLocation" in said["large"]
    assert "These rows have payload string, n int" in said["two columns"]
    assert "a payload is NULL" in said["null"]
    assert 'write with .mode("append")' in said["overwrite"]
    assert (said["plans"], said["plansfile://"]) == ("True", "False")
