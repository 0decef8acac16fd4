"""Servers that host several logs: created, used, deleted, found again after a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from node_rig import Client, Rig, append, connect, connect_raw, create, founded, random_id, read, rig, until

from alpo.core import requests as q
from alpo.core.ready import Alarm
from alpo.core.requests import Code
from alpo.node.host import Host
from alpo.standing import logs_of
from alpo.storage.hosted import find_stores
from alpo.wire import requests as w


async def ask_leader(r: Rig, request: Any) -> Any:
    leader = await r.leader()
    return await (await connect(leader.us.address)).ask(request)


def leader_of(r: Rig, number: int) -> Host | None:
    """The server that leads a log, once it serves."""
    return next((
        node for node in r.nodes if node.hosted is not None and number in node.hosted.running
        and node.hosted.running[number].server.replica.serves
    ), None)


async def led(r: Rig, number: int) -> Host:
    await until(lambda: leader_of(r, number) is not None)
    leader = leader_of(r, number)
    assert leader is not None
    return leader


async def payloads(client: Client) -> list[bytes]:
    return [row[-1] for row in (await client.ask(read(start=1, linearizable=True))).entries]


async def rows(r: Rig, number: int, name: str) -> list[bytes]:
    return await payloads(await connect((await led(r, number)).us.address, log=name))


@pytest.mark.trio
async def test_a_log_of_its_own(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        made = await ask_leader(r, create("billing"))
        assert isinstance(made, q.LogIs) and (made.log.number, made.log.name) == (2, "billing")
        at = (await led(r, 2)).us.address
        first, other = await connect(at), await connect(at, log="billing")
        assert first.hello is not None and other.hello is not None
        assert (first.hello.number, first.hello.name) == (1, "default")
        assert (other.hello.number, other.hello.name, other.hello.leader) == (2, "billing", other.hello.id)
        assert other.hello.cluster != first.hello.cluster
        assert isinstance(await other.ask(append(random_id(), 1, b"one", b"two")), q.Appended)
        assert await payloads(other) == [b"one", b"two"]
        assert (await (await connect((await r.leader()).us.address)).ask(read(start=1))).entries == []
        for node in r.nodes:
            replica = node.hosted.running[2].server.replica  # type: ignore[union-attr]
            await until(lambda replica=replica: replica.log.next_lsn == 3)  # type: ignore[misc]
            assert replica.cluster == other.hello.cluster
        listed = await ask_leader(r, q.ListLogs(1))
        assert [(log.number, log.name, log.id) for log in listed.listing.logs] == [(2, "billing", other.hello.cluster)]


@pytest.mark.trio
async def test_a_name_that_no_log_has() -> None:
    async with rig() as r:
        await founded(r)
        refused = await (await connect_raw(r.addresses[0])).greet(w.ClientHello(w.VERSION, b"", "test", "billing"))
        assert refused == w.Problem(Code.NO_SUCH_LOG, "there is no log billing on this server")
        assert (await connect(r.addresses[0], log="default")).hello.number == 1  # type: ignore[union-attr]


@pytest.mark.trio
async def test_a_deleted_log_ends_its_clients_and_leaves_only_its_moved_stores(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        await ask_leader(r, create("billing"))
        client = await connect((await led(r, 2)).us.address, log="billing")
        assert isinstance(await client.ask(append(random_id(), 1, b"one")), q.Appended)
        gone = await ask_leader(r, q.DeleteLog(1, "billing", b"d" * 16))
        assert isinstance(gone, q.LogDeleted)
        assert (await client.receive()).code == Code.NO_SUCH_LOG
        for id in (1, 2, 3):
            await until(lambda id=id: not list((tmp_path / str(id) / "logs").iterdir()))  # type: ignore[misc]
            (moved,) = (tmp_path / str(id) / "deleted").iterdir()
            assert moved.name.startswith("2-billing-") and (moved / "alpo.db").exists()
            assert json.loads((moved / "log.json").read_text())["name"] == "billing"
        refused = await (await connect_raw(r.addresses[0])).greet(w.ClientHello(w.VERSION, b"", "test", "billing"))
        assert refused.code == Code.NO_SUCH_LOG
        again = await ask_leader(r, create("billing", b"m" * 16))
        assert again.log.number == 3
        assert await rows(r, 3, "billing") == []


@pytest.mark.trio
async def test_a_new_leader_founds_what_the_one_before_did_not(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        first = await r.leader()
        assert first.hosted is not None
        first.hosted._hosting._leading._found = lambda *_: None  # type: ignore[method-assign]
        await ask_leader(r, create("billing"))
        others = [node for node in r.nodes if node is not first]
        told = [node.hosted._hosting._told for node in others if node.hosted is not None]
        await until(lambda: all(sum(2 in logs for logs in each.values()) == 2 for each in told))
        assert isinstance(await ask_leader(r, q.Transfer(1, others[0].us.me.id)), q.HandedOver)
        await until(lambda: all(2 in node.hosted.running for node in others if node.hosted is not None))


@pytest.mark.trio
async def test_a_log_that_has_stopped_itself_lets_the_others_go_on_and_can_be_deleted(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r:
        await ask_leader(r, create("billing"))
        leader = await led(r, 2)
        broken = next(node for node in r.nodes if node is not leader)
        assert broken.hosted is not None
        await until(lambda: 2 in broken.hosted.running)  # type: ignore[union-attr]
        broken.hosted.running[2].server.driver.failed(Alarm("a broken invariant"))
        await until(lambda: 2 not in broken.hosted.running)  # type: ignore[union-attr]
        await until(lambda: broken.hosted.failed == {2: "a broken invariant"})  # type: ignore[union-attr]
        await until(lambda: all(2 in node.hosted.running for node in r.nodes if node.hosted and node is not broken))
        told = {node.us.me.id: (await node.report.status(0))["logs"] for node in r.nodes}
        found = told[broken.us.me.id]
        assert found[1] == {"number": 2, "name": "billing", "state": "failed", "why": "a broken invariant"}
        assert [log["state"] for id in told for log in told[id]].count("failed") == 1
        (_, billing) = logs_of([
            {"id": id, "reachable": True, "status": "VOTING", "logs": logs} for id, logs in told.items()
        ])
        assert (billing.state, billing.leader) == ("failed", leader.us.me.id)
        assert broken.us.me.id in billing.behind and billing.why == [(broken.us.me.id, "a broken invariant")]
        assert [check.why for check in broken.report.checks() if not check.holds] == [
            "the log billing has failed: a broken invariant"
        ]
        assert all(check.holds for check in leader.report.checks())
        client = await connect((await led(r, 2)).us.address, log="billing")
        assert isinstance(await client.ask(append(random_id(), 1, b"one")), q.Appended)
        assert "logs" not in (await client.ask(w.Status(1))).fields
        refused = await (await connect_raw(broken.us.address)).greet(w.ClientHello(w.VERSION, b"", "test", "billing"))
        assert refused == w.Problem(Code.NOT_READY, "the log billing does not run here yet")
        await ask_leader(r, q.DeleteLog(1, "billing", b"d" * 16))
        for id in (1, 2, 3):
            await until(lambda id=id: (tmp_path / str(id) / "deleted").exists())  # type: ignore[misc]
        assert broken.driver.counters.events["log_runs"] == 1, "it was not run again"


@pytest.mark.trio
async def test_a_log_of_one_server_that_is_damaged_stays_where_it_is(tmp_path: Path) -> None:
    """No other server has what it held."""
    async with rig(1, shelves=tmp_path) as r:
        await (await founded(r)).ask(create("billing"))
        await led(r, 2)
    file = tmp_path / "1" / "logs" / "2" / "alpo.db"
    file.write_bytes(b"damaged" * 2000)
    found, (trouble,) = find_stores(tmp_path / "1", 1, alone=True)
    assert not found and trouble.number == 2 and file.exists()
    assert find_stores(tmp_path / "1", 1)[0] == [] and not file.exists(), "with others there, it is set aside"


@pytest.mark.trio
async def test_a_stop_tells_no_client_that_the_log_is_gone(tmp_path: Path) -> None:
    async with rig(1, shelves=tmp_path) as r:
        await (await founded(r)).ask(create("billing"))
        client = await connect((await led(r, 2)).us.address, log="billing")
        r.nodes[0].stop()
        told = await client.receive()
        assert told is None or told == w.Problem(Code.NOT_READY, "it is stopping")
