"""Inputs that the driver steps together, and the thread that commits the resulting writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from driver_kit import Recorder, Told, envelope, write

from alpo.core.ready import Input, Ready, Stop, Tick
from alpo.core.requests import AppendRun, Initialised
from alpo.node import driver as driver_module
from alpo.node.poller import Sharers


def leading() -> SimpleNamespace:
    return SimpleNamespace(serving=SimpleNamespace(unanswered=0), changes=SimpleNamespace(pending=None))


@pytest.mark.trio
async def test_lone_writes_in_a_row_are_committed_here_and_others_by_the_writer() -> None:
    replica = Told()
    rec = Recorder(replica)
    rec.commits_here = True
    replica.reign = leading()

    def append(id: int, *more: int) -> str:
        """Step a write of these entries; everything before it is guaranteed. Return the committing thread's name."""
        replica.guaranteed_id = id - 1
        replica.script = [Ready(write=write(id, id, *more), send_after_write=[envelope(id)])]
        rec.driver.post(Tick())
        rec.driver.pump()
        if rec.did[-1][0] == "write":
            rec.commit(id)
            return "writer"
        assert rec.did[-2:] == [("commit", id), ("send", [id])]
        return "here"

    lone = driver_module._LONE_WRITES
    assert [append(id) for id in range(1, lone + 3)] == ["writer"] * lone + ["here"] * 2
    assert append(lone + 3, lone + 4) == "here", "a small group"
    many = driver_module._GROUP_ENTRIES_MAX
    assert append(20, *range(21, 21 + many)) == "writer", "a large one"
    assert [append(id) for id in range(120, 120 + lone + 1)] == ["writer"] * lone + ["here"]
    replica.inflight_bytes = 100
    assert append(140) == "writer", "others are under way"
    replica.inflight_bytes, replica.reign = 0, None
    assert [append(id) for id in range(150, 150 + lone + 1)] == ["writer"] * lone + ["here"], "as a follower too"


@pytest.mark.trio
async def test_answers_leave_before_a_commit_here_holds_the_loop_up() -> None:
    replica = Told()
    rec = Recorder(replica)
    rec.commits_here = True

    class Asker:
        def answer(self, _reply: Any) -> None:
            rec.did.append(("answer", replica.guaranteed_id))

        def flush(self) -> None:
            """Do nothing: it has left."""

    reply = Initialised(Asker())
    for id in range(1, driver_module._LONE_WRITES + 2):
        replica.script = [Ready(write=write(id, id), replies=[reply] * (id > driver_module._LONE_WRITES))]
        rec.driver.post(Tick())
        rec.driver.pump()
        rec.commit(id)
    assert rec.did[-2:] == [("answer", 0), ("commit", id)]


@pytest.mark.trio
async def test_what_was_gathered_leaves_before_a_commit_here_and_none_is_made_beside_another_logs_write() -> None:
    replica, other = Told(), Recorder(Told())
    rec = Recorder(replica)
    rec.commits_here = True
    replica.reign = leading()
    drivers = [rec.driver, other.driver]
    sharers = Sharers(drivers)
    for driver in drivers:
        driver.sharers = sharers
        driver.flush = lambda: rec.did.append(("flush", None))

    def append(id: int) -> list[tuple[str, Any]]:
        replica.guaranteed_id = id - 1
        replica.script = [Ready(write=write(id, id), send_after_write=[envelope(id)])]
        rec.did.clear()
        rec.driver.post(Tick())
        rec.driver.pump()
        if rec.submitted:
            rec.commit(id)
        return rec.did

    lone = driver_module._LONE_WRITES
    for id in range(1, lone + 1):
        assert append(id) == [("flush", None), ("write", id), ("send", [id])]
    assert append(lone + 1) == [("flush", None), ("commit", lone + 1), ("send", [lone + 1])]
    cast(Told, other.driver.replica).script = [Ready(write=write(1, 1))]
    other.driver.post(Tick())
    other.driver.pump()
    assert append(lone + 2)[1] == ("write", lone + 2), "the other log's write is under way"
    other.commit(1)
    assert append(lone + 3)[1] == ("commit", lone + 3)


