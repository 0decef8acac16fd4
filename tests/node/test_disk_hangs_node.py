"""A disk that hangs, through the whole shell: requests that are still answered, the status, and leadership."""

from __future__ import annotations

import json

import pytest
import trio
from node_rig import append, connect, lone, memory_of, random_id, read, rig, until, writer_of
from visits import Visited, visit

from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.node.admission import Limits
from alpo.wire import requests as w

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.trio
async def test_what_appends_nothing_never_waits_behind_appends() -> None:
    """No connection can append while the disk hangs; requests that append nothing are answered."""
    async with lone(limits=Limits(inflight_bytes_max=1 * MIB)) as (node, at, first):
        writer_of(node).held = True
        other = await connect(at)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                client, id = await connect(at), random_id()
                flood = [append(id, serial, b"z" * 8 * KIB) for serial in range(1, 501)]
                nursery.start_soon(client.send, *flood)
            await until(lambda: node.driver.full and len(node.driver.room) == 4)
            for n, asking in enumerate((first, other)):
                told = await asking.ask(w.Status(10 + n))
                assert told.fields["state"] == "leader" and told.fields["write_under_way_ms"] > 0
                page = await asking.ask(read(20 + n, linearizable=True))
                assert page.request == 20 + n
                assert isinstance(await asking.ask(w.ListEvents(30 + n, 0, 10)), w.EventList)
                refused = await asking.ask(q.Transfer(40 + n, 9))
                assert refused.code == Code.CANNOT_CHANGE
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_status_is_given_although_the_disk_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads hang too: none gets a thread."""
    monkeypatch.setattr("alpo.node.report.DISK_S", 0.05)
    async with lone() as (node, _, client):
        report = node.report
        for _ in range(int(report._threads.total_tokens)):
            report._threads.acquire_on_behalf_of_nowait(object())
        told = await client.ask(w.Status(1))
        assert told.fields["damage"] == [] and told.fields["read_under_way_ms"] == 0
        assert told.fields["commits"] == 0 and told.fields["last_lsn"] == 0 and "disk_bytes" not in told.fields


@pytest.mark.trio
async def test_a_leader_whose_disk_hangs_is_followed_by_another_and_lets_its_clients_go() -> None:
    async with rig(3, limits=Limits(inflight_bytes_max=64 * KIB), disk_timeout_s=0.1) as r:
        leader = await r.leader()
        clients = [await connect(r.addresses[leader.us.me.id - 1]) for _ in range(3)]
        await clients[0].ask(append(random_id(), 1, b"before"))
        await until(lambda: leader.replica.log.stable_id == leader.replica.guaranteed_id)
        writer_of(leader).held = True
        for client in clients:
            id = random_id()
            await client.send(*(append(id, serial, b"z" * 16 * KIB) for serial in range(1, 11)))
        for client in clients:
            answers = [await client.receive() for _ in range(10)]
            codes = {answer.code for answer in answers if not isinstance(answer, q.Appended)}
            assert codes <= {Code.NOT_LEADER}, answers
        assert leader.replica.log.writing_bytes > leader.driver.inflight_bytes_max and not leader.driver.full
        await until(lambda: any(node.replica.reign is not None for node in r.nodes if node is not leader))
        names = leader.driver.counters.events
        assert names["disk_hangs"] == 1 and names["handing_over"] == 1 and not names["disk_moves_again"]
        found = await visit(r.visited[leader.us.me.id - 1], "/metrics")
        assert float(metric(found, "alpo_write_under_way_seconds")) > 0.1
        writer_of(leader).release()
        await until(lambda: leader.driver.counters.events["disk_moves_again"] == 1)
        kept = [(each.name, json.loads(each.fields)) for each in memory_of(leader).read_events(0, 1000)]
        assert "disk_hangs" in dict(kept) and dict(kept)["handing_over"]["why"] == "its disk hangs"


def metric(found: Visited, name: str) -> str:
    sample = f'{name}{{log="default"}} '
    return next(line.removeprefix(sample) for line in found.text.splitlines() if line.startswith(sample))


@pytest.mark.trio
async def test_a_linearizable_read_shows_what_only_the_others_have_on_disk() -> None:
    async with rig(3, disk_timeout_s=60.0) as r:
        leader = await r.leader()
        client = await connect(r.addresses[leader.us.me.id - 1])
        id = random_id()
        await client.ask(append(id, 1, b"on all disks"))
        await until(lambda: leader.replica.log.stable_id == leader.replica.guaranteed_id)
        writer_of(leader).held = True
        assert isinstance(await client.ask(append(id, 2, b"not on the leader's")), q.Appended)
        page = await client.ask(read(1, linearizable=True))
        assert [row[7] for row in page.entries][:1] == [b"on all disks"]
        rows = page.entries
        while page.next_lsn <= page.end_lsn:
            page = await client.ask(read(2, start=page.next_lsn, linearizable=True))
            rows += page.entries
        assert [row[7] for row in rows] == [b"on all disks", b"not on the leader's"]
        local = await client.ask(read(3))
        assert [row[7] for row in local.entries] == [b"on all disks"]
        writer_of(leader).release()
