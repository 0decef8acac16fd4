"""Inputs that the driver steps together, and the thread that commits the resulting writes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from driver_kit import Recorder, Told, envelope, write

from alpo.core.ready import Ready, Stop, Tick
from alpo.core.requests import AppendRun
from alpo.node import driver as driver_module


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
    assert append(lone + 3, lone + 4) == "writer", "two entries: a group"
    assert [append(id) for id in range(20, 20 + lone + 1)] == ["writer"] * lone + ["here"]
    replica.inflight_bytes = 100
    assert append(40) == "writer", "others are under way"
    replica.inflight_bytes, replica.reign = 0, None
    assert [append(id) for id in range(50, 50 + lone + 1)] == ["writer"] * lone + ["here"], "as a follower too"


@pytest.mark.trio
async def test_appends_wait_for_as_many_as_are_under_way_or_for_what_answers_those(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    replica = Told()
    rec = Recorder(replica)
    nursery.start_soon(rec.driver.keep_time)
    nursery.start_soon(rec.driver.run)
    await trio.testing.wait_all_tasks_blocked()
    replica.reign = leading()
    run = AppendRun(None, "c", 0, 1, [(1, b"")], False)

    def append() -> int:
        rec.driver.post(run)
        rec.driver.kick(at_once=True)
        return len(replica.steps)

    assert append() == 1, "a client that is alone never waits"
    replica.reign.serving.unanswered = 3
    assert [append() for _ in range(3)] == [1, 1, 2]
    assert replica.steps[1] == [run] * 3
    assert append() == 2
    rec.driver.post(Stop())
    rec.driver.kick(at_once=True)
    assert replica.steps[2] == [run, Stop()], "whatever is stepped takes them along"
    assert append() == 3
    await trio.sleep(2 * driver_module._GRAIN_S)
    assert replica.steps[3] == [run], "nothing else came"
