"""One Spark for all tests of a run: two cores of this machine, quick to begin, nothing written beside the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alpo_command import Alpo, cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "1", "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session", autouse=True)
def _modules_in_memory() -> None:
    """Import what Spark's Python workers import: Spark gives a worker 10 s to start, and from a cold disk, beside other
    tests, the first import may take longer."""
    modules = "import pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker"
    subprocess.run([sys.executable, "-c", modules], check=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,3]").appName("tests")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = (
        builder.config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def alpo(tmp_path: Path) -> Iterator[Alpo]:
    """Two servers: an archive is checked against a second one."""
    with cluster(tmp_path / "cluster", 2) as alpo:
        yield alpo
