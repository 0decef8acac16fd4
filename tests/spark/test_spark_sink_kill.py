"""The streaming sink in Spark itself, its driver killed or paused. The whole matrix is `sink_kills.py` (make soak)."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import cluster
from sink_kills import ROWS, SETTINGS, Case, run_case


@pytest.mark.timeout(660)
@pytest.mark.parametrize("case", [
    pytest.param(Case("mid-append", "random"), id="killed"),
    pytest.param(Case("mid-append", "2-3", zombie=True), id="zombie", marks=pytest.mark.soak),
])
@pytest.mark.trio
async def test_a_driver_is_killed_and_another_goes_on(tmp_path: Path, case: Case) -> None:
    async with cluster(tmp_path, 3, settings=SETTINGS) as running:
        verdict = await run_case(running, case, tmp_path / "case")
    assert verdict.good, verdict
    assert 0 < verdict.from_before < ROWS  # it was killed in the middle
