"""Spark reads and writes a log whose servers speak TLS alone: options on the driver, files on the executors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tls_rig import tls_cluster

from alpo.spark import append_batch
from alpo.spark.committing import opener
from alpo.spark.options import ReadOptions, WriteOptions
from alpo.spark.origin import SourceError
from alpo.tls import Tls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000


@pytest.mark.trio
async def test_written_by_the_sink_and_read_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    async with tls_cluster(tmp_path) as running:
        def given(stem: str) -> dict[str, str]:
            ca, cert, key = running.tls(stem).files
            return {"servers": running.servers, "tls.ca": ca, "tls.cert": cert, "tls.key": key, "tls.name": "prod"}

        async with opener(WriteOptions.of(given("both"), streaming=False))("spark:tls", "") as writer:
            await writer.append([(serial, [b"%d" % serial]) for serial in range(1, ROWS + 1)])

        def work() -> tuple[int, str]:
            frame: Any = spark.read.format("alpo").options(**given("reader"), recordsPerPartition="100").load()
            other: Any = spark.read.format("alpo").options(**given("billing"))
            return frame.select("payload").distinct().count(), refusal(lambda: other.load().count())

        count, said = await trio.to_thread.run_sync(work)
        assert count == ROWS
        assert "CN=billing (append) may not do this: it takes the role read" in said


@pytest.mark.trio
async def test_append_batch_shows_and_trusts_what_it_is_given(tmp_path: Path, spark: SparkSession) -> None:
    async with tls_cluster(tmp_path) as running:
        def append(batch: int, stem: str) -> None:
            rows = spark.createDataFrame([(f"row-{number}",) for number in range(10)], "payload string")
            append_batch(rows, batch, servers=running.servers, query="each", tls=running.tls(stem))

        def work() -> str:
            for batch in (0, 0, 1):
                append(batch, "both")
            return refusal(lambda: append(2, "reader"))

        said = await trio.to_thread.run_sync(work)
        assert "CN=reader (read) may not do this: it takes the role append" in said
        async with running.connect("reader") as log:
            clients = [record.client async for record in log.read()]
        assert clients == ["spark:each"] * 20


def test_append_batch_leaves_nothing_of_tls_out(spark: SparkSession) -> None:
    """Executors are told files and a name; that a host's name is to be verified, the sink has no option for."""
    tls = Tls("/a", "/b", "/c", verify_hostname=True)
    with pytest.raises(ValueError, match="verify_hostname"):
        append_batch(spark.range(1), 0, servers="h:1", query="each", tls=tls)


def refusal(call: Any) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        call()
    return str(caught.value)


def test_options_name_the_files_and_all_three_of_them() -> None:
    files = {"tls.ca": "/a", "tls.cert": "/b", "tls.key": "/c"}
    assert ReadOptions.of({"servers": "a:1", **files}, streaming=False).tls == Tls("/a", "/b", "/c")
    named = WriteOptions.of({"servers": "a:1", "TLS.Name": "prod", **files}, streaming=False)
    assert named.tls == Tls("/a", "/b", "/c", "prod")
    with pytest.raises(SourceError, match=r"options tls\.ca, tls\.cert and tls\.key: .*ALPO_KEY"):
        ReadOptions.of({"servers": "a:1", "tls.ca": "/a", "tls.cert": "/b"}, streaming=False)
