"""alpo explain and alpo doctor of real clusters: a leader killed, a slow disk, servers that are down."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, alpo, cluster
from probe import until

from alpo import connect
from alpo.errors import AlpoError

#: A stalled machine must not depose anybody.
TIMERS = {"heartbeat_s": 0.3, "election_timeout_s": 2.0}


async def rows(running: Cluster, *words: str, code: int = 0) -> list[dict[str, Any]]:
    """Rows that a command prints with --json."""
    ended, out, err = await alpo(*words, "--servers", running.addresses, "--json")
    assert ended == code, err
    return [json.loads(line) for line in out.splitlines()]


async def text(running: Cluster, *words: str, code: int = 0) -> str:
    """Text that a command prints for people."""
    ended, out, err = await alpo(*words, "--servers", running.addresses)
    assert ended == code, err
    return out


@pytest.mark.trio
async def test_the_leader_is_killed_and_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=TIMERS) as running:
        old = await running.leader()
        status = await running.status(old)
        assert status is not None
        async with connect(running.addresses) as log:
            await log.append(b"before")
        running.servers[old].kill()
        new = await running.leader(running.others(old))
        term = int((await running.statuses())[new]["term"])
        other = next(id for id in running.others(old, new))
        async with connect(running.addresses) as log:
            await log.append(b"after")

        told = await text(running, "explain")
        assert re.match(rf"Server {new} won term {term} at .*Z\. ", told)
        assert f"Before it server {old} led, term {status['term']}.\n" in told
        assert re.search(rf"  server {new} wins term {term} with the votes of servers .*, 2 of 3 voters", told)
        assert re.search(rf"has heard nothing from server {old} for \d+ ms", told)
        assert re.search(rf"server {other} follows server {new} in term {term}$", told, re.M)
        assert re.search(rf"^No leader for \d+\.\d\d s: since server {old} was last heard, by server", told, re.M)
        assert f"Missing: the events of server {old}, which does not answer" in told
        events = await rows(running, "explain")
        leader = next(event for event in events if event["name"] == "leader")
        assert (leader["server"], leader["term"]) == (new, term) and old not in leader["votes"]
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)

        running.start(old)
        await running.level()

        async def explained() -> str:
            told = await text(running, "explain")
            return told if re.search(rf"server {old} follows server {new}", told) else ""

        told = await until(explained)
        assert re.search(rf"server {old} is started", told) and "Missing" not in told


@pytest.mark.trio
async def test_events_outlive_a_stop_and_say_why_the_leader_left(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=TIMERS) as running:
        old = await running.leader()
        assert await running.stop(old) == {old: 0}
        new = await running.leader(running.others(old))
        running.start(old)
        await running.level()
        told = await text(running, "explain")
        assert f"server {old} hands over to server" in told
        assert f"since server {old} handed over." in told and f"server {new} wins term" in told
        assert f"server {old} was told to stop while it led" in told


@pytest.mark.trio
async def test_a_server_that_stops_hands_over_each_log_that_it_leads(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=TIMERS) as running:
        first = await running.leader()
        async with connect(running.addresses) as log:
            await log.create_log("bills", lead=first)

        async def leads_both() -> bool:
            async with connect(running.addresses, log="bills") as log:
                if any(row["state"] == "leader" and row["id"] == first for row in await log.status()):
                    return True
                with suppress(AlpoError):  # else it is handed over after a minute only
                    await log.transfer(first)
                return False

        await until(leads_both)
        assert await running.stop(first) == {first: 0}
        running.start(first)
        await running.level()
        for name in ("default", "bills"):
            assert f"server {first} hands over to server" in await text(running, "explain", "--log", name)


@pytest.mark.trio
async def test_a_slow_fsync_is_seen(tmp_path: Path) -> None:
    """A slow fsync is an event and a finding. The timers are so short that any commit of a large batch is slow."""
    timers = {"heartbeat_s": 0.001, "election_timeout_s": 0.005}
    async with cluster(tmp_path, 1, proxied=False, timers=timers) as running:
        await running.until("it answers", lambda found: 1 in found)
        assert (await alpo("cluster", "init", "--servers", running.addresses))[0] == 0
        async with connect(running.addresses) as log:
            await log.append_batch([bytes(1 << 20)] * 7)

        async def slow_ones() -> list[dict[str, Any]]:
            return [event for event in await rows(running, "explain", "--all") if event["name"] == "slow_fsync"]

        slow = await until(slow_ones)
        assert slow[0]["took_ms"] > slow[0]["limit_ms"] == 1 and slow[0]["server"] == 1
        (disk,) = [row for row in await rows(running, "doctor", code=1) if row["check"] == "fsync"]
        assert disk["verdict"] == "bad" and disk["do"]


@pytest.mark.trio
async def test_doctor_of_a_cluster_that_is_well_and_of_one_that_is_not(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=TIMERS) as running:
        leader = await running.leader()
        await running.until("all connected", lambda found: not any(f["problems"] for f in found.values()))
        well = await rows(running, "doctor")
        assert {row["verdict"] for row in well if row["check"] != "space"} == {"ok"}
        assert f"server {leader} leads" in next(row["says"] for row in well if row["check"] == "leader")

        down = running.others(leader)[0]
        running.servers[down].kill()
        bad = [row for row in await rows(running, "doctor", code=1) if row["verdict"] == "bad"]
        assert [(row["check"], row["server"]) for row in bad] == [("members", down)]

        for id in running.others(down):
            running.servers[id].kill()
        (alone,) = await rows(running, "doctor", code=1)
        assert alone["check"] == "members" and all(address in alone["says"] for address in running.members.values())
        ended, out, err = await alpo("explain", "--servers", running.addresses)
        assert (ended, out) == (1, "") and "could be reached" in err
