"""Lets the tests of this folder import `store_kit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_kit import Bench, MemoryBench, SqliteBench


@pytest.fixture(autouse=True)
def _whole_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no busy machine end a range of the scrub by its time."""
    monkeypatch.setattr("alpo.storage.scrub.STRETCH_S", 60.0)


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Either store, so that both are held to one contract."""
    bench: Bench = MemoryBench() if request.param == "memory" else SqliteBench(tmp_path / "data")
    yield bench
    bench.store.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteBench]:
    bench = SqliteBench(tmp_path / "data")
    yield bench
    bench.store.close()
