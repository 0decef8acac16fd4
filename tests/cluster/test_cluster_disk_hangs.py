"""Disks that hang under real servers (R34): others lead, nothing is lost, who asks is answered, SIGTERM ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hanging_disks
import pytest
import trio
from hanging_disks import DEAD, HANG, halt, heal
from harness import Cluster, alpo, cluster
from probe import until
from visits import visit

from alpo import Log, NotGuaranteed, Overloaded, connect

KB = 1000
#: Payloads outstanding, and bytes of each: enough to reach a server's bound soon; one small append at a time, which
#: the leader's event loop commits itself.
LARGE, LONE = (8, 100 * KB), (1, 10)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = hanging_disks.compiled(tmp_path_factory.mktemp("library"))
    if isinstance(made, str):
        pytest.skip(made)
    return made


@asynccontextmanager
async def halting(home: Path, library: Path, **options: Any) -> AsyncIterator[Cluster]:
    """Three servers on disks that can be halted."""
    async with cluster(home, start=False, **options) as running:
        for server in running.servers.values():
            hanging_disks.under(library, server)
        running.start()
        await running.leader()
        try:
            yield running
        finally:
            for server in running.servers.values():
                heal(server)


class Load:
    """Appends, of which so many are outstanding; ``acknowledged``: LSN -> the first bytes of its payload."""

    def __init__(self, log: Log, outstanding: int, size_bytes: int) -> None:
        self._log, self._outstanding, self._size_bytes = log, outstanding, size_bytes
        self.acknowledged: dict[int, bytes] = {}
        self._count = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._outstanding):
                nursery.start_soon(self._append_on)

    async def _append_on(self) -> None:
        while True:
            self._count += 1
            name = b"%010d" % self._count
            try:
                lsn = await self._log.append(name.ljust(self._size_bytes, b"."))
            except (NotGuaranteed, Overloaded):  # time was up, or the leader went meanwhile
                continue
            self.acknowledged[lsn] = name

    async def goes_on(self, by: int = 30) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.acknowledged) + by
        await until(lambda: len(self.acknowledged) >= wanted)


async def all_are_there(running: Cluster, acknowledged: dict[int, bytes]) -> None:
    """Every server holds these payloads at the LSNs that were acknowledged."""
    await running.level()
    for id in running.servers:
        async with connect(running.addresses) as log:
            found = {record.lsn: record.payload[:10] async for record in log.read(local=True, server=id)}
        assert {lsn: found.get(lsn) for lsn in acknowledged} == acknowledged


def lines_of(running: Cluster, id: int) -> str:
    """All lines of a server's log."""
    return running.servers[id].log.read_text("utf-8")


@pytest.mark.trio
@pytest.mark.parametrize("load", [LARGE, LONE], ids=["large", "lone"])
@pytest.mark.parametrize("how", [HANG, pytest.param(DEAD, marks=pytest.mark.soak)])
async def test_the_leaders_disk_hangs_and_others_go_on(
    tmp_path: Path, library: Path, load: tuple[int, int], how: str
) -> None:
    async with (
        halting(tmp_path, library) as running, connect(running.addresses) as log, trio.open_nursery() as nursery,
    ):
        appends = Load(log, *load)
        nursery.start_soon(appends.run)
        await appends.goes_on()
        leader = await running.leader()
        hung = running.servers[leader]
        halt(hung, how)
        await running.leader(running.others(leader))
        await appends.goes_on()
        await until(lambda: '"disk_hangs"' in lines_of(running, leader))
        # a server that receives SIGTERM while its disk hangs ends without the disk
        assert await running.stop(leader) == {leader: 0}
        assert '"disk_left"' in lines_of(running, leader)
        await appends.goes_on()
        heal(hung)
        running.start(leader)
        await appends.goes_on()
        nursery.cancel_scope.cancel()
        await all_are_there(running, appends.acknowledged)


