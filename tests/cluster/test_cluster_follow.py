"""A passive server's reader sees what the leader has answered for within a message, not a heartbeat (R16)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from harness import cluster
from probe import WITHIN_S

import alpo

HEARTBEAT_S = 1.0
#: Number of appends that must reach the readers sooner than the next heartbeat.
APPENDS = 12


@pytest.mark.trio
async def test_a_passive_servers_reader_does_not_wait_for_heartbeats(tmp_path: Path) -> None:
    timers = {"heartbeat_s": HEARTBEAT_S, "election_timeout_s": 5 * HEARTBEAT_S}
    async with cluster(tmp_path, timers=timers) as running:
        leader = await running.leader()
        async with alpo.connect(running.addresses) as log:
            readers = [log.follow(start=1, local=True, server=id) for id in running.others(leader)]
            await log.append(b"the first")
            for reader in readers:
                assert (await anext(reader)).payload == b"the first"
            # One append after the other, each only when both readers have the one before: if readers learnt of
            # appends by heartbeats, each append would take the whole time between two heartbeats.
            sooner = number = 0
            with trio.fail_after(WITHIN_S):
                while sooner < APPENDS:
                    began_s = trio.current_time()
                    lsn = await log.append(b"%d" % number)
                    for reader in readers:
                        record = await anext(reader)
                        assert (record.lsn, record.payload) == (lsn, b"%d" % number)
                    number += 1
                    sooner += trio.current_time() < began_s + HEARTBEAT_S / 2
