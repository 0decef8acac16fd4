"""Work in threads while the system has none."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import trio
from trio._core import _thread_cache

from alpo.node import threads
from alpo.node.threads import in_thread

pytestmark = pytest.mark.trio


class Room:
    """Switch that lets threads be started or not, and the number of refused ones."""

    def __init__(self) -> None:
        self.some, self.refused = False, 0


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    made, start = Room(), threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if not made.some and thread.name.startswith("Trio thread"):
            made.refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())  # none of an earlier test
    monkeypatch.setattr(threading.Thread, "start", starting)
    monkeypatch.setattr(threads, "_AGAIN_S", 0.001)
    return made


async def test_work_waits_until_a_thread_can_be_started(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(threads, "log", SimpleNamespace(warning=lambda event, why: told.append(event)))
    found: list[int] = []
    turns = trio.CapacityLimiter(1)

    async def work(number: int) -> None:
        found.append(await in_thread(lambda one: 2 * one, number, limiter=turns))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number)
        while room.refused < 10:
            await trio.lowlevel.checkpoint()
        assert not found
        room.some = True
    assert sorted(found) == [0, 2, 4]
    assert told == ["no_threads"]


async def test_an_error_of_the_work_itself_is_the_callers(room: Room) -> None:
    room.some = True

    def work() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError):
        await in_thread(work)
    assert not room.refused


async def test_work_that_waits_for_a_thread_can_be_cancelled(room: Room) -> None:
    with trio.move_on_after(0.05) as scope:
        await in_thread(lambda: None)
    assert scope.cancelled_caught and room.refused


async def test_a_success_of_work_that_lacked_no_thread_ends_no_lack(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that succeeds on a thread of before does not prove that threads can be started again."""
    monkeypatch.setattr(threads._Lack, "told", True)
    room.some = True
    await in_thread(lambda: None)
    assert threads._Lack.told
