"""A big batch read in Spark while a replica dies or hangs: decided by a partition that has a third of its rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio
from harness import Cluster, cluster
from probe import until

from alpo import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Pages are of 1 MiB, and one is asked for ahead: of a partition's six, two are not asked for when it has a third.
ROWS, PARTITION, BYTES = 18_000, 6_000, 1_000
WITHIN_S = 60.0


def payload(number: int) -> bytes:
    return b"%06d" % number + b"x" * (BYTES - 6)


def watched(folder: Path, first: int) -> type:
    """The data source; its partition that begins with LSN ``first`` writes a file when it has a third of its rows,
    waits for the test to have done what it does then, goes on, and tells which replicas it has asked. Pickled whole:
    Spark's workers have no test modules."""
    from pyspark.sql.types import StructType

    from alpo.spark.live import ServerOrigin
    from alpo.spark.options import ReadOptions
    from alpo.spark.source import AlpoDataSource, LogReader, columns_of

    third, within_s = PARTITION // 3, WITHIN_S

    class Reader(LogReader):
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            if partition.range.first != first:
                yield from LogReader.read(self, partition)
                return
            asked: list[int] = []
            pages_of = ServerOrigin._pages_of

            def noted(origin: Any, replica: Any, *span: Any) -> Any:
                asked.append(replica)
                return pages_of(origin, replica, *span)

            ServerOrigin._pages_of = noted  # type: ignore[method-assign, assignment]
            try:
                rows = 0
                for batch in LogReader.read(self, partition):
                    yield batch
                    if rows < third <= rows + batch.num_rows:
                        (folder / "third").touch()
                        give_up_s = time.monotonic() + within_s
                        while not (folder / "done").exists():
                            assert time.monotonic() < give_up_s, "the test has not done its part"
                            time.sleep(0.02)
                    rows += batch.num_rows
            finally:
                ServerOrigin._pages_of = pages_of  # type: ignore[method-assign]
            (folder / "asked").write_text(json.dumps(asked), "utf-8")

    class Watched(AlpoDataSource):
        @classmethod
        def name(cls) -> str:
            return "alpo-watched"

        def reader(self, schema: StructType) -> Reader:
            return Reader(ReadOptions.of(self.options, streaming=False), columns_of(schema))

    return Watched


async def filled(running: Cluster) -> None:
    async with connect(running.addresses, timeout_s=60) as log:
        for begin in range(0, ROWS, 200):
            await log.append_batch([payload(number) for number in range(begin, begin + 200)])
    await running.level()


@pytest.mark.parametrize("fault", ["killed", pytest.param("hangs", marks=pytest.mark.soak)])
@pytest.mark.trio
async def test_a_replica_that_fails_in_the_middle_of_a_job(spark: SparkSession, tmp_path: Path, fault: str) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        await running.level()
        await filled(running)
        victim = running.others(await running.leader())[0]
        first = 1 + PARTITION * (victim - 1)  # partitions begin with the servers in turn
        spark.dataSource.register(watched(tmp_path, first))
        frame = (
            spark.read.format("alpo-watched").option("servers", running.addresses)
            .option("recordsPerPartition", PARTITION).load()
        )
        found: list[tuple[int, bytes]] = []

        async def job() -> None:
            rows = await trio.to_thread.run_sync(frame.select("lsn", "payload").collect)
            found.extend(sorted((row.lsn, bytes(row.payload)) for row in rows))

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job)
                await until(trio.Path(tmp_path / "third").exists, WITHIN_S)
                if fault == "killed":
                    running.servers[victim].kill()
                else:
                    running.servers[victim].pause()
                (tmp_path / "done").touch()
        finally:
            (tmp_path / "done").touch()  # a job in a thread cannot be cancelled
            running.servers[victim].resume()
    asked = json.loads((tmp_path / "asked").read_text("utf-8"))
    assert asked[0] == victim and asked[-1] != victim, asked
    assert found == [(number + 1, payload(number)) for number in range(ROWS)]
