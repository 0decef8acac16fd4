"""Conditional appends as a server takes them: over a connection, within a quota and the limits on sizes."""

from __future__ import annotations

import pytest
from node_rig import connect, founded, random_id, rig, until

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.core.requests import Code
from alpo.core.settings import Settings
from alpo.wire import requests as w


def after(client: str, serial: int, expect_last: int, *payloads: bytes) -> w.AppendAfter:
    item = payloads[0] if len(payloads) == 1 else (len(payloads), join_payloads(payloads))
    return w.AppendAfter(client, 0, serial, False, expect_last, item)


def conflict(client: str, serial: int, last_lsn: int) -> w.AppendRefused:
    return w.AppendRefused(client, serial, 1, Code.CONFLICT, last_lsn, 0, "", "")


@pytest.mark.trio
async def test_taken_refused_and_counted() -> None:
    async with rig(3) as found:
        leader = await found.leader()
        client, name = await connect(found.addresses[leader.us.me.id - 1]), random_id()
        taken = await client.ask(after(name, 1, 0, b"a", b"b"))
        assert isinstance(taken, q.Appended) and list(taken.lsns) == [1]
        assert await client.ask(after(name, 2, 1, b"c")) == conflict(name, 2, 2)
        assert await client.ask(after(name, 2, 7, b"c")) == conflict(name, 2, 2)
        taken = await client.ask(after(name, 2, 2, b"c"))
        assert isinstance(taken, q.Appended) and list(taken.lsns) == [3]
        assert leader.driver.counters.appends == {"appended": 2, "conflict": 2}
        assert leader.replica.inflight_bytes == 0
        other = next(node for node in found.nodes if node is not leader)
        client = await connect(found.addresses[other.us.me.id - 1])
        refused = await client.ask(after(name, 3, 3, b"d"))
        assert isinstance(refused, w.AppendRefused) and refused.code == Code.NOT_LEADER


@pytest.mark.trio
async def test_too_large() -> None:
    async with rig(settings=Settings(payload_bytes_max=1024, batch_bytes_max=2048)) as found:
        client, name = await founded(found), random_id()
        for payloads, limit in (((bytes(1025),), 1024), ((bytes(1000),) * 3, 2048)):
            refused = await client.ask(after(name, 1, 0, *payloads))
            assert isinstance(refused, w.AppendRefused)
            assert (refused.code, refused.number) == (Code.TOO_LARGE, limit)


@pytest.mark.trio
async def test_beyond_a_quota_it_waits_in_its_place() -> None:
    async with rig(3, settings=Settings(quota_appends_per_s=10)) as found:
        leader = await found.leader()
        client, name = await connect(found.addresses[leader.us.me.id - 1]), random_id()
        await client.send(*(after(name, serial, serial - 1, b"x") for serial in range(1, 9)))
        await until(lambda: leader.driver.counters.quota_waits > 0)
        answers = [await client.receive() for _ in range(8)]
        assert [list(each.lsns) for each in answers if isinstance(each, q.Appended)] == [[n] for n in range(1, 9)]
