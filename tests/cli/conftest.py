"""A cluster of three real servers for each module that wants one, and the command that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alpo_command import Alpo, cluster
from store_kit import SqliteBench


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the commands' caches: not the user's own."""
    path = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteBench]:
    bench = SqliteBench(tmp_path / "data")
    yield bench
    bench.store.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def alpo(directory: Path) -> Iterator[Alpo]:
    with cluster(directory) as alpo:
        base = int(alpo.servers.partition(",")[0].partition(":")[2])
        assert alpo.servers == f"127.0.0.1:{base},127.0.0.1:{base + 1},127.0.0.1:{base + 2}"
        yield alpo
