"""Retries: the pauses between tries, the time of each, and which errors end them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from alpo.client.retry import AGAIN_S, PAUSE_FIRST_S, PAUSE_MAX_S, Again, Clock, Pauses, patiently, retried
from alpo.errors import AlpoError, Overloaded, ProtocolError, Refused, Unavailable


def failing(*errors: AlpoError) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """A step that raises each of these errors, then returns; and the times at which it was called."""
    left, called_s = iter(errors), list[float]()

    async def step() -> str:
        called_s.append(trio.current_time())
        for error in left:
            raise error
        return "done"

    return step, called_s


def test_pauses_begin_with_none_and_double_up_to_a_bound() -> None:
    pauses = Pauses()
    taken_s = [pauses.take_s() for _ in range(8)]
    assert taken_s[:3] == [0.0, PAUSE_FIRST_S, 2 * PAUSE_FIRST_S] and taken_s[-1] == PAUSE_MAX_S
    pauses.next_s = 0.0
    assert pauses.take_s() == 0.0
    short = Pauses(PAUSE_FIRST_S)
    assert [short.take_s(0.03) for _ in range(3)] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 0.03]


@pytest.mark.trio
async def test_each_attempt_may_take_twice_as_long(autojump_clock: trio.testing.MockClock) -> None:
    given_s: list[float] = []

    async def attempt(seconds: float) -> int:
        given_s.append(seconds)
        if len(given_s) < 4:
            raise Again
        return len(given_s)

    assert await retried(attempt, 10.0, 0.5) == 4
    assert given_s == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.trio
async def test_attempts_end_with_the_time(autojump_clock: trio.testing.MockClock) -> None:
    async def attempt(seconds: float) -> None:
        raise Again(Unavailable("not yet"))

    with pytest.raises(TimeoutError):
        await retried(attempt, 3.0)
    assert trio.current_time() == pytest.approx(3.0)


@pytest.mark.trio
async def test_what_passes_is_tried_again_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    clock = Clock(random.Random(1))
    step, called_s = failing(Unavailable("no"), Overloaded("no"))
    assert await patiently(clock, step) == "done"
    assert called_s == pytest.approx([0.0, AGAIN_S, 2 * AGAIN_S])
    step, called_s = failing(Refused("no"))
    with pytest.raises(Refused):
        await patiently(clock, step)
    step, called_s = failing(ProtocolError("no"))
    with pytest.raises(ProtocolError):
        await patiently(clock, step, lasting=(ProtocolError,))
    assert len(called_s) == 1


@pytest.mark.trio
async def test_the_last_error_is_raised_once_no_time_is_left(autojump_clock: trio.testing.MockClock) -> None:
    step, called_s = failing(*(Unavailable(f"no {number}") for number in range(9)))
    with pytest.raises(Unavailable, match="no 3"):
        await patiently(Clock(random.Random(1)), step, lambda: 2.5 * AGAIN_S - trio.current_time())
    assert called_s == pytest.approx([0.0, AGAIN_S, 2 * AGAIN_S, 2.5 * AGAIN_S])
