"""Several logs in one cluster, as real processes: written, killed, found again, deleted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import Cluster, cluster
from probe import until

import alpo
import alpo.state
from alpo import connect

NAMES = ("audit", "billing", "plans")


async def payloads(running: Cluster, name: str, server: int | None = None) -> list[bytes]:
    """All payloads of a log: as its leader has them, or in the copy of one server."""
    async with connect(running.addresses, timeout_s=30, log=name) as log:
        local = server is not None
        return [record.payload async for record in log.read(1, local=local, server=server)]


async def until_stores_are(running: Cluster, wanted: list[str]) -> None:
    """Wait until each server has the stores of these logs, by number, and "deleted N" for each that it moved away."""
    async def so() -> bool:
        found = []
        for server in running.servers.values():
            kept = [path.name for path in server.data.glob("logs/*") if (path / "alpo.db").exists()]
            moved = [f"deleted {path.parent.name.partition('-')[0]}" for path in server.data.glob("deleted/*/alpo.db")]
            found.append(sorted(kept) + sorted(moved))
        return all(each == wanted for each in found)

    await until(so, within_s=60)


@pytest.mark.trio
async def test_three_logs_through_the_end_of_a_server_and_of_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            made = [await log.create_log(name, keep_s=3600.0 if name == "audit" else None) for name in NAMES]
            assert [(each.name, each.number, each.keep_s) for each in made] == [
                ("audit", 2, 3600.0), ("billing", 3, None), ("plans", 4, None),
            ]
            assert await log.logs() == made and len({each.id for each in made}) == 3
            with pytest.raises(alpo.LogExists) as exists:
                await log.create_log("billing")
            assert exists.value.log == "billing"
            await log.append(b"of the first log")
        for name in NAMES:
            async with connect(running.addresses, timeout_s=30, log=name) as log:
                assert [await log.append(f"{name} {n}".encode()) for n in (1, 2)] == [1, 2]
        leader = await running.leader()
        running.servers[leader].kill()
        for name in NAMES:
            async with connect(running.addresses, timeout_s=30, log=name) as log:
                assert await log.append(f"{name} 3".encode()) == 3
        running.start(leader)
        for name in NAMES:
            expected = [f"{name} {n}".encode() for n in (1, 2, 3)]
            assert await payloads(running, name) == expected
            await until_copy_is(running, name, leader, expected)
        for server in running.servers.values():
            server.kill()
        running.start()
        await running.leader()
        for name in NAMES:
            assert await payloads(running, name) == [f"{name} {n}".encode() for n in (1, 2, 3)]
        async with connect(running.addresses, timeout_s=30) as log:
            assert [record.payload async for record in log.read(1)] == [b"of the first log"]


async def until_copy_is(running: Cluster, name: str, server: int, wanted: list[bytes]) -> None:
    """Wait until the copy of one server has these payloads."""
    async def so() -> bool:
        try:
            return await payloads(running, name, server) == wanted
        except alpo.AlpoError:
            return False

    await until(so, within_s=90)


@pytest.mark.trio
async def test_a_server_is_killed_in_the_middle_of_creating_and_of_deleting(tmp_path: Path) -> None:
    """Afterwards everything is as if it had been done: every server has the log's store, or has moved it away."""
    async with cluster(tmp_path, proxied=False) as running:
        for id, name in enumerate(NAMES, 1):
            async with connect(running.addresses, timeout_s=60) as log:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(log.create_log, name)
                    await until((running.servers[id].data / "logs" / str(id + 1)).exists)
                    running.servers[id].kill()
                    running.start(id)
            async with connect(running.addresses, timeout_s=60, log=name) as log:
                assert await log.append(name.encode()) == 1
        await until_stores_are(running, ["2", "3", "4"])
        for id, name in enumerate(NAMES, 1):
            async with connect(running.addresses, timeout_s=60) as log:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(log.delete_log, name)
                    running.servers[id].kill()
                    running.start(id)
        await until_stores_are(running, ["deleted 2", "deleted 3", "deleted 4"])
        async with connect(running.addresses, timeout_s=500, log="billing") as log:
            with pytest.raises(alpo.NoSuchLog, match=r"^there is no log billing$"):
                await log.append(b"to a log that is no more")


def is_alone(found: dict[int, dict[str, Any]]) -> bool:
    """True if server 1 leads a log, and is its only member."""
    one = found.get(1, {})
    return one.get("leader") == 1 and [m["id"] for m in one["members"] if m["role"] != "GONE"] == [1]


@pytest.mark.trio
async def test_a_server_that_has_left_serves_the_logs_that_still_need_it(tmp_path: Path) -> None:
    """Server 2 dies and is removed while a log of two cannot follow; no process is left that knew it as a member."""
    async with cluster(tmp_path, 2, proxied=False, timers={"heartbeat_s": 0.3, "election_timeout_s": 4.0}) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            if await running.leader() != 1:
                await log.transfer(1)
            await log.create_log("billing", lead=2)  # server 2 has it from another leader, its mark is behind
            async with connect(running.addresses, timeout_s=30, log="billing") as billing:
                await billing.append(b"one")
                assert [row["leader"] for row in await billing.status()] == [2, 2]
            await running.until("all is guaranteed", lambda found: len(found) == 2 and all(
                each["leader"] == 1 and each["last_id"] == each["guaranteed_id"] for each in found.values()
            ))
            running.servers[2].kill()
            await log.remove_member(2)
        await running.until("server 1 alone", is_alone)
        running.servers[1].kill()
        running.start(2, 1)
        async with connect(running.addresses, timeout_s=60, log="billing") as billing:
            assert await billing.append(b"two") == 2
        await running.until("the log follows", is_alone, log="billing")


