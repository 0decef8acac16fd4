"""The poller: groups of what sockets bring, and its own waits while one client appends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing
from driver_kit import Recorder, Told, write
from node_rig import until

from alpo.core.ready import Ready, Stop, Tick
from alpo.node import driver as driver_module
from alpo.node import poller as poller_module
from alpo.node.poller import Owners, Poller, Sharers
from alpo.node.threads import Jobs


class Alone:
    """The user of a poller: ``patience`` is what it answers, and ``did`` what the poller asked, with the time."""

    def __init__(self, patience: Callable[[], float]) -> None:
        self.now_s = self.came_s = 0.0
        self.for_servers = False
        self.patience_s = patience
        self.did: list[str] = []

    def clock_s(self) -> float:
        self.now_s += 0.0005
        return self.now_s

    def take_group(self) -> None:
        self.did.append("group")

    def go_on(self) -> None:
        self.did.append("go on")


async def polled(owner: Alone, sends: int) -> None:
    """Have a poller receive ``sends`` bytes, each sent when the one before was received."""
    poller = Poller(owner)
    here, there = socket.socketpair()
    left = [sends]

    def receive() -> None:
        here.recv(1)
        left[0] -= 1
        if left[0]:
            there.send(b"x")

    with here, there:
        poller.add(here, receive)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            there.send(b"x")
            await until(lambda: not left[0])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        poller.remove(here)
    poller.close()


@pytest.mark.trio
async def test_without_patience_other_tasks_run_after_each_group() -> None:
    owner = Alone(lambda: 0.0)
    await polled(owner, 3)
    assert owner.did == ["group", "go on"] * 3


@pytest.mark.trio
async def test_with_patience_it_waits_by_itself_until_nothing_comes() -> None:
    owner = Alone(lambda: 1.0)
    await polled(owner, 3)
    assert owner.did == ["group", "group", "group", "go on"]


@pytest.mark.trio
async def test_it_goes_on_by_itself_for_a_while_only() -> None:
    owner = Alone(lambda: 1.0)
    await polled(owner, 40)
    in_a_row = round(poller_module._IN_A_ROW_S / 0.0005)
    runs = " ".join(owner.did).split("go on")
    assert max(run.count("group") for run in runs) <= in_a_row + 2 and len(runs) >= 40 // (in_a_row + 2)


@pytest.mark.trio
async def test_only_servers_end_a_wait_for_them_and_all_are_looked_at_after_it(nursery: trio.Nursery) -> None:
    owner = Alone(lambda: 1.0)
    owner.for_servers = True
    poller = Poller(owner)
    (client, of_client), (server, of_server) = socket.socketpair(), socket.socketpair()
    servers = poller._servers

    class Waits:
        def poll(self, wait_s: float) -> list[tuple[int, int]]:
            if owner.did.count("wait") == 2:
                owner.patience_s = lambda: 0.0
            owner.did.append("wait")
            of_client.send(b"x")
            assert not servers.poll(0), "a client ends none"
            of_server.send(b"x")
            return servers.poll(wait_s)

    def receive(sock: socket.socket, name: str) -> None:
        sock.recv(1)
        owner.did.append(name)

    with client, server, of_client, of_server:
        poller.add(client, partial(receive, client, "client"))
        poller.add(server, partial(receive, server, "server"), server=True)
        poller._servers = cast(Any, Waits())
        nursery.start_soon(poller.run)
        of_client.send(b"x")
        await until(lambda: "go on" in owner.did)
        assert owner.did[:2] == ["client", "group"]
        assert [sorted(owner.did[at : at + 4]) for at in (2, 6, 10)] == [["client", "group", "server", "wait"]] * 3
        assert owner.did[14:] == ["go on"]
        poller._servers = servers
        of_server.send(b"x")
        poller.remove(server)
        poller.remove(client)
        assert not servers.poll(0), "it is watched no more"
        nursery.cancel_scope.cancel()
    poller.close()


@pytest.mark.trio
async def test_the_driver_has_patience_only_while_one_client_appends_and_nothing_else_can_run() -> None:
    replica = Told()
    rec = Recorder(replica)
    rec.commits_here = True
    driver = rec.driver
    driver.now_s = 0.0

    def append(id: int, *more: int) -> None:
        replica.guaranteed_id = id - 1
        replica.script = [Ready(write=write(id, id, *more))]
        driver.post(Tick())
        driver.pump()
        if rec.did[-1][0] == "write":
            rec.commit(id)

    for id in range(1, driver_module._LONE_WRITES + 1):
        append(id)
        assert driver.patience_s() == 0.0
    append(20)
    assert driver.patience_s() > 0.0
    driver.task_scheduled(trio.lowlevel.current_task())
    assert driver.patience_s() > 0.0, "the poller itself"
    driver.task_scheduled(trio.lowlevel.current_task())
    assert driver.patience_s() == 0.0, "another task can run"
    driver.before_io_wait(0.0)
    assert driver.patience_s() == 0.0, "and has not run yet"
    driver.before_io_wait(1.0)
    assert driver.patience_s() > 0.0
    Jobs.under_way += 1
    assert driver.patience_s() == 0.0, "a thread will want to be heard"
    Jobs.under_way -= 1
    assert driver.patience_s() > 0.0
    replica.script = [Ready(deadline_s=driver.clock_s() + 0.25)]
    driver.post(Tick())
    driver.pump()
    assert 0.0 < driver.patience_s() <= 0.25, "not beyond what is due"
    append(30, *range(31, 31 + driver_module._GROUP_ENTRIES_MAX))
    assert driver.patience_s() == 0.0, "many clients"


@pytest.mark.trio
async def test_the_timer_is_set_when_the_event_loop_goes_on_and_not_before() -> None:
    replica = Told()
    rec = Recorder(replica)
    driver = rec.driver
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.keep_time)
        await trio.testing.wait_all_tasks_blocked()
        replica.script = [Ready(deadline_s=driver.clock_s() + 0.01)]
        driver.post(Tick())
        driver.take_group()
        driver.came_s = driver.clock_s()
        before = driver._timer.armed_s
        driver.go_on()
        assert driver._timer.armed_s < before
        await until(lambda: replica.ticks == 2)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_of_several_logs_those_without_news_take_no_part_and_all_know_when_a_group_came() -> None:
    recs = [Recorder(Told()) for _ in range(3)]
    drivers = [rec.driver for rec in recs]
    sharers = Sharers(drivers)
    for driver in drivers:
        driver.sharers = sharers
    owners = Owners(sharers)
    replicas = [cast(Told, driver.replica) for driver in drivers]
    owners.came_s = 7.0
    assert [driver.came_s for driver in drivers] == [7.0] * 3, "requests that come now count from now"
    for both in ((0, 1), (2,), ()):
        for at in both:
            drivers[at].post(Stop())
        owners.take_group()
    assert [len(replica.steps) for replica in replicas] == [1, 1, 1]
    assert [driver._polled for driver in drivers] == [True] * 3 and owners.patience_s() == 0.0
    owners.go_on()
    assert not any(driver._polled for driver in drivers), "each keeps its own time again"
