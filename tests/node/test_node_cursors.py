"""Cursors and retention: entries that a reader needs stay, until it lags too far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from node_rig import Client, append, connect, founded, random_id, rig, until

from alpo.core import requests as q
from alpo.core.requests import Code
from alpo.node import retention
from alpo.node.retention import Retention
from alpo.storage.interface import StoreError
from alpo.wire import requests as w

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test waits for a schedule."""
    monkeypatch.setattr(retention, "LOOK_EVERY_S", 0.005)
    monkeypatch.setattr(retention, "REST_S_MIN", 0.0)
    yield


async def fill(client: Client, number: int) -> None:
    id = random_id()
    for serial in range(1, number + 1):
        assert isinstance(await client.ask(append(id, serial, b"payload")), q.Appended)


async def cleaning_waits(client: Client) -> Any:
    return (await client.ask(w.Status(1))).fields["cleaning_waits"]


@pytest.mark.trio
async def test_a_cursor_holds_retention_back_and_status_says_which() -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 100)
        assert await client.ask(q.SetCursor(1, "nightly", 51)) == w.Done(1, 51)
        node.log.cleaner.policy = Retention(max_entries=10)
        log = node.replica.log
        await until(lambda: log.base_next_lsn == 51 and bool(node.log.cleaner.waits))
        waits = "cleaning waits at LSN 51: the reader of cursor nightly has not come further"
        assert await cleaning_waits(client) == [waits]
        (row,) = (await client.ask(q.ListCursors(2))).rows
        assert row[:2] == ("nightly", 51) and 0 < row[2] <= node.log.store.live_bytes()
        assert await client.ask(q.SetCursor(3, "nightly", 81)) == w.Done(3, 81)
        await until(lambda: log.base_next_lsn == 81)
        assert await client.ask(q.DropCursor(4, "nightly")) == w.Done(4, 81)
        await until(lambda: log.base_next_lsn > 81 and not node.log.cleaner.waits)


@pytest.mark.pure
@pytest.mark.trio
@pytest.mark.parametrize("limit", [{"cursor_lag_bytes": 1}, {"cursor_lag_s": 0.0}])
async def test_the_leader_drops_a_cursor_that_lags_too_far(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 100)
        await client.ask(q.SetCursor(1, "nightly", 51))
        await client.ask(q.SetCursor(2, "tail", 101))
        events: list[Any] = []
        finish = node.replica.out.finish

        def watched(*args: Any) -> Any:
            ready = finish(*args)
            events.extend(event for event in ready.events if event.name == "cursor_dropped")
            return ready

        monkeypatch.setattr(node.replica.out, "finish", watched)
        node.log.cleaner.policy = Retention(max_entries=10, **limit)
        await until(lambda: node.replica.log.base_next_lsn > 51)
        assert node.replica.cursors.now == {"tail": 101}
        assert [event.fields for event in events] == [{"cursor": "nightly", "lsn": 51, "why": "lag"}]


@pytest.mark.trio
async def test_one_that_holds_nothing_back_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(retention=Retention(cursor_lag_bytes=1, cursor_lag_s=0.0)) as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 20)
        await client.ask(q.SetCursor(1, "nightly", 1))
        looks, look = [0], node.log.cleaner._look_at_cursors

        async def counted(upto_id: int) -> None:
            looks[0] += 1
            await look(upto_id)

        monkeypatch.setattr(node.log.cleaner, "_look_at_cursors", counted)
        await until(lambda: looks[0] >= 5)
        assert node.replica.cursors.now == {"nightly": 1} and not node.log.cleaner.waits


@pytest.mark.trio
async def test_others_say_who_leads() -> None:
    async with rig(2) as r:
        leader = await r.leader()
        other = await connect(next(node for node in r.nodes if node is not leader).us.address)
        for request in (q.SetCursor(1, "nightly", 1), q.DropCursor(1, "nightly"), q.ListCursors(1)):
            refused = await other.ask(request)
            assert refused.code == Code.NOT_LEADER


@pytest.mark.trio
async def test_a_store_that_cannot_be_read_is_said_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        client, node = await founded(r), r.nodes[0]
        await fill(client, 3)
        assert await client.ask(q.SetCursor(1, "nightly", 2)) == w.Done(1, 2)

        def broken(lsn: int, end_id: int) -> int:
            raise StoreError("alpo.db: no")

        with monkeypatch.context() as patch:
            patch.setattr(node.log.store, "find_lsn", broken)
            answer = await client.ask(q.ListCursors(2))
            assert (answer.code, answer.detail) == (Code.NOT_READY, "this server's store cannot be read: alpo.db: no")
        (row,) = (await client.ask(q.ListCursors(3))).rows
        assert row[:2] == ("nightly", 2)
