"""Copies of a server's log: bounded, in order, and honest when cleaning overtakes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from sound_log import fill
from store_kit import SqliteBench, base_of, write

from alpo.core.requests import Code
from alpo.node import backups
from alpo.node.admission import Limits
from alpo.node.backups import Backups
from alpo.node.client_connection import ClientConnection
from alpo.storage.memory import MemoryStore
from alpo.wire import requests as w
from alpo.wire.codec import decode_server
from alpo.wire.framing import FrameReader


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteBench]:
    bench = SqliteBench(tmp_path / "data")
    yield bench
    bench.store.close()


class Client:
    """A connection's sending side; `read` lets what was sent go."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.link = self
        self.closed = ""
        self.messages: list[Any] = []
        self.refused: list[tuple[Code, str]] = []
        self.most_bytes = 0
        self._queued = 0
        self._lot = trio.lowlevel.ParkingLot()
        self.done = trio.Event()
        self.eager = True

    async def wait_below(self, bytes_high: int) -> None:
        while self._queued > bytes_high:
            await self._lot.park()

    def push(self, data: bytes) -> None:
        self.messages += [decode_server(body) for body in FrameReader(1 << 24).feed(data)]
        self._queued += 0 if self.eager else len(data)
        self.most_bytes = max(self.most_bytes, self._queued)

    def read(self) -> None:
        self._queued = 0
        self._lot.unpark_all()

    def settle(self, reply: Any) -> None:
        self.messages.append(reply)
        self.done.set()

    def refuse(self, request: int, code: Code, *, detail: str = "") -> None:
        self.refused.append((code, detail))
        self.done.set()


#: A scrubber that knows of no damage.
THROUGH: Any = SimpleNamespace(past_damage=lambda read: read())


def driver_of(status: str, guaranteed_id: int, on_disk: Any = trio.lowlevel.checkpoint) -> Any:
    replica = SimpleNamespace(status_text=status, guaranteed_id=guaranteed_id)
    return SimpleNamespace(replica=replica, on_disk=on_disk)


def serving(store: Any, client: Client, guaranteed_id: int = 38, **limits: int) -> Backups:
    made = Backups(driver_of("VOTING", guaranteed_id), store, Limits(**limits), THROUGH)
    made.begin(cast(ClientConnection, client), w.Backup(7))
    return made


def ids(client: Client) -> list[int]:
    return [row[0] for message in client.messages if isinstance(message, w.BackupRows) and message.table == "log"
            for row in message.rows]


async def run_whole(sqlite: SqliteBench) -> None:
    entries = fill(sqlite)
    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        serving(sqlite.store, client)
        await client.done.wait()
    head, *rows, done = client.messages
    assert (head.server, head.end_id, done) == (3, 38, w.Done(7, 38))
    assert [row for m in rows if m.table == "log" for row in m.rows] == list(map(tuple, entries[:38]))
    assert list(dict.fromkeys(m.table for m in rows)) == ["hard", "base", "applied", "saved_sessions", "runs", "log"]
    assert len(rows) > 10


@pytest.mark.trio
async def test_a_copy_is_whole(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "_CHUNK_BYTES", 30)
    await run_whole(sqlite)


@pytest.mark.trio
async def test_a_copy_begins_once_this_disk_holds_what_only_others_held(sqlite: SqliteBench) -> None:
    async def on_disk() -> None:
        fill(sqlite)

    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        made = Backups(driver_of("VOTING", 38, on_disk), sqlite.store, Limits(), THROUGH)
        made.begin(cast(ClientConnection, client), w.Backup(7))
        await client.done.wait()
    assert ids(client) == list(range(1, 39)) and not client.refused


async def run_overtaken(sqlite: SqliteBench) -> None:
    entries = fill(sqlite)
    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        client.eager = False
        serving(sqlite.store, client, client_outbox_bytes_high=100)
        while not ids(client):
            client.read()
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        sqlite.store.commit([write([], base=base_of(entries[29]), guaranteed_id=35, term=5)])
        while not client.done.is_set():
            client.read()
            await trio.lowlevel.checkpoint()
    assert client.refused == [(Code.OUT_OF_RANGE, "the log was cleaned while it was copied")]
    assert ids(client) == list(range(1, len(ids(client)) + 1)) and len(ids(client)) < 38


@pytest.mark.trio
async def test_cleaning_that_overtakes_a_copy_ends_it(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "_CHUNK_BYTES", 30)
    await run_overtaken(sqlite)


async def run_slow(sqlite: SqliteBench) -> None:
    fill(sqlite)
    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        client.eager = False
        serving(sqlite.store, client, client_outbox_bytes_high=100)
        while not client.done.is_set():
            await trio.testing.wait_all_tasks_blocked()
            client.read()
    assert client.most_bytes <= 100 + max(len(repr(m)) * 2 for m in client.messages)
    assert ids(client) == list(range(1, 39))


@pytest.mark.trio
async def test_nothing_is_read_for_a_client_that_does_not(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "_CHUNK_BYTES", 30)
    await run_slow(sqlite)


async def run_damaged(sqlite: SqliteBench) -> None:
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00' WHERE id = 30")
    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        serving(sqlite.store, client)
        await client.done.wait()
    ((code, detail),) = client.refused
    assert code == Code.NOT_READY and "entry 30" in detail
    assert not any(isinstance(message, w.Done) for message in client.messages)


@pytest.mark.trio
async def test_a_copy_never_ends_at_damage_as_if_that_were_the_end(sqlite: SqliteBench) -> None:
    await run_damaged(sqlite)


async def run_refused(store: Any, status: str, expected: str) -> None:
    async with trio.open_nursery() as nursery:
        client = Client(nursery)
        made = Backups(driver_of(status, 0), store, Limits(), THROUGH)
        made.begin(cast(ClientConnection, client), w.Backup(7))
        await client.done.wait()
    assert client.messages == [] and client.refused[0][0] == Code.NOT_READY and expected in client.refused[0][1]


@pytest.mark.trio
@pytest.mark.parametrize(("status", "expected"), [("EMPTY", "is EMPTY"), ("VOTING", "cannot be copied")])
async def test_what_cannot_be_copied_is_refused(status: str, expected: str) -> None:
    await run_refused(MemoryStore(1), status, expected)
