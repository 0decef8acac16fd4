"""`make soak` in short: random faults against real servers, then every promise checked. The slowest tests there are."""

from __future__ import annotations

import random

import pytest
import soak


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("servers", "seconds"), [(3, 60), (5, 20)])
def test_soak(servers: int, seconds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    result = soak.run(servers, seconds, seed, print)
    assert not result.violations
    assert result.faults and result.history.reads
    assert result.last_lsn > 0
