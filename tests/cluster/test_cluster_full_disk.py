"""Disks that fill up under real servers: small file systems in memory, where this user may mount some."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from harness import alpo, cluster
from probe import WITHIN_S, until
from visits import visit

from alpo import Log, NoSpace, NotGuaranteed, connect

MIB = 1 << 20
LOW = 8 * MIB
#: Bytes left free: above the reserve (a quarter of the mark) and below the mark; below the reserve.
LEFT_LOW = 5 * MIB
LEFT_NONE = MIB


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[int, Path]]:
    """A file system of 32 MiB for each of three servers."""
    mounted: dict[int, Path] = {}
    try:
        for id in (1, 2, 3):
            disk = tmp_path / f"server-{id}"
            disk.mkdir()
            if shutil.which("mount") is None:
                pytest.skip("no file system can be mounted here: no mount")
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], capture_output=True, text=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
            mounted[id] = disk
        yield mounted
    finally:
        for disk in mounted.values():
            subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, left_bytes: int) -> None:
    """Take all free space but so many bytes."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free - left_bytes) > 0:
            try:
                file.write(bytes(min(free, MIB)))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def empty(disk: Path) -> None:
    (disk / "filler").unlink()


def rooms(*wanted: tuple[int, str]) -> Callable[[dict[int, dict[str, object]]], bool]:
    return lambda found: all(id in found and found[id]["room"] == room for id, room in wanted)


async def append_until_refused(log: Log, payload: bytes) -> NoSpace:
    """Append until a server refuses; what was not refused may be in the log, or come into it later."""
    with trio.fail_after(WITHIN_S):
        while True:
            try:
                await log.append(payload, timeout_s=5)
            except NoSpace as error:
                return error
            except NotGuaranteed:  # time was up while an answer was on its way
                pass


async def append(log: Log, payload: bytes) -> int:
    """Append once there is room."""
    with trio.fail_after(WITHIN_S):
        while True:
            try:
                lsn = await log.append(payload)
            except NoSpace:
                continue
            assert lsn is not None
            return lsn


@pytest.mark.trio
async def test_a_low_leader_hands_over_a_low_majority_refuses_and_all_resumes_by_itself(
    disks: dict[int, Path], tmp_path: Path
) -> None:
    async with cluster(tmp_path, proxied=False, storage={"low_water_bytes": LOW}) as running:
        first = await running.leader()
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%d" % number) for number in range(20)]
            fill(disks[first], LEFT_LOW)
            await running.until("it is low", rooms((first, "low")))
            second = await running.leader(running.others(first))
            lsns.append(await log.append(b"another leads"))
            fill(disks[second], LEFT_LOW)
            found = await running.until("both are low", rooms((first, "low"), (second, "low")))
            error = await append_until_refused(log, b"no room")
            assert "low on disk space" in str(error)
            (remark,) = found[second]["space"]
            assert remark.startswith("low on disk space: ") and "low-water mark 8.0 MiB" in remark
            # The rest goes on.
            assert [r.lsn async for r in log.read() if r.payload != b"no room"] == lsns
            await log.trim(before=lsns[5])
            code = 3
            while code == 3:  # time was up while an answer was on its way
                code, _, stderr = await alpo("append", "--servers", running.addresses, "--timeout", "4", "no room")
            assert code == 1 and "low on disk space" in stderr
            _, _, stderr = await alpo("status", "--servers", running.addresses)
            assert f"server {second}: low on disk space" in stderr
            empty(disks[second])
            lsns.append(await append(log, b"room again"))
            empty(disks[first])
            await running.until("all have room", rooms(*((id, "plenty") for id in disks)))
            lsns.append(await append(log, b"and all is well"))
            records = {r.lsn: r.payload async for r in log.read() if r.payload != b"no room"}
            assert sorted(records) == lsns[5:] and records[lsns[-1]] == b"and all is well"
        await running.level()
        for id in (first, second):
            text = running.servers[id].log.read_text()
            events = [json.loads(line)["event"] for line in text.splitlines()]
            assert "low_on_space" in events and "space_is_back" in events


