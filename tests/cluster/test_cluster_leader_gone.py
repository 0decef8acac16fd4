"""A leader that is killed is missed at once, by the connections that its host refuses (R33); one that is only stopped,
behind a network that drops everything or out of file descriptors, is not taken for dead before the timeout."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from harness import Cluster, cluster
from probe import until

from alpo import connect

#: Long enough that only the refused connections can be the reason for an election within the test.
SLOW = {"heartbeat_s": 0.5, "election_timeout_s": 10.0}


def told(running: Cluster) -> list[int]:
    """Servers whose logs say that the leader's process is gone."""
    return [id for id, server in running.servers.items() if '"event": "leader_gone"' in server.tail(1000)]


@pytest.mark.trio
async def test_a_killed_leader_is_missed_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=SLOW) as running, connect(running.addresses) as log:
        old = await running.leader(within_s=60)
        await log.append(b"before")
        running.servers[old].kill()
        assert await log.append(b"after", timeout_s=6) == 2
        new = await running.leader(running.others(old))
        assert new in told(running) and old not in told(running)


@pytest.mark.trio
async def test_a_stopped_leader_is_waited_for(tmp_path: Path) -> None:
    timers = {"heartbeat_s": 0.1, "election_timeout_s": 1.0}
    async with cluster(tmp_path, proxied=False, timers=timers) as running, connect(running.addresses) as log:
        old = await running.leader()
        running.servers[old].pause()
        assert await log.append(b"after", timeout_s=30) == 1
        await running.leader(running.others(old))
        running.servers[old].resume()
        assert told(running) == []


@pytest.mark.trio
async def test_a_leader_that_lives_is_not_deposed_by_one_server_that_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, timers=SLOW) as running, connect(running.addresses) as log:
        old = await running.leader(within_s=60)
        await log.append(b"before")
        refused, other = running.others(old)
        term = (await running.statuses())[other]["term"]
        await running.network.refuse(old)
        running.network.cut(old, refused)  # nor does the leader reach it, until it has noticed
        await until(lambda: refused in told(running))
        running.network.heal_all()
        await running.until("the leader is heard again", lambda found: found[refused]["leader"] == old)
        assert [(await running.statuses())[id]["term"] for id in (refused, other)] == [term, term]
        assert await log.append(b"after", timeout_s=20) == 2


@pytest.mark.trio
async def test_a_leader_without_file_descriptors_goes_on_leading(tmp_path: Path) -> None:
    timers = {"heartbeat_s": 0.1, "election_timeout_s": 1.0}
    async with cluster(tmp_path, timers=timers) as running, connect(running.addresses) as log:
        old = await running.leader()
        await log.append(b"before")
        away, other = running.others(old)
        term = (await running.statuses())[other]["term"]
        process = running.servers[old].process
        assert process is not None
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # no file may be opened any more
        running.network.reset(old, away)
        await until(lambda: '"event": "canvass"' in running.servers[away].tail(1000))
        await until(lambda: '"event": "cannot_accept"' in running.servers[old].tail(1000))
        assert await log.append(b"during", timeout_s=20) == 2
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        await running.until("the leader is heard again", lambda found: found.get(away, {}).get("leader") == old)
        found = await running.statuses()
        assert [found[id]["term"] for id in (old, away, other)] == [term, term, term]
        assert told(running) == []
