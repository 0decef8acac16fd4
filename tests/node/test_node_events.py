"""Events of a server: which are kept, how they are written and read; and the status of its disk and of its peers."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest
import trio
from node_rig import Client, connect, lone, rig, until, writer_of

from alpo.core.requests import Code
from alpo.node.driver import Driver
from alpo.node.event_log import Recorder
from alpo.node.host import Host
from alpo.node.peers import _REASONS_MAX
from alpo.node.status import (
    DAY_MS,
    LEAST_MS,
    Growth,
    Sample,
    bytes_a_day,
)
from alpo.storage.events import EventRow, event_row
from alpo.storage.interface import Rest, StoreError, Volume
from alpo.storage.memory import MemoryStore
from alpo.wire import requests as w

pytestmark = pytest.mark.usefixtures("patient")


async def events_of(client: Client, before: int = 0, count: int = 1000) -> list[tuple[int, str, dict[str, Any]]]:
    answer = await client.ask(w.ListEvents(7, before, count))
    assert isinstance(answer, w.EventList) and answer.request == 7
    return [(number, name, json.loads(fields)) for number, _, name, fields in answer.rows]


# -- which are kept


def kept(recorder: Recorder, name: str, at_s: float, **fields: object) -> object:
    return recorder.judge(name, fields, int(at_s * 1000))


def test_a_server_that_repeats_itself_is_cut_short_and_counted() -> None:
    recorder = Recorder()
    found = [kept(recorder, "canvass", at, term=5, round=at) for at in range(20)]
    assert [fields is not None for fields in found] == [True] * 3 + [False] * 17
    assert kept(recorder, "canvass", 61, term=5, round=61) == {"term": 5, "round": 61, "times": 18}
    assert kept(recorder, "canvass", 62, term=5, round=62) == {"term": 5, "round": 62}


def test_what_differs_in_its_key_is_not_the_same() -> None:
    recorder = Recorder()
    for term in range(1000):
        assert kept(recorder, "canvass", 2 * term, term=term) == {"term": term}
    for peer in (2, 3):
        for at in range(3):
            assert kept(recorder, "peer_lost", 2, peer=peer, why=str(at)) is not None
    assert kept(recorder, "peer_lost", 2, peer=3, why="x") is None
    assert kept(recorder, "leader", 2, term=5) is not None
    assert len(recorder._kinds) <= 256


def test_a_disk_that_stays_slow_is_told_once_a_minute() -> None:
    recorder = Recorder()
    found = [kept(recorder, "slow_fsync", at, what="commit", ms=300) for at in range(180)]
    assert [at for at, fields in enumerate(found) if fields] == [0, 60, 120]
    assert found[60] == {"what": "commit", "ms": 300, "times": 60}


def test_what_clients_name_pushes_nothing_out() -> None:
    """A trim by force may drop a thousand cursors at once."""
    recorder = Recorder()
    slow = [kept(recorder, "space_is_back", 1, room="plenty") for _ in range(3)]
    found = [kept(recorder, "cursor_dropped", 1, cursor=f"c{n}") for n in range(1000)]
    assert None not in slow and [fields is not None for fields in found] == [True] * 30 + [False] * 970
    assert kept(recorder, "space_is_back", 2, room="plenty") is None
    assert kept(recorder, "cursor_dropped", 62, cursor="late") == {"cursor": "late", "times": 971}


def test_cleanings_do_not_push_out_elections() -> None:
    recorder = Recorder()
    found = [kept(recorder, "clean", at, upto_id=at) for at in range(7300)]
    assert [at for at, fields in enumerate(found) if fields] == [0, 3600, 7200]


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    recorder = Recorder()
    for at in range(10):
        kept(recorder, "clean", 10_000 + at)
    assert kept(recorder, "clean", 50) is not None


# -- served


@pytest.mark.trio
async def test_events_are_served_newest_first_in_pages() -> None:
    async with lone() as (_, _, client):
        found = await events_of(client)
        names = [name for _, name, _ in found]
        assert [number for number, _, _ in found] == list(range(1, len(found) + 1))
        assert names[0] == "serving" and "leader" in names
        leader = next(fields for _, name, fields in found if name == "leader")
        assert leader == {"term": 1, "first_id": 1, "votes": [1], "voters": [1]}
        newest = await events_of(client, count=2)
        found = await events_of(client)  # an event may come between two questions
        at = [number for number, _, _ in found].index(newest[0][0])
        assert newest == found[at : at + 2] and at >= len(names) - 2
        assert await events_of(client, before=newest[0][0], count=1) == found[at - 1 : at]
        assert await events_of(client, before=1) == []


@pytest.mark.trio
async def test_a_store_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lone() as (node, _, client):

        def broken(before: int, count: int) -> list[EventRow]:
            raise StoreError("alpo.db: no")

        monkeypatch.setattr(node.log.store, "read_events", broken)
        answer = await client.ask(w.ListEvents(1, 0, 5))
        assert (answer.code, answer.detail) == (Code.NOT_READY, "this server's store cannot be read: alpo.db: no")


@pytest.mark.trio
async def test_an_election_leaves_its_steps_on_every_server() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        others = [node for node in r.nodes if node is not leader]
        term, id = leader.replica.term, leader.us.me.id
        led = [json.loads(e.fields) for e in leader.log.store.read_events(0, 1000) if e.name == "leader"]
        assert led[-1]["term"] == term and id in led[-1]["votes"] and led[-1]["voters"] == [1, 2, 3]
        for node in others:
            told = {e.name: json.loads(e.fields) for e in node.log.store.read_events(0, 1000)}
            assert told["following"] == {"term": term, "leader": id}
        voters = [node.us.me.id for node in others if any(
            e.name == "vote" and json.loads(e.fields) == {"term": term, "to": id}
            for e in node.log.store.read_events(0, 1000)
        )]
        assert set(led[-1]["votes"]) <= {id, *voters}


@pytest.mark.trio
async def test_a_slow_disk_is_an_event() -> None:
    async with lone(election_timeout_s=0.4, heartbeat_s=0.05) as (node, _, client):
        writer = writer_of(node)
        assert writer.slow_s == pytest.approx(0.1)
        await trio.to_thread.run_sync(writer.slow, "commit", 0.25, 12)

        def seen() -> bool:
            return any(e.name == "slow_fsync" for e in node.log.store.read_events(0, 1000))

        await until(seen)
        fields = next(fields for _, name, fields in await events_of(client) if name == "slow_fsync")
        assert fields == {"what": "commit", "took_ms": 250.0, "limit_ms": 100, "entries": 12}


@pytest.mark.trio
async def test_status_tells_of_disk_timers_and_peers() -> None:
    async with rig(3) as r:
        await r.leader()
        writer = writer_of(r.nodes[0])
        writer.stats.timings.add(0.02, time.perf_counter())
        client = await connect(r.addresses[0])
        await until(lambda: not any(peer.trouble for peer in r.nodes[0].peers.by_id.values()))
        fields = (await client.ask(w.Status(1))).fields
        assert fields["timers_ms"] == [50, 2000, 20]
        assert (fields["fsync_samples"], fields["fsync_max_ms"]) == (1, 20.0)
        assert [(peer["id"], peer["reachable"], peer["why"]) for peer in fields["peers"]] == [
            (2, True, None), (3, True, None)
        ]
        assert all(peer["round_trip_ms"] > 0 for peer in fields["peers"])
        assert fields["time_ms"] > 1_700_000_000_000
        assert fields["disk_full_days"] is None and fields["growth_bytes_per_day"] is None


def told(node: Host, name: str) -> list[dict[str, Any]]:
    return [json.loads(event.fields) for event in node.log.store.read_events(0, 1000) if event.name == name]


@pytest.mark.trio
async def test_a_peer_that_is_lost_is_a_warning_once_and_only_if_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is cut off, one has said that it stops. The first start is no outage."""
    async with rig(4, heartbeat_s=0.02, election_timeout_s=0.15) as r:
        await r.leader()
        watcher = r.nodes[0]
        await until(lambda: not any(peer.trouble for peer in watcher.peers.by_id.values()))
        assert told(watcher, "peer_unreachable") == []

        def lost(peer: int) -> list[str]:
            return [fields["why"] for fields in told(watcher, "peer_lost") if fields["peer"] == peer]

        r.nodes[1].stop()
        await until(lambda: lost(2)[-1:] == ["the other server says: it is stopping"])
        everywhere = watcher.peers._addresses
        monkeypatch.setattr(
            watcher.peers, "_addresses", lambda peer: ["127.0.0.1:1"] if peer.id == 3 else everywhere(peer)
        )
        trouble = watcher.peers.by_id[3]
        await until(lambda: trouble.route is not None and not trouble.trouble)
        assert trouble.route is not None
        trouble.route.link.close("cut")
        await until(lambda: bool(told(watcher, "peer_unreachable")))
        assert [fields["peer"] for fields in told(watcher, "peer_unreachable")] == [3]
        assert watcher.peers.by_id[2].stopping and not watcher.peers.by_id[3].stopping
        # The peer is dialled again and again, and no further event is written.
        for _ in range(3):
            trouble.trouble = "tried again?"
            trouble.kick()
            await until(lambda: trouble.trouble != "tried again?")
        assert lost(3)[-1] == "cut" and len(told(watcher, "peer_unreachable")) == 1
        # An event is written for each new reason, never for an old one, and only up to a limit.
        (first,) = said = [fields["why"] for fields in told(watcher, "peer_unreachable")]
        for port in (2, 1, *range(3, 20)):
            at = f"127.0.0.1:{port}"
            monkeypatch.setattr(
                watcher.peers, "_addresses", lambda peer, at=at: [at] if peer.id == 3 else everywhere(peer)
            )
            while at not in trouble.trouble:
                trouble.kick()
                await trio.sleep(0.005)
        said = [fields["why"] for fields in told(watcher, "peer_unreachable") if fields["peer"] == 3]
        assert said[0] == first and "127.0.0.1:2" in said[1] and "127.0.0.1:3" in said[2]
        assert len(said) == len(set(said)) == _REASONS_MAX
        monkeypatch.setattr(watcher.peers, "_addresses", everywhere)
        await until(lambda: trouble.outage is None and not trouble.trouble)


