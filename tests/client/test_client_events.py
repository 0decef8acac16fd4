"""Events gathered through a fake cluster: merged by time, clocks compared, who is missing is said."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from fake_cluster import FakeCluster, fake_cluster

import alpo
from alpo.client.operator import status

pytestmark = pytest.mark.anyio

NOW_MS = int(time.time() * 1000)


def happened(c: FakeCluster, server: int, *events: tuple[int, str]) -> None:
    """Events of a server: (ms from now, name)."""
    rows = c.servers[server].events
    for at_ms, name in events:
        rows.append((len(rows) + 1, NOW_MS + at_ms, name, json.dumps({"term": 3})))


async def test_all_servers_events_in_time_order() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        happened(c, 1, (-300, "a"), (-100, "c"))
        happened(c, 2, (-200, "b"))
        found = await log.events()
        assert [(e.server, e.number, e.name, e.fields) for e in found.events] == [
            (1, 1, "a", {"term": 3}), (2, 1, "b", {"term": 3}), (1, 2, "c", {"term": 3}),
        ]
        assert found.silent == [] and found.events[0].time_ms == NOW_MS - 300


async def test_as_many_pages_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PAGE", 3)
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        happened(c, 1, *((at, str(at)) for at in range(-10, 0)))
        assert [int(e.name) for e in (await log.events()).events] == list(range(-10, 0))


async def test_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PAGE", 2)
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        happened(c, 1, *((1000 * at, str(at)) for at in range(-10, 0)))
        since = datetime.fromtimestamp(NOW_MS / 1000, UTC) - timedelta(seconds=3)
        assert [e.name for e in (await log.events(since)).events] == ["-3", "-2", "-1"]
        assert c.servers[1].events_asked == [0, 9], "no further back than that"


async def test_who_is_missing_is_said() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        happened(c, 1, (-300, "a"))
        await log.events()
        c.servers[3].kill()
        found = await log.events()
        assert [e.name for e in found.events] == ["a"]
        assert [(silent.id, silent.address) for silent in found.silent] == [(3, c.servers[3].address)]
        assert c.servers[3].address in found.silent[0].why


async def test_nobody_there() -> None:
    async with fake_cluster() as c:
        for server in c.servers.values():
            server.kill()
        async with alpo.connect(c.addresses, timeout_s=0.5) as log:
            found = await log.events()
            assert found.events == [] and len(found.silent) == 3


async def test_a_clock_that_is_off_is_shifted_to_the_others() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        c.servers[2].ahead_ms = 3_600_000
        happened(c, 1, (-300, "a"), (-100, "c"))
        happened(c, 2, (3_600_000 - 200, "b"))
        happened(c, 3, (-50, "d"))
        found = await log.events()
        assert [e.name for e in found.events] == ["a", "b", "c", "d"]
        shifts = {e.server: e.shifted_ms for e in found.events}
        assert (shifts[1], shifts[3]) == (0, 0) and abs(shifts[2] - 3_600_000) < 1_000


async def test_what_is_no_json_is_told_without_its_fields() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        c.servers[1].events += [(1, NOW_MS, "a", "{"), (2, 2**62, "b", "[1]")]
        found = await log.events()
        assert [(e.name, e.fields) for e in found.events] == [("a", {}), ("b", {})]