@pytest.mark.trio
async def test_an_error_at_the_end_of_a_pass_stops_the_driver_and_silences_nobody() -> None:
    rec = Recorder(Told())
    failed = trio.Event()
    rec.driver.on_failure = failed.set

    def flush() -> None:
        raise MemoryError("no room to join what is sent")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rec.driver.run)
        await trio.testing.wait_all_tasks_blocked()
        rec.driver.flush = flush
        await failed.wait()
        assert isinstance(rec.driver.failure, MemoryError)
        nursery.cancel_scope.cancel()


RUN = AppendRun(None, "c", 0, 1, [(1, b"")], False)


async def collecting(nursery: trio.Nursery) -> tuple[Told, Callable[[], int], Callable[[Input], None]]:
    """A leader; a function that brings an append, and returns the number of steps so far; one that brings another
    input."""
    replica = Told()
    rec = Recorder(replica)
    nursery.start_soon(rec.driver.keep_time)
    nursery.start_soon(rec.driver.run)
    await trio.testing.wait_all_tasks_blocked()
    replica.reign = leading()

    def bring(item: Input) -> None:
        rec.driver.post(item)
        rec.driver.kick(at_once=True)

    def append() -> int:
        bring(RUN)
        return len(replica.steps)

    return replica, append, bring


@pytest.mark.trio
async def test_appends_wait_for_as_many_as_are_under_way_and_for_what_answers_those(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    replica, append, bring = await collecting(nursery)
    assert append() == 1, "a client that is alone never waits"
    replica.reign.serving.unanswered = replica.last_id = 3
    assert [append() for _ in range(3)] == [1, 1, 2]
    assert replica.steps[1] == [RUN] * 3
    assert append() == 2
    bring(Stop())
    assert replica.steps[2:] == [[Stop()]], "it answers nothing"
    replica.counted[Stop()] = 2
    bring(Stop())
    assert replica.steps[3:] == [[Stop(), RUN]], "as many wait as are left"
    assert append() == 4
    await trio.sleep(3 * driver_module._GRAIN_S)
    assert replica.steps[4:] == [[RUN]], "nothing else came"


@pytest.mark.trio
async def test_appends_wait_until_a_crowd_is_answered_unless_that_takes_long(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    replica, append, bring = await collecting(nursery)
    crowd, serving = driver_module._CROWD, replica.reign.serving
    serving.unanswered = replica.last_id = crowd
    assert [append() for _ in range(crowd)] == [0] * (crowd - 1) + [1], "they were few before"
    serving.unanswered = replica.last_id = 2
    assert {append() for _ in range(3 * crowd)} == {1}
    replica.counted[Stop()] = 1
    bring(Stop())
    assert replica.steps[1:] == [[Stop()]], "one is left"
    replica.counted[Stop()] = 2
    bring(Stop())
    assert replica.steps[2:] == [[Stop(), *[RUN] * (3 * crowd)]], "all are answered"
    assert append() == 3
    await trio.sleep(3 * driver_module._GRAIN_S)
    assert replica.steps[3:] == [[RUN]], "it took long"
    assert [append() for _ in range(2)] == [4, 5], "so they wait as those of a few would"
    await trio.sleep(2 * driver_module._LENIENT_S)
    bring(Tick())
    assert {append() for _ in range(3 * crowd)} == {6}, "another try"


@pytest.mark.trio
async def test_a_crowd_is_forgotten(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    replica, append, _ = await collecting(nursery)
    serving = replica.reign.serving
    serving.unanswered = replica.last_id = 30
    assert [append() for _ in range(30)] == [0] * 29 + [1]
    serving.unanswered = 0
    assert [append() for _ in range(8)] == list(range(2, 10)), "nothing is under way"
    serving.unanswered = replica.last_id = 2
    assert [append() for _ in range(2)] == [9, 10]