@pytest.mark.trio
@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.soak)])
async def test_one_low_and_one_away_leave_no_majority_and_every_screen_says_so(
    disks: dict[int, Path], tmp_path: Path, how: str
) -> None:
    async with cluster(tmp_path, proxied=False, http=True, storage={"low_water_bytes": LOW}) as running:
        leader = await running.leader()
        low, away = running.others(leader)
        servers = ("--servers", running.addresses)
        async with connect(running.addresses) as log:
            await log.append(b"all take it")
            fill(disks[low], 0)
            await running.until("it has no room", rooms((low, "none")))
            await log.append(b"two take it")
            code, out, _ = await alpo("doctor", *servers)
            assert code == 1 and "OK    appends      they work, no other may fail" in out
            getattr(running.servers[away], how)()
            why = f"server {low} is low on disk space and takes no entries, server {away} does not answer"
            error = await append_until_refused(log, b"one would")
            assert str(error).endswith(why)
            code, out, _ = await alpo("doctor", *servers)
            assert code == 1 and f"bad   appends      they stand: {why}" in out
            code, out, _ = await alpo("watch", "--count", "1", *servers)
            assert f"Server {leader} leads" in out and f"Appends stand: {why}. 2 of 3 members answer." in out
            ready = await visit(running.servers[leader].visited, "/readyz?leader")
            assert (ready.status, ready.text) == (503, f"appends: {why}\n")
            assert f"Appends stand: {why}." in (await visit(running.servers[leader].visited, "/")).text
            for timeout in ("3", "20"):  # the longer one on a machine that stalls
                code, _, err = await alpo("append", *servers, "--timeout", timeout, "late")
                if code == 1:
                    break
            assert code == 1 and why in err
            empty(disks[low])
            await append(log, b"two take it again")
            if how == "pause":
                running.servers[away].resume()


@pytest.mark.trio
async def test_disks_without_a_free_byte_lose_nothing(disks: dict[int, Path], tmp_path: Path) -> None:
    """All three fill up under a writer, one is killed meanwhile; nothing acknowledged is lost or doubled."""
    told: dict[int, bytes] = {}
    unknown: list[bytes] = []

    async def write_on() -> None:
        async with connect(running.addresses, timeout_s=2) as log:
            number = 0
            while True:
                number += 1
                payload = b"%d " % number + bytes(2_000)
                try:
                    lsn = await log.append(payload)
                    assert lsn is not None
                    told[lsn] = payload
                except NoSpace:
                    pass
                except NotGuaranteed:
                    unknown.append(payload)
                    for settled in (await log.settle()).values():
                        if isinstance(settled, int):
                            told[settled] = payload

    async with cluster(tmp_path, proxied=False, storage={"low_water_bytes": LOW}) as running:
        await running.leader()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            for victim in (1, 2):
                had = len(told)
                await until(lambda: len(told) >= had + 20)
                for disk in disks.values():
                    fill(disk, 0)
                await running.until("none has room", rooms(*((id, "none") for id in disks)))
                running.servers[victim].kill()
                for disk in disks.values():
                    empty(disk)
                running.start(victim)
                await running.until("all have room", rooms(*((id, "plenty") for id in disks)))
            nursery.cancel_scope.cancel()
        await running.level()
        async with connect(running.addresses) as log:
            records = {r.lsn: r.payload async for r in log.read()}
        assert {lsn: records.get(lsn) for lsn in told} == told
        assert len(set(records.values())) == len(records)


@pytest.mark.trio
async def test_a_server_whose_disk_fails_stops_and_says_so(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a disk that fails a write: exit 1, nothing is tried again."""
    async with cluster(tmp_path, proxied=False) as running:
        leader = await running.leader()
        victim = running.others(leader)[0]
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%d" % number) for number in range(20)]
            server = running.servers[victim]
            assert server.process is not None
            size = max(path.stat().st_size for path in server.data.iterdir())
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, size))
            server.wanted = False
            with trio.fail_after(WITHIN_S):
                while server.running:
                    lsns.append(await log.append(bytes(20_000)))
            assert await server.ended() == 1
            assert "alpo.db: disk I/O error (SQLITE_IOERR_WRITE)" in server.tail()
            running.start(victim)
            await running.level()
            assert [r.lsn async for r in log.read(local=True, server=victim)] == lsns


