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


@pytest.mark.parametrize(("servers", "seconds", "logs"), [
    (3, 10, 0), pytest.param(3, 60, 2, marks=pytest.mark.soak), pytest.param(5, 20, 0, marks=pytest.mark.soak),
])
def test_soak(servers: int, seconds: int, logs: int) -> None:
    seed = seed_of_many_kinds(servers, seconds)
    result = soak.run(servers, seconds, seed, print, logs=logs)
    assert not result.violations
    assert result.faults
    assert all(history.reads and history.followed for history in result.histories)
