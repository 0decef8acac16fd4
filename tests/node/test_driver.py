"""The order in which the driver must act, shown with a scripted replica."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from driver_kit import Recorder, Told, envelope, write
from node_rig import until

from alpo.core.disk import Load, Write
from alpo.core.ready import Alarm, OutOfOrder, Persisted, Ready, Stop, Tick
from alpo.core.requests import Initialised
from alpo.node.poller import Sharers, Suspension
from alpo.storage.writer import After


@pytest.mark.trio
async def test_what_may_leave_at_once_leaves_before_the_write_and_the_rest_after_it() -> None:
    replica = Told(Ready(send=[envelope(1)], write=write(1), send_after_write=[envelope(2)]))
    rec = Recorder(replica)
    rec.driver.post(Tick())
    rec.driver.kick()
    assert rec.did == [("send", [1]), ("write", 1)]
    rec.commit(1)
    assert rec.did == [("send", [1]), ("write", 1), ("send", [2])]
    await trio.testing.wait_all_tasks_blocked()
    assert replica.steps == [[Tick()], [Persisted(1)]]


@pytest.mark.trio
async def test_messages_wait_for_their_own_write_and_every_one_before_it() -> None:
    replica = Told(
        Ready(write=write(1), send_after_write=[envelope(1)]),
        Ready(write=write(2), send_after_write=[envelope(2), envelope(3)]),
    )
    rec = Recorder(replica)
    for _ in range(2):
        rec.driver.post(Tick())
        rec.driver.pump()
    assert rec.did == [("write", 1), ("write", 2)]
    rec.commit(1)
    assert rec.did[2:] == [("send", [1])]
    rec.commit(2)
    assert rec.did[3:] == [("send", [2, 3])]


@pytest.mark.trio
async def test_one_report_for_several_writes_releases_them_all_before_the_step_that_hears_of_it() -> None:
    replica = Told(
        Ready(write=write(1), send_after_write=[envelope(1)]),
        Ready(write=write(2), send_after_write=[envelope(2)]),
        Ready(send=[envelope(3)]),
    )
    rec = Recorder(replica)
    for _ in range(2):
        rec.driver.post(Tick())
        rec.driver.pump()
    rec.commit(2)
    await trio.testing.wait_all_tasks_blocked()
    assert rec.did[2:] == [("send", [1]), ("send", [2]), ("send", [3])]
    assert replica.steps[2:] == [[Persisted(2)]]


@pytest.mark.trio
async def test_an_alarm_is_never_acted_on() -> None:
    load = Load(1, 1, 1, 1)
    replica = Told(Ready(alarm="broken", send=[envelope(1)], write=write(1), loads=[load]))
    rec = Recorder(replica)
    ended = trio.Event()
    rec.driver.on_failure = ended.set
    rec.driver.post(Tick())
    rec.driver.kick()
    assert rec.did == [] and ended.is_set() and isinstance(rec.driver.failure, Alarm)
    rec.driver.post(Stop())
    rec.driver.kick()
    assert len(replica.steps) == 1


@pytest.mark.trio
async def test_nothing_waits_for_a_write_that_is_not_made() -> None:
    rec = Recorder(Told(Ready(send=[envelope(1)], send_after_write=[envelope(2)])))
    rec.driver.post(Tick())
    rec.driver.kick()
    assert rec.did == [] and isinstance(rec.driver.failure, OutOfOrder)


@pytest.mark.trio
async def test_inputs_gather_while_a_write_is_under_way(nursery: trio.Nursery) -> None:
    replica = Told(Ready(write=write(1)))
    rec = Recorder(replica)
    nursery.start_soon(rec.driver.run)
    rec.driver.post(Tick())
    rec.driver.kick()
    for _ in range(5):
        rec.driver.post(Tick())
        rec.driver.kick()
    assert len(replica.steps) == 1
    await until(lambda: len(replica.steps) == 2)
    assert replica.steps[1] == [Tick()] * 5


@pytest.mark.trio
async def test_what_is_posted_by_an_answer_is_stepped_by_the_one_who_steps() -> None:
    """Re-entrant kicks make no nested step."""
    depth: list[int] = []

    class Asker:
        def answer(self, _reply: Any) -> None:
            depth.append(len(replica.steps))
            rec.driver.post(Stop())
            rec.driver.kick()
            depth.append(len(replica.steps))

        def flush(self) -> None:
            depth.append(-1)

    replica = Told(Ready(replies=[Initialised(Asker())]))
    rec = Recorder(replica)
    rec.driver.post(Tick())
    rec.driver.kick()
    assert depth == [1, 1, -1]
    assert replica.steps == [[Tick()], [Stop()]]


@pytest.mark.trio
async def test_deadlines_that_move_later_and_earlier_are_kept(nursery: trio.Nursery) -> None:
    replica = Told()
    rec = Recorder(replica)
    nursery.start_soon(rec.driver.keep_time)
    await trio.testing.wait_all_tasks_blocked()
    replica.script = [Ready(deadline_s=trio.current_time() + 0.01)]
    rec.driver.post(Stop())
    rec.driver.kick()
    await until(lambda: replica.ticks == 1)


@pytest.mark.trio
async def test_a_timer_that_every_heartbeat_moves_wakes_nobody(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    replica = Told()
    rec = Recorder(replica)
    nursery.start_soon(rec.driver.keep_time)
    await trio.testing.wait_all_tasks_blocked()
    timer = rec.driver._timer.scope
    replica.steps.clear()
    for _ in range(50):
        replica.script = [Ready(deadline_s=trio.current_time() + 0.5)]
        rec.driver.post(Stop())
        rec.driver.kick()
        await trio.sleep(0.1)
    ticks = [replica.ticks]
    assert rec.driver._timer.scope is timer
    await trio.sleep(0.5)
    assert [*ticks, replica.ticks] == [0, 1]


@pytest.mark.trio
async def test_room_is_told_of_when_bytes_become_fewer() -> None:
    replica = Told()
    rec = Recorder(replica)
    waited: list[bool] = []

    async def wait() -> None:
        while rec.driver.full:
            await rec.driver.room.park()
        waited.append(True)

    replica.inflight_bytes = 90
    rec.driver.post(Tick(), 20)
    assert rec.driver.full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not waited
        rec.driver.pump()
        await trio.testing.wait_all_tasks_blocked()
        assert waited


@pytest.mark.trio
async def test_the_room_is_that_of_all_logs_together() -> None:
    one, other = Told(), Told()
    drivers = [Recorder(one).driver, Recorder(other).driver]
    bound = drivers[0].inflight_bytes_max
    for driver in drivers:
        driver.sharers = Sharers(drivers)
    one.inflight_bytes = bound
    assert not drivers[0].full and not drivers[1].full
    other.inflight_bytes = bound // 2
    assert drivers[0].full and not drivers[1].full, "a log within its part has room"
    other.inflight_bytes += 1
    assert drivers[1].full
    one.inflight_bytes = 0
    assert not drivers[0].full and not drivers[1].full


@pytest.mark.trio
async def test_order_holds_for_any_script() -> None:
    """Messages leave when the write that they wait for is on disk, and none before, in random scripts."""

    def run(seed: int) -> None:
        rng = random.Random(seed)
        number, held = 0, []
        script = []
        for term in range(30):
            ready = Ready()
            if rng.random() < 0.6:
                number += 1
                ready.write = write(number)
                if rng.random() < 0.8:
                    ready.send_after_write = [envelope(term)]
                    held.append((number, term))
            script.append(ready)
        rec = Recorder(Told(*script))
        durable = 0
        for _ in range(30):
            rec.driver.post(Tick())
            rec.driver.pump()
            submitted = max((n for what, n in rec.did if what == "write"), default=0)
            if submitted > durable and rng.random() < 0.4:
                durable = rng.randint(durable + 1, submitted)
                rec.commit(durable)
            sent = [term for what, terms in rec.did if what == "send" for term in terms]
            assert sent == [term for n, term in held if n <= durable]

    for seed in range(200):
        run(seed)


@pytest.mark.trio
async def test_a_report_that_nothing_waits_for_costs_no_step_of_its_own() -> None:
    replica = Told(Ready(write=write(1), send_after_write=[envelope(1)]))
    replica.waits = (Persisted,)
    rec = Recorder(replica)
    rec.driver.post(Tick())
    rec.driver.pump()
    rec.commit(1)
    await trio.testing.wait_all_tasks_blocked()
    assert rec.did == [("write", 1), ("send", [1])], "what waited leaves all the same"
    assert len(replica.steps) == 1
    rec.driver.post(Tick())
    rec.driver.kick()
    assert replica.steps[1:] == [[Persisted(1), Tick()]]


@pytest.mark.trio
async def test_a_running_driver_hands_its_writes_over_at_the_end_of_the_pass_in_order() -> None:
    rec = Recorder(Told(*(Ready(write=write(n)) for n in range(1, 5))))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rec.driver.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            rec.driver.post(Tick())
            rec.driver.pump()
        assert rec.did == []
        await trio.lowlevel.checkpoint()
        assert rec.did == [("write", 1), ("write", 2)]
        rec.driver.post(Tick())
        rec.driver.pump()
        nursery.cancel_scope.cancel()
    assert rec.did[2:] == [("write", 3)], "none is left behind"
    rec.driver.post(Tick())
    rec.driver.pump()
    assert rec.did[3:] == [("write", 4)], "nobody comes for it at the end of the pass any more"


@pytest.mark.trio
async def test_a_write_that_cannot_be_handed_over_ends_the_server() -> None:
    rec = Recorder(Told(Ready(write=write(1)), Ready(write=write(2))))
    ended = trio.Event()
    rec.driver.on_failure = ended.set

    def refuse(_write: Write, _after: After) -> None:
        raise MemoryError

    rec.driver._submit = refuse
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rec.driver.run)
        await trio.testing.wait_all_tasks_blocked()
        rec.driver.post(Tick())
        rec.driver.pump()
        with trio.fail_after(20):
            await ended.wait()
        nursery.cancel_scope.cancel()
    assert isinstance(rec.driver.failure, MemoryError)


def test_a_suspension_is_told_once_and_a_clock_that_was_set_is_none() -> None:
    boot_s = 1_000.0
    suspension = Suspension(lambda: boot_s)
    assert suspension.look(10**12, 50.0) == 0.0
    boot_s += 10
    assert suspension.look(10**12 + 10_000, 60.0) == 0.0
    boot_s += 8 * 3600 + 1
    assert suspension.look(10**12 + 11_000 + 8 * 3_600_000, 61.0) == pytest.approx(8 * 3600)
    boot_s += 1
    assert suspension.look(10**12 + 12_000 + 8 * 3_600_000, 62.0) == 0.0
    boot_s += 1
    assert suspension.look(2 * 10**12, 63.0) == 0.0, "set by hand: the host was awake"