@pytest.mark.trio
@pytest.mark.parametrize("begun", [False, True])
async def test_a_server_that_has_left_hears_that_its_log_is_deleted(tmp_path: Path, begun: bool) -> None:
    """Else the deletion of a log of two would never be done: both must have moved their stores away."""
    async with cluster(tmp_path, 2, proxied=False) as running, connect(running.addresses, timeout_s=60) as log:
        if await running.leader() != 1:
            await log.transfer(1)
        await log.create_log("billing")
        if begun:
            await running.until("both run it", lambda found: len(found) == 2, log="billing")
        running.servers[2].kill()
        await log.remove_member(2)
        await running.until("server 1 alone", is_alone)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.delete_log, "billing")
            await until(lambda: [*(running.servers[1].data / "deleted").glob("2-*")])
            running.servers[1].kill()
            running.start(1, 2)
        await until_stores_are(running, ["deleted 2"])


@pytest.mark.trio
async def test_a_state_has_a_log_for_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            await log.append(b"of the first log")
            await log.create_log("plans")
        async with alpo.state.connect(running.addresses, timeout_s=30, log="plans") as state:
            await state.put("motd", b"hello")
            assert (await state.fetch("motd")).value == b"hello"
        async with connect(running.addresses, timeout_s=30) as log:
            assert [record.payload async for record in log.read(1)] == [b"of the first log"]
            await log.rename_log("plans", "schedule")
        async with alpo.state.connect(running.addresses, timeout_s=30, log="schedule") as state:
            assert (await state.fetch("motd")).value == b"hello"


@pytest.mark.trio
async def test_one_lost_store_of_one_log(tmp_path: Path) -> None:
    """A server that comes back without its store of a log gets another one, and all that the log holds."""
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            await log.create_log("billing")
        async with connect(running.addresses, timeout_s=30, log="billing") as log:
            for n in range(20):
                await log.append(b"%d" % n)
        lost = running.others(await running.leader())[0]
        running.servers[lost].kill()
        for path in (running.servers[lost].data / "logs" / "2").iterdir():
            path.unlink()
        running.start(lost)
        await until_copy_is(running, "billing", lost, [b"%d" % n for n in range(20)])
        async with connect(running.addresses, timeout_s=30, log="billing") as log:
            assert await log.append(b"20") == 21


@pytest.mark.parametrize("times", [30, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.trio
async def test_logs_that_come_and_go_leave_nothing(tmp_path: Path, times: int) -> None:
    """Less than one file, open file or thread each: those of connections come and go. The marks of the last deleted
    logs stay."""
    async with cluster(tmp_path, proxied=False, logs={"keep_deleted_s": 0}) as running:
        def left() -> list[int]:
            files = [
                sum(path.is_file() and path.name != "log.json" for path in server.data.rglob("*"))
                for server in running.servers.values()
            ]
            return files + [server.count(what) for server in running.servers.values() for what in ("fd", "task")]

        async with connect(running.addresses, timeout_s=60) as log:
            for number in range(2, 2 + times):
                assert (await log.create_log("billing")).number == number
                async with connect(running.addresses, timeout_s=60, log="billing") as billing:
                    assert await billing.append(b"%d" % number) == 1
                    assert await log.delete_log("billing") == number
                    with pytest.raises(alpo.NoSuchLog, match=r"^there is no log billing$"):
                        await billing.end(timeout_s=500)
                if number == 3:
                    await until_stores_are(running, [])
                    before = left()
            await until_stores_are(running, [])
            with pytest.raises(alpo.NoSuchLog):
                await log.delete_log("billing")

            def as_before() -> bool:
                return all(now < most + times // 2 for now, most in zip(left(), before, strict=True))

            await until(as_before)


@pytest.mark.trio
async def test_a_log_at_its_bytes_max_takes_appends_again_once_it_is_trimmed(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, timeout_s=30) as log:
            await log.create_log("billing", bytes_max=1 << 20)
        async with connect(running.addresses, timeout_s=30, log="billing") as log:
            refused = pytest.raises(alpo.NoSpace, match=r"the log holds [\d.]+ MiB, and its bytes_max is 1.0 MiB")
            with trio.fail_after(60), refused:
                while True:  # servers look at the size each second, or more often
                    with suppress(alpo.NotGuaranteed):  # a further try was under way at the deadline
                        last = await log.append(b"x" * 100_000, timeout_s=5)
            async with connect(running.addresses, timeout_s=30) as other:
                for _ in range(20):
                    await other.append(b"x" * 100_000)
            await log.trim(last)
            tries = list((await log.settle()).values())
            assert tries == list(range(last + 1, last + 1 + len(tries)))
            assert await log.append(b"goes on", timeout_s=60) == last + 1 + len(tries)
