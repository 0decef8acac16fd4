"""Settings changed while servers serve: connections learn of it, and what is in the log stays readable."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from node_rig import (
    Rig,
    append,
    connect,
    hang_up,
    held_writer,
    listening_socket,
    memory_of,
    random_id,
    read,
    rig,
    until,
)

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.core.ready import Tick
from alpo.node.host import Host
from alpo.wire import requests as w

MIB = 1 << 20
BATCH = join_payloads([bytes([n]) * MIB for n in range(19)])


async def ask_leader(r: Rig, request: Any, wanted: type) -> Any:
    """Repeat a request on new connections until the answer is ``wanted``: a busy machine may depose a leader."""
    while True:
        leader = await r.leader()
        client = await connect(leader.us.address)
        answer = await client.ask(request)
        if isinstance(answer, wanted):
            return answer


@pytest.mark.trio
async def test_who_was_greeted_under_other_limits_has_to_connect_anew() -> None:
    async with rig(2) as r:
        clients = [await connect(address) for address in r.addresses]
        change = q.ChangeSettings(1, (("payload_bytes_max", MIB, 2 * MIB),))
        told = await ask_leader(r, change, q.SettingsAre)
        assert dict(told.values)["payload_bytes_max"] == 2 * MIB
        for client in clients:
            assert await client.body() is None  # closed
        await until(lambda: all(node.replica.settings.payload_bytes_max == 2 * MIB for node in r.nodes))
        other = await ask_leader(r, q.ChangeSettings(1, (("names_max", 10_000, 9),)), q.SettingsAre)
        assert dict(other.values)["names_max"] == 9
        client = await connect(r.addresses[0])
        assert isinstance(await client.ask(w.Status(1)), w.StatusAnswer)  # still open: not a limit of clients


@pytest.mark.trio
async def test_limits_set_before_a_start_are_no_news_after_it() -> None:
    """A passive server's mark on disk may be older than they are; nothing else changes there when it moves."""
    async with rig(2) as r:
        raised = q.ChangeSettings(1, (("payload_bytes_max", MIB, 2 * MIB),))
        await ask_leader(r, raised, q.SettingsAre)
        leader = await r.leader()
        passive = next(node for node in r.nodes if node is not leader)
        await until(lambda: passive.replica.settings.payload_bytes_max == 2 * MIB)
    async with trio.open_nursery() as nursery:
        async def start(node: Host) -> Host:
            store = memory_of(node).crash()
            again = Host(node._cfg, node.limits, store, held_writer(store))
            await nursery.start(again.run, listening_socket(int(node.us.address.rpartition(":")[2])))
            again.replica.heard_s = None
            return again

        passive, leader = await start(passive), await start(leader)
        assert passive.replica.guaranteed_id == 0
        leader.replica.election.timer_s = trio.current_time()
        leader.driver.post(Tick())
        leader.driver.pump()
        await until(lambda: passive.replica.guaranteed_id == passive.replica.last_id > 2)
        client, operator = await connect(passive.us.address), await connect(leader.us.address)
        other = await operator.ask(q.ChangeSettings(1, (("names_max", 10_000, 9),)))
        assert dict(other.values)["names_max"] == 9
        await until(lambda: passive.replica.guaranteed_id == leader.replica.last_id)
        assert isinstance(await client.ask(w.Status(1)), w.StatusAnswer)  # still open
        hang_up()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_batch_over_the_limit_of_before_and_of_after_reaches_members_and_readers() -> None:
    """Over connections that servers made under the smaller limit, and out of a log whose limit is small again."""
    async with rig(2) as r:
        await ask_leader(r, q.ChangeSettings(1, (("batch_bytes_max", 8 * MIB, 20 * MIB),)), q.SettingsAre)
        appended = await ask_leader(r, append(random_id(), 1, (19, BATCH)), q.Appended)
        assert list(appended.lsns) == [1]
        await ask_leader(r, q.ChangeSettings(1, (("batch_bytes_max", 20 * MIB, MIB),)), q.SettingsAre)
        await until(lambda: all(node.listener.fronts[1]._told_limits[1] == MIB for node in r.nodes))
        for address in r.addresses:
            reader = await connect(address)
            (row,) = (await reader.ask(read(start=1, wait_ms=10_000))).entries
            assert row[-1] == BATCH


@pytest.mark.trio
async def test_servers_that_are_bound_to_a_cluster_found_no_other() -> None:
    async with rig(3, cluster_wanted=b"c" * 16) as found:
        firsts = [node.replica.first_start for node in found.nodes]
        await until(lambda: all(not first.waits_for for first in firsts))  # all have answered, and agree
        client = await connect(found.addresses[0])
        refused = await client.ask(q.Initialise(1))
        assert refused.code == q.Code.CANNOT_INIT and "founds no other" in refused.detail
        status = await client.ask(w.Status(2))
        assert status.fields["waiting"][0].startswith(f"waits for cluster {'63' * 16}")
        assert not any(first.started for first in firsts)