@pytest.mark.trio
async def test_whoever_asks_a_leader_whose_disk_hangs_is_answered(tmp_path: Path, library: Path) -> None:
    """The leader may lead on for an hour; it takes no more appends, since as many as it may owe are in memory."""
    options = {"timers": {"disk_timeout_s": 3600.0}}
    async with (
        halting(tmp_path, library, **options) as running, connect(running.addresses) as log,
        trio.open_nursery() as nursery,
    ):
        appends = Load(log, *LARGE)
        nursery.start_soon(appends.run)
        await appends.goes_on()
        leader = await running.leader()
        halt(running.servers[leader], HANG)
        at = running.members[leader]
        counts: list[int] = []

        async def stands() -> bool:
            found = await running.status(leader)
            counts.append(len(appends.acknowledged))
            assert found is not None and found["state"] == "leader"
            return found["write_under_way_ms"] > 500 and counts[-3:] == [counts[-1]] * 3

        await until(stands)
        async with connect(at, timeout_s=30) as asking:
            records = [record.payload[:10] async for record in asking.read(max(appends.acknowledged))]
            assert records[0] == appends.acknowledged[max(appends.acknowledged)]
        code, told, _ = await alpo("status", "--servers", at, "--json")
        assert code == 0 and '"write_under_way_ms"' in told
        code, told, _ = await alpo("doctor", "--servers", running.addresses)
        assert code == 1 and "bad   disk" in told
        heir = running.others(leader)[0]
        code, _, why = await alpo("transfer", str(heir), "--servers", running.addresses)
        assert code == 0, why
        await running.leader([heir])
        await appends.goes_on()
        heal(running.servers[leader])
        await appends.goes_on()
        nursery.cancel_scope.cancel()
        await all_are_there(running, appends.acknowledged)


@pytest.mark.trio
async def test_the_disks_of_both_others_hang_and_move_again(tmp_path: Path, library: Path) -> None:
    """No other server could lead, so the leader leads on, and appends go on in its term."""
    async with (
        halting(tmp_path, library) as running, connect(running.addresses, timeout_s=30) as log,
        trio.open_nursery() as nursery,
    ):
        appends = Load(log, 4, 1 * KB)
        nursery.start_soon(appends.run)
        await appends.goes_on()
        leader = await running.leader()
        others = running.others(leader)
        for id in others:
            halt(running.servers[id], HANG)
        await running.until(
            "both disks hang", lambda found: all(found[id]["write_under_way_ms"] > 2000 for id in others if id in found)
            and set(others) <= set(found),
        )
        found = await running.status(leader)
        assert found is not None and found["state"] == "leader"
        term = found["term"]
        for id in others:
            heal(running.servers[id])
        await appends.goes_on()
        found = await running.status(leader)
        assert found is not None and (found["state"], found["term"]) == ("leader", term)
        nursery.cancel_scope.cancel()
        await all_are_there(running, appends.acknowledged)


@pytest.mark.trio
async def test_a_leaders_disk_answers_no_reads_and_nothing_is_written(tmp_path: Path, library: Path) -> None:
    """Readers go on at other servers; the hung leader says why in its log, and still answers HTTP requests."""
    async with (
        halting(tmp_path, library, http=True) as running, connect(running.addresses, timeout_s=30) as log,
    ):
        for _ in range(20):  # more than a server holds in memory
            await log.append_many([bytes([n]) * 250 * KB for n in range(8)])
        await running.level()
        leader = await running.leader()
        halt(running.servers[leader], DEAD)
        records = [record.payload[:1] async for record in log.read(1)]
        assert len(records) == 160
        assert '"its disk has not answered a read' in lines_of(running, leader)
        assert await running.leader(running.others(leader)) != leader
        at = running.servers[leader].visited
        for path in ("/metrics", "/status", "/", "/?part"):
            found = await visit(at, path)
            assert found.status == 200, path
            if path == "/metrics":
                assert "alpo_read_under_way_seconds" in found.text
        assert "disk: its disk hangs" in (await visit(at, "/readyz")).text
        for timeout in ("5", "30"):  # the longer one on a machine that stalls
            code, told, _ = await alpo("doctor", "--timeout", timeout, "--servers", running.addresses)
            if "bad   disk" in told:
                break
        assert code == 1 and "bad   disk" in told and "bad   copies" not in told
        heal(running.servers[leader])
        await running.until("all read", lambda found: all(row["read_under_way_ms"] == 0 for row in found.values()))
