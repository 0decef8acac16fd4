"""The pace at which a leader reads its log for servers that are behind."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from alpo.core.entries import Kind, seal
from alpo.node.loader import STUCK_S, CatchUpPace
from alpo.node.threads import Pace
from alpo.storage.scrub import ROW_BYTES

BODY_BYTES = 900
LOAD = [seal(n, 1, Kind.DATA, 0, n, bytes(BODY_BYTES), client="c", serial=n, count=1) for n in range(1, 11)]
LOAD_S = 10 * (BODY_BYTES + ROW_BYTES) / 1000  # at 1,000 bytes a second


pytestmark = pytest.mark.trio


async def waits(pace: CatchUpPace, loads: int) -> list[float]:
    """Virtual seconds that each load is held up."""
    found = []
    for _ in range(loads):
        start_s = trio.current_time()
        await pace.keep(LOAD)
        found.append(trio.current_time() - start_s)
    return found


async def test_loads_keep_the_rate(autojump_clock: MockClock) -> None:
    assert await waits(CatchUpPace(Pace(1000), lambda: (5, 5)), 3) == pytest.approx([0, LOAD_S, LOAD_S])


async def test_without_a_bound_nothing_waits(autojump_clock: MockClock) -> None:
    assert await waits(CatchUpPace(Pace(0), lambda: (5, 5)), 3) == [0, 0, 0]


async def test_the_rate_is_kept_while_appends_get_through(autojump_clock: MockClock) -> None:
    guaranteed = iter(range(1, 9))
    assert await waits(CatchUpPace(Pace(1000), lambda: (next(guaranteed), 9)), 3) == pytest.approx([0, LOAD_S, LOAD_S])


async def test_nothing_waits_while_appends_wait_for_those_who_are_behind(autojump_clock: MockClock) -> None:
    assert LOAD_S > STUCK_S
    assert await waits(CatchUpPace(Pace(1000), lambda: (5, 9)), 4) == pytest.approx([0, LOAD_S, 0, 0])
