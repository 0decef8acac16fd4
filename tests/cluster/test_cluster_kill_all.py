"""All servers killed at once under load, again and again: nothing that was acknowledged is gone."""

from __future__ import annotations

from pathlib import Path

import checkers
import pytest
import trio
from checkers import Logged, Outcome
from harness import Cluster, cluster
from probe import until
from workload import History, Writer

import alpo

ROUNDS = 3
CLIENTS = 4
#: Acknowledged between two kills, at least.
PROGRESS = 100


@pytest.mark.trio
async def test_nothing_acknowledged_is_gone(tmp_path: Path) -> None:
    history = History()
    async with cluster(tmp_path) as running:
        await running.leader()
        writers = [Writer(running.addresses, f"writer-{n}", 0, history) for n in range(CLIENTS)]
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.run)
            for _ in range(ROUNDS):
                await _progress(history)
                for server in running.servers.values():
                    server.kill()
                running.start()
            await _progress(history)
            for writer in writers:
                writer.finish()
        await running.level()
        found = checkers.everything(history.appends, [], await _read(running))
        assert {name: violations for name, violations in found.items() if violations} == {}
        assert history.problems == []
        assert set((await running.stop()).values()) == {0}
        files = {id: server.entries() for id, server in running.servers.items()}
        assert checkers.unequal(files) == []


async def _progress(history: History) -> None:
    wanted = history.count(Outcome.ACKNOWLEDGED) + PROGRESS
    await until(lambda: history.count(Outcome.ACKNOWLEDGED) >= wanted)


async def _read(running: Cluster) -> list[Logged]:
    async with alpo.connect(running.addresses) as log:
        return [Logged(r.lsn, r.client, r.serial, r.payload) async for r in log.read()]