# -- growth


def test_the_rate_is_that_of_the_last_day() -> None:
    now = Sample(10 * DAY_MS, 1_000_000)
    assert bytes_a_day([], now) is None
    assert bytes_a_day([Sample(now.time_ms - LEAST_MS + 1, 0)], now) is None
    assert bytes_a_day([Sample(now.time_ms + 5, 0)], now) is None
    assert bytes_a_day([Sample(now.time_ms - DAY_MS // 2, 400_000)], now) == 1_200_000
    ages = [2 * DAY_MS, DAY_MS, DAY_MS // 2]
    samples = [Sample(now.time_ms - age, size) for age, size in zip(ages, (0, 900_000, 990_000), strict=True)]
    assert bytes_a_day(samples, now) == 100_000
    assert bytes_a_day([Sample(now.time_ms - DAY_MS, 3_000_000)], now) == -2_000_000


class Sized(MemoryStore):
    def __init__(self) -> None:
        super().__init__(1)
        self.live, self.room = 0, Volume(10_000_000, 5_000_000)

    def live_bytes(self) -> int:
        return self.live

    def free_bytes(self) -> int:
        return 1_000_000

    def volume(self) -> Volume:
        return self.room


class Keeper:
    """The part of a driver that `Growth` uses."""

    def __init__(self, store: Sized, now: list[int]) -> None:
        self.store, self.now = store, now

    def keep(self, name: str, fields: dict[str, Any]) -> None:
        self.store.note([event_row(self.now[0], name, fields)])
        self.store.checkpoint(Rest.IDLE)


@pytest.mark.trio
@pytest.mark.parametrize("grown", [6_000_000, -1])
async def test_days_until_the_disk_is_full_over_a_restart(grown: int) -> None:
    store, now = Sized(), [100 * DAY_MS]
    store.live = 1_000_000

    async def first_hours() -> None:
        growth = Growth(cast(Driver, Keeper(store, now)), store, lambda: now[0])
        assert growth.fields()["growth_bytes_per_day"] is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(growth.run)
            await until(lambda: bool(store.read_events(0, 10)))
            nursery.cancel_scope.cancel()

    async def later() -> None:
        growth = Growth(cast(Driver, Keeper(store, now)), store, lambda: now[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(growth.run)
            await until(lambda: len(store.read_events(0, 10)) == 2)
            fields = growth.fields()
            nursery.cancel_scope.cancel()
        assert (fields["disk_total_bytes"], fields["disk_free_bytes"]) == (10_000_000, 5_000_000)
        assert fields["growth_bytes_per_day"] == 2 * grown
        assert fields["disk_full_days"] == (0.5 if grown > 0 else None)

    await first_hours()
    now[0] += DAY_MS // 2
    store.live += grown
    await later()


@pytest.mark.parametrize(("name", "field", "values"), [
    ("cursor_dropped", "cursor", [f"reader-{n}" for n in range(10)]), ("damage_found", "ids", [[n] for n in range(10)]),
])
def test_alarms_about_different_things_are_each_kept(name: str, field: str, values: list[object]) -> None:
    recorder = Recorder()
    assert all(kept(recorder, name, 1, **{field: value}) is not None for value in values)
