"""`alpo watch` while servers are killed, hang and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from harness import Cluster, alpo_process, cluster
from probe import until
from watch_rig import terminal

from alpo import connect

pytestmark = pytest.mark.trio

WELL = "All 3 members answer"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, proxied=False) as running:
        await running.leader()
        yield running


async def test_a_server_goes_and_comes_back(servers: Cluster) -> None:
    leader = await servers.leader()
    with terminal(servers.addresses) as shown:
        await until(lambda: shown.shows(f"Server {leader} leads since term", "one more may fail"))
        servers.servers[leader].kill()
        others = servers.others(leader)
        await until(lambda: shown.shows("2 of 3 members answer; no other may fail", "no answer for", "does not answer"))
        assert servers.members[leader] in shown.frame
        await until(lambda: any(shown.shows(f"Server {id} leads since term") for id in others))
        servers.start(leader)
        await until(lambda: shown.shows(WELL) and "no answer" not in shown.frame)


async def test_a_server_that_hangs_delays_no_other(servers: Cluster) -> None:
    leader = await servers.leader()
    hangs = servers.others(leader)[0]
    with terminal(servers.addresses) as shown:
        await until(lambda: shown.shows(WELL, "last LSN 0"))
        servers.servers[hangs].pause()
        await until(lambda: shown.shows("2 of 3 members answer", "no answer for"))
        for lsn in range(1, 4):
            async with connect(servers.addresses) as log:
                assert await log.append(b"x") == lsn
            await until(partial(shown.shows, f"last LSN {lsn}", "no answer for"))
        servers.servers[hangs].resume()
        await until(lambda: shown.shows(WELL, "on every member 3"))


async def test_all_servers_go_and_it_stays(servers: Cluster) -> None:
    with terminal(servers.addresses) as shown:
        await until(lambda: shown.shows(WELL))
        for server in servers.servers.values():
            server.kill()
        await until(lambda: shown.shows("No server answers for", "reconnecting", *servers.members.values()))
        assert shown.process.poll() is None
        servers.start()
        await until(lambda: shown.shows(WELL, "leads since term"))


async def test_lines_tell_of_a_server_that_goes(servers: Cluster) -> None:
    leader = await servers.leader()
    async with alpo_process("watch", "--json", "--servers", servers.addresses) as watch:
        first = await watch.line()
        assert (first["leader"], first["members"][leader - 1]["reachable"]) == (leader, True)
        servers.servers[leader].kill()
        while (gone := (await watch.line())["members"][leader - 1])["reachable"]:
            pass
        assert gone["term"] is None and gone["silent_s"] >= 0
