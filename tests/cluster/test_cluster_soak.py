"""`make soak` in short: random faults against real servers, then every promise checked. The slowest tests there are."""

from __future__ import annotations

import random

import pytest
import soak
from faults import kinds_within

CANDIDATES = 2_000


def seed_of_many_kinds(servers: int, seconds: int) -> int:
    """A fresh one whose schedule has as many kinds of faults as can be had in that time."""
    system = random.SystemRandom()
    return max(
        (system.randrange(1 << 32) for _ in range(CANDIDATES)),
        key=lambda seed: len(kinds_within(seed, servers, seconds)),
    )


@pytest.mark.parametrize(("servers", "seconds"), [
    (3, 10), pytest.param(3, 60, marks=pytest.mark.soak), pytest.param(5, 20, marks=pytest.mark.soak),
])
def test_soak(servers: int, seconds: int) -> None:
    seed = seed_of_many_kinds(servers, seconds)
    result = soak.run(servers, seconds, seed, print)
    assert not result.violations
    assert result.faults and result.history.reads
    assert result.last_lsn > 0
