"""A leader that is killed is missed at once, by the connections that its host refuses (R33); one that is only stopped,
or behind a network that drops everything, is not taken for dead before the election timeout."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Cluster, cluster
from test_cluster_events import rows

from alpo import connect

#: Long enough that only the refused connections can be the reason for an election within the test.
SLOW = {"heartbeat_s": 0.5, "election_timeout_s": 10.0}


async def told(running: Cluster) -> list[int]:
    """Servers that report that the leader's process is gone."""
    return sorted(event["server"] for event in await rows(running, "explain") if event["name"] == "leader_gone")


@pytest.mark.trio
async def test_a_killed_leader_is_missed_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, timers=SLOW) as running, connect(running.addresses) as log:
        old = await running.leader(within_s=60)
        await log.append(b"before")
        running.servers[old].kill()
        assert await log.append(b"after", timeout_s=6) == 2
        new = await running.leader(running.others(old))
        assert new in await told(running) and old not in await told(running)


@pytest.mark.trio
async def test_a_stopped_leader_is_waited_for(tmp_path: Path) -> None:
    timers = {"heartbeat_s": 0.1, "election_timeout_s": 1.0}
    async with cluster(tmp_path, proxied=False, timers=timers) as running, connect(running.addresses) as log:
        old = await running.leader()
        running.servers[old].pause()
        assert await log.append(b"after", timeout_s=30) == 1
        await running.leader(running.others(old))
        running.servers[old].resume()
        assert await told(running) == []
