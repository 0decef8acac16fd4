"""A client killed in the middle of an import and started anew with the same serials, in other groups, while leaders are
killed too: every payload is in the log once, in order (R21, R32)."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import importer
import pytest
import trio
from harness import Cluster, cluster

import alpo

COUNT = 40_000


async def killed_after(running: Cluster, first: int, lines: int, seed: int) -> bool:
    """Import, and kill it once it has printed so many lines; True if it came to its end before."""
    command = [sys.executable, importer.__file__, running.addresses, str(first), str(COUNT), str(seed)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = b""
    async with process.stdout:
        while printed.count(b"\n") < lines and (data := await process.stdout.receive_some()):
            printed += data
        if printed.count(b"\n") >= lines:
            process.kill()
    return await process.wait() == 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
@pytest.mark.trio
async def test_every_payload_is_there_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with cluster(tmp_path, proxied=False) as running, alpo.connect(running.addresses) as log:
        await running.leader()
        for kills in range(8):
            ends = [one.last_serial for one in await log.sessions() if one.client == importer.NAME]
            last = ends[0] if ends else 0
            first = rng.randint(max(1, last - 2_000), last + 1)  # some of it was appended before
            if await killed_after(running, first, rng.randint(1, 12), rng.getrandbits(30)):
                break
            if kills % 3 == 1:
                leader = await running.leader()
                running.servers[leader].kill()
                running.start(leader)
        assert last > 0  # it was killed in the middle
        assert await killed_after(running, 1, COUNT + 1, seed)
        payloads = [record.payload async for record in log.read()]
        assert payloads == [b"%d" % number for number in range(1, COUNT + 1)]
