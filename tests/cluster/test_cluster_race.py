"""Programs that race for the next place in the log with conditional appends: exactly one wins, also as leaders die."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from harness import Cluster, alpo, cluster

from alpo import Conflict, connect
from alpo.core.entries import Kind

#: Conditional appends of each program, at least; how many of them race; and leaders that are killed meanwhile.
ROUNDS, RACERS, KILLS = 8, 3, 2
TIMEOUT_S = 60


@pytest.mark.trio
async def test_of_commands_that_expect_the_same_lsn_one_appends(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for last in range(3):
            done: list[tuple[int, str]] = []

            async def race(racer: int, last: int = last, done: list[tuple[int, str]] = done) -> None:
                flags = ["--expect-last", str(last), "--json", "--servers", running.addresses, "--timeout", "60"]
                code, out, _ = await alpo("append", f"{racer}", *flags)
                done.append((code, out))

            async with trio.open_nursery() as nursery:
                for racer in range(RACERS):
                    nursery.start_soon(race, racer)
            assert sorted(code for code, _ in done) == [0] + [1] * (RACERS - 1)
            for code, out in done:
                told = json.loads(out)
                assert told["lsn"] == last + 1 if code == 0 else told == {"lsn": None, "last_lsn": last + 1}


async def count_up(servers: str, racer: int, won: dict[int, int], killed: list[int]) -> None:
    """Append conditionally, always right behind what is the last, until enough was won and killed."""
    async with connect(servers, client=f"racer-{racer}", timeout_s=TIMEOUT_S) as log:
        last = number = 0
        while number < ROUNDS or len(killed) < KILLS:
            number += 1
            while True:
                try:
                    lsn = await log.append(b"%d %d %d" % (racer, number, last), expect_last=last)
                except Conflict as conflict:
                    assert conflict.last_lsn > last
                    last = conflict.last_lsn
                else:
                    assert lsn == last + 1 and lsn not in won
                    won[lsn] = racer
                    last = lsn
                    break


async def kill_leaders(running: Cluster, won: dict[int, int], killed: list[int]) -> None:
    """Kill one leader after the other, each once somebody has won again, and start it anew."""
    while True:
        before, leader = len(won), await running.leader()
        while len(won) < before + 2:
            await trio.sleep(0.01)
        running.servers[leader].kill()
        killed.append(leader)
        await running.leader(running.others(leader))
        running.start(leader)


@pytest.mark.trio
async def test_every_place_has_one_winner_while_leaders_are_killed(tmp_path: Path) -> None:
    won: dict[int, int] = {}
    killed: list[int] = []
    async with cluster(tmp_path) as running:
        async with trio.open_nursery() as killing:
            killing.start_soon(kill_leaders, running, won, killed)
            async with trio.open_nursery() as racing:
                for racer in range(RACERS):
                    racing.start_soon(count_up, running.addresses, racer, won, killed)
            killing.cancel_scope.cancel()
        for id, server in running.servers.items():
            if not server.running:
                running.start(id)
        await running.level()
        await running.stop()
        entries = [entry for entry in running.servers[1].entries() if entry.kind == Kind.DATA]
    assert len(won) >= ROUNDS * RACERS
    assert sorted(won) == list(range(1, len(won) + 1))
    assert {entry.lsn: entry.client for entry in entries} == {lsn: f"racer-{racer}" for lsn, racer in won.items()}
    assert all(entry.body.split()[2] == b"%d" % (entry.lsn - 1) for entry in entries)
