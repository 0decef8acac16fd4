"""Stores that are damaged, or were put back to an older state: set aside, and the server comes back by itself (R31)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, cluster, serving

from alpo import connect


def votes(all_: dict[int, dict[str, Any]], id: int) -> bool:
    return id in all_ and all_[id]["status"] == "VOTING" and any(
        member["id"] == id and member["role"] == "VOTER"
        for fields in all_.values() if fields["state"] == "leader" for member in fields["members"]
    )


async def fill(running: Cluster, count: int) -> None:
    async with connect(running.addresses, timeout_s=30) as log:
        for number in range(count):
            await log.append(b"%06d" % number * 20)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def flip_in_wal(data: Path) -> None:
    """Flip a byte in an early frame, so that every later commit would vanish in silence."""
    wal = data / "alpo.db-wal"
    assert wal.stat().st_size > 100_000
    flip(wal, 32 + 5 * 4120 + 2000)


def flip_header(data: Path) -> None:
    flip(data / "alpo.db", 3)


@pytest.mark.parametrize("damage", [pytest.param(flip_in_wal, marks=pytest.mark.soak), flip_header])
@pytest.mark.trio
async def test_a_damaged_store_is_set_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async with cluster(tmp_path) as running:
        victim = running.others(await running.leader())[0]
        await fill(running, 200)
        await running.level()
        server = running.servers[victim]
        before = (await running.statuses())[victim]["incarnation"]
        async with serving(running):
            if damage is flip_in_wal:
                server.kill()
            else:  # the WAL's contents go into the file
                await running.stop(victim)
            damage(server.data)
            running.start(victim)
            found = await running.until("it votes again", lambda all_: votes(all_, victim))
        assert found[victim]["incarnation"] != before
        (aside,) = server.data.glob("lost-*")
        assert (aside / "alpo.db").exists() and "store_set_aside" in server.log.read_text("utf-8")
        await running.level()


@pytest.mark.trio
async def test_a_directory_put_back_to_an_older_copy_is_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        await fill(running, 50)
        await running.level()
        victim = running.others(await running.leader())[0]
        server = running.servers[victim]
        assert (await running.stop(victim)) == {victim: 0}
        shutil.copytree(server.data, tmp_path / "copy")
        running.start(victim)
        await fill(running, 50)
        await running.level()
        await running.until(
            "all are known to hold it",
            lambda all_: len(all_) == 3 and all(f["fully_replicated_id"] >= f["last_id"] - 1 for f in all_.values()),
        )
        server.kill()
        shutil.rmtree(server.data)
        shutil.move(tmp_path / "copy", server.data)
        async with serving(running):
            running.start(victim)
            await running.until(
                "it was set aside and votes again",
                lambda all_: votes(all_, victim) and bool(list(server.data.glob("lost-*"))),
            )
        await running.level()


@pytest.mark.trio
async def test_alone_nothing_is_set_aside(tmp_path: Path) -> None:
    """No other server could bring the store back: the server ends, and leaves all as it is."""
    async with cluster(tmp_path, size=1) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            await log.init()
        await fill(running, 20)
        server = running.servers[1]
        await running.stop(1)
        flip_header(server.data)
        running.start(1)
        assert await server.ended() == 1
        assert not list(server.data.glob("lost-*"))


@pytest.mark.trio
async def test_all_disks_lost_at_once_found_nothing_new(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        await fill(running, 20)
        await running.stop()
        for server in running.servers.values():
            flip_header(server.data)
        running.start()
        found = await running.until(
            "all wait", lambda all_: len(all_) == 3 and all(fields["waiting"] for fields in all_.values())
        )
        assert {fields["status"] for fields in found.values()} == {"EMPTY"}
        assert all("before its store was lost" in fields["waiting"][0] for fields in found.values())
        async with connect(running.addresses) as log:
            with pytest.raises(Exception, match="lost"):
                await log.init()
