"""A bound on bytes a second."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from alpo.node.pace import Pace


def held_s(pace: Pace, sizes: list[int], between_s: float = 0.0) -> list[float]:
    """Virtual seconds that each is held up."""
    async def main() -> list[float]:
        found = []
        for size in sizes:
            start_s = trio.current_time()
            await pace.keep(size)
            found.append(trio.current_time() - start_s)
            await trio.sleep(between_s)
        return found

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_each_waits_until_those_before_it_are_paid_for() -> None:
    assert held_s(Pace(1000), [500, 2000, 1, 1]) == pytest.approx([0, 0.5, 2, 0.001])


def test_time_that_nobody_used_is_not_saved_up() -> None:
    assert held_s(Pace(1000), [500, 500, 500], between_s=10) == [0, 0, 0]


def test_without_a_bound_nothing_waits() -> None:
    assert held_s(Pace(0), [1 << 40] * 3) == [0, 0, 0]


def test_nothing_is_held_up_for_longer_than_it_may() -> None:
    """And what is not paid for then is forgotten."""
    assert held_s(Pace(1000, 3), [9000, 2000, 1]) == [0, 3, 0]
    assert held_s(Pace(1000, 3), [9000, 1], between_s=3) == [0, 0]
