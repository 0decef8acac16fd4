"""A budget of calls for one append, on each side: no times, which a busy machine moves, and which a profile distorts.

A change that needs more raises a number of `MOST`, and its commit says why; one that needs less lowers it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import calls
import pytest
from calls import Calls, Cost, undisturbed
from ports import free_port
from probe import until

import alpo

#: The most that a lone append may cost: Python's calls, and those into the kernel.
MOST = {"leader": Cost(216, 8), "follower": Cost(122, 4), "client": Cost(76, 7)}
_APPENDS = 300


def _start(stack: ExitStack, home: Path) -> dict[int, str]:
    """Start three servers whose calls are counted; returns their addresses. They are killed when ``stack`` ends."""
    at = {id: f"127.0.0.1:{free_port()}" for id in (1, 2, 3)}
    members = [word for id, address in at.items() for word in ("--member", f"{id}={address}")]
    for id, address in at.items():
        command = [sys.executable, calls.__file__, str(home / f"{id}.json"), "--id", str(id)]
        server = subprocess.Popen(
            [*command, "--data", str(home / str(id)), "--listen", address, *members, "--log-level", "error"]
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        (home / f"{id}.pid").write_text(str(server.pid), "utf-8")
    return at


async def _costs(home: Path, id: int) -> list[Cost]:
    """The costs of the last appends for server ``id``."""
    file = home / f"{id}.json"
    os.kill(int((home / f"{id}.pid").read_text("utf-8")), signal.SIGUSR2)
    await until(file.exists)
    return [Cost(*cost) for cost in json.loads(file.read_text("utf-8"))["appends"]][-_APPENDS:]


@pytest.mark.alone
@pytest.mark.trio
async def test_a_lone_append_is_within_its_budget(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = _start(stack, tmp_path)
        mine = Calls()
        async with alpo.connect(",".join(servers.values()), timeout_s=60) as log:
            for _ in range(50):
                await log.append(b"x" * 100)
            mine.start()
            stack.callback(sys.setprofile, None)
            for _ in range(_APPENDS):
                await log.append(b"x" * 100)
                mine.append_ended()
            sys.setprofile(None)
            leader = next(row["id"] for row in await log.status() if row["state"] == "leader")
        found = {"client": undisturbed(mine.appends)}
        followers = []
        for id in servers:
            cost = undisturbed(await _costs(tmp_path, id))
            if id == leader:
                found["leader"] = cost
            else:
                followers.append(cost)
        found["follower"] = Cost(*map(max, zip(*followers, strict=True)))
    print(found)
    for side, most in MOST.items():
        assert found[side].python <= most.python and found[side].kernel <= most.kernel, (side, found)
