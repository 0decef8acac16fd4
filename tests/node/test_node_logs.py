"""Servers that host several logs: created, used, deleted, found again after a start."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from node_rig import (
    Client,
    Rig,
    append,
    connect,
    connect_raw,
    create,
    founded,
    led,
    lone,
    random_id,
    read,
    rig,
    until,
)

import alpo
from alpo.core import requests as q
from alpo.core.ready import Alarm
from alpo.core.requests import Code
from alpo.node import hosted, retention
from alpo.node.hosted import LogsCare
from alpo.standing import logs_of
from alpo.storage.hosted import find_stores
from alpo.storage.interface import StoreError
from alpo.wire import requests as w


async def ask_leader(r: Rig, request: Any) -> Any:
    leader = await r.leader()
    return await (await connect(leader.us.address)).ask(request)


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
            await until(lambda node=node: 2 in node.hosted.running)  # type: ignore[misc]
            replica = node.hosted.running[2].server.replica  # type: ignore[union-attr]
            await until(lambda replica=replica: replica.log.next_lsn == 3)  # type: ignore[misc]
            assert replica.cluster == other.hello.cluster
        listed = await ask_leader(r, q.ListLogs(1))
        assert [(log.number, log.name, log.id) for log in listed.listing.logs] == [(2, "billing", other.hello.cluster)]


@pytest.mark.trio
async def test_a_name_that_no_log_has() -> None:
    async with lone() as (_, at, _):
        refused = await (await connect_raw(at)).greet(w.ClientHello(w.VERSION, b"", "test", "billing"))
        assert refused == w.Problem(Code.NO_SUCH_LOG, "there is no log billing on this server")
        assert (await connect(at, log="default")).hello.number == 1  # type: ignore[union-attr]


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
        assert client.hello is not None
        of_the_old = w.ClientHello(w.VERSION, client.hello.cluster, "test", "billing")
        refused = await (await connect_raw((await led(r, 3)).us.address)).greet(of_the_old)
        assert refused.code == Code.NO_SUCH_LOG and "the log billing is another one by now" in refused.text


@pytest.mark.trio
async def test_a_deleted_log_that_still_stops_is_not_taken_for_the_next_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "_LEAVE_S", math.inf)
    async with rig(3, shelves=tmp_path) as r, trio.open_nursery() as nursery:
        await ask_leader(r, create("billing"))
        node, go = await led(r, 2), trio.Event()
        assert node.hosted is not None
        node.hosted.running[2].server.leave = go.wait  # type: ignore
        nursery.start_soon(ask_leader, r, q.DeleteLog(1, "billing", b"d" * 16))
        await until(lambda: node.replica.directory.guaranteed.lacks(2))
        nursery.start_soon(ask_leader, r, create("billing", b"m" * 16))
        await until(lambda: 3 in node.hosted.running)  # type: ignore[union-attr]
        assert 2 in node.hosted.running
        found = await connect(node.us.address, log="billing")
        assert found.hello is not None and found.hello.number == 3
        go.set()


@pytest.mark.trio
async def test_a_deletion_is_told_once_a_majority_of_the_stores_is_moved(tmp_path: Path) -> None:
    async with rig(3, shelves=tmp_path) as r, trio.open_nursery() as nursery:
        await ask_leader(r, create("billing"))
        leader = await r.leader()
        await until(lambda: all(2 in node.hosted.running for node in r.nodes if node.hosted is not None))
        goes = {}
        for node in r.nodes:
            if node.hosted is not None and node is not leader:
                goes[node.us.me.id] = trio.Event()
                node.hosted._move = partial(_move_later, node.hosted._move, goes[node.us.me.id])  # type: ignore
        told: list[Any] = []

        async def delete() -> None:
            told.append(await ask_leader(r, q.DeleteLog(1, "billing", b"d" * 16)))

        async def delete_again(timeout_s: float) -> None:
            async with alpo.connect(r.addresses, log="default") as log:
                told.append(await log.delete_log("billing", timeout_s))

        nursery.start_soon(delete)
        moved = tmp_path / str(leader.us.me.id) / "deleted"
        await until(lambda: moved.exists() and len(list(moved.iterdir())) == 1)
        again = await (await connect(leader.us.address)).ask(q.ListLogs(1))
        assert again.listing.logs == () and not told
        nursery.start_soon(delete_again, 500)
        await until(lambda: len(leader.hosted._deletions) == 2)  # type: ignore[union-attr]
        assert not told
        goes.popitem()[1].set()
        await until(lambda: len(told) == 2)
        assert 2 in told and any(isinstance(each, q.LogDeleted) for each in told)
        goes.popitem()[1].set()
        await until(lambda: not any(2 in node.hosted._made for node in r.nodes))  # type: ignore[union-attr]
        with pytest.raises(alpo.NoSuchLog):
            await delete_again(500)


async def _move_later(move: Callable[[Any], Awaitable[None]], go: trio.Event, action: Any) -> None:
    await go.wait()
    await move(action)


@pytest.mark.trio
async def test_the_files_of_a_deleted_log_are_kept_for_as_long_as_is_configured(tmp_path: Path) -> None:
    async with rig(1, shelves=tmp_path) as r:
        await (await founded(r)).ask(create("billing"))
        await led(r, 2)
        await ask_leader(r, q.DeleteLog(1, "billing", b"d" * 16))
        folder = tmp_path / "1" / "deleted"
        assert len(list(folder.iterdir())) == 1
        host = r.nodes[0]
        assert host.hosted is not None
        host.hosted.heed(LogsCare(keep_deleted_s=0.0))
        await until(lambda: host.driver.counters.events["deleted_log_removed"] == 1)
        (left,) = folder.iterdir()
        assert [path.name for path in left.iterdir()] == ["log.json"]


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
async def test_a_log_that_could_not_be_opened_for_a_moment_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = hosted._open, []

    def open_later(*args: Any) -> Any:
        tries.append(args)
        if len(tries) == 1:
            raise StoreError("too many open files")
        return real(*args)

    monkeypatch.setattr(hosted, "_open", open_later)
    monkeypatch.setattr(hosted, "_AGAIN_S", 0.01)
    async with rig(1, shelves=tmp_path) as r:
        await (await founded(r)).ask(create("billing"))
        host = await led(r, 2)
        assert host.hosted is not None and host.driver.counters.events["log_failed"] == 1
        assert host.hosted.failed == {} and [log.state for log in host.states()] == ["ready", "ready"]
        assert len(host._writers) == 2, "a commit of either log in the loop is watched"


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


@pytest.mark.trio
async def test_a_log_at_its_bytes_max_beside_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SPACE_EVERY_S", 0.01)
    monkeypatch.setattr(retention, "SPACE_CLOSELY_S", 0.01)
    async with rig(1, shelves=tmp_path) as r:
        first, node = await founded(r), r.nodes[0]
        assert node.hosted is not None
        for number, name in ((2, "billing"), (3, "audit")):
            await first.ask(create(name, bytes([number]) * 16, bytes_max=1 << 20 if number == 2 else 0))
            await led(r, number)
        billing, audit = [await connect(r.addresses[0], log=name) for name in ("billing", "audit")]
        server, id, serial = node.hosted.running[2].server, random_id(), 0
        block = b"x" * 100_000
        answer: Any = None
        while not isinstance(answer, w.AppendRefused):
            serial += 1
            answer = await billing.ask(append(id, serial, block))
            assert serial < 200
        assert answer.code == Code.NO_SPACE and serial > 9
        assert answer.detail.startswith("the log holds 1.") and "its bytes_max is 1.0 MiB" in answer.detail
        for client in (audit, audit, first):
            assert isinstance(await client.ask(append(random_id(), 1, block * 10)), q.Appended)
        fields = (await billing.ask(w.Status(8))).fields
        (told,) = fields["space"]
        assert told.startswith("it takes no appends: the log holds 1.") and fields["room"] == "plenty"
        assert fields["appends"]["work"] is False, "and `alpo status` shows it"
        assert (await audit.ask(w.Status(9))).fields["space"] == []

        assert (await billing.ask(read(start=serial - 1, linearizable=True))).end_lsn == serial - 1
        assert isinstance(await billing.ask(q.Trim(3, serial - 2)), q.Trimmed)
        await until(lambda: server.disk.remarks() == [])
        assert isinstance(await billing.ask(append(id, serial, block)), q.Appended)

        await first.ask(q.SetLog(4, "billing", (("bytes_max", 1),)))
        await until(lambda: server.disk.remarks() != [])
        await first.ask(q.SetLog(5, "billing", (("bytes_max", 0),)))
        await until(lambda: server.disk.remarks() == [])
        assert isinstance(await billing.ask(append(id, serial + 1, block)), q.Appended)


@pytest.mark.trio
async def test_a_quota_of_one_log_holds_up_no_client_of_another(tmp_path: Path) -> None:
    async with rig(shelves=tmp_path) as r:
        first = await founded(r)
        await first.ask(create("billing"))
        driver = (await led(r, 2)).hosted.running[2].server.driver  # type: ignore[union-attr]
        billing, id = await connect(r.addresses[0], log="billing"), random_id()
        assert isinstance(await billing.ask(q.ChangeSettings(1, (("quota_appends_per_s", 0, 1),))), q.SettingsAre)
        await billing.send(append(id, 1, *[b"x"] * 500))
        await until(lambda: driver.counters.quota_waits == 1)
        assert isinstance(await first.ask(append(id, 1, b"y")), q.Appended)
        assert r.nodes[0].replica.settings.quota_appends_per_s == 0 and r.nodes[0].driver.counters.quota_waits == 0
