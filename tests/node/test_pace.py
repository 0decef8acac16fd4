"""A bound on bytes a second."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from alpo.node.threads import Pace

pytestmark = pytest.mark.trio


async def held_s(pace: Pace, sizes: list[int], between_s: float = 0.0) -> list[float]:
    """Virtual seconds that each is held up."""
    found = []
    for size in sizes:
        start_s = trio.current_time()
        await pace.keep(size)
        found.append(trio.current_time() - start_s)
        await trio.sleep(between_s)
    return found


async def test_each_waits_until_those_before_it_are_paid_for(autojump_clock: MockClock) -> None:
    assert await held_s(Pace(1000), [500, 2000, 1, 1]) == pytest.approx([0, 0.5, 2, 0.001])


async def test_time_that_nobody_used_is_not_saved_up(autojump_clock: MockClock) -> None:
    assert await held_s(Pace(1000), [500, 500, 500], between_s=10) == [0, 0, 0]


async def test_without_a_bound_nothing_waits(autojump_clock: MockClock) -> None:
    assert await held_s(Pace(0), [1 << 40] * 3) == [0, 0, 0]


async def test_nothing_is_held_up_for_longer_than_it_may(autojump_clock: MockClock) -> None:
    """A wait is 3 s at most, and the rest of the debt is forgotten."""
    assert await held_s(Pace(1000, 3), [9000, 2000, 1]) == [0, 3, 0]
    assert await held_s(Pace(1000, 3), [9000, 1], between_s=3) == [0, 0]
