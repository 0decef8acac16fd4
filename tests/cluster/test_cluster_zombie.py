"""A leader that was stopped and does not know that it leads no more; a client whose name another process has opened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from harness import Cluster, alpo_process, cluster
from probe import Probe, probe

from alpo import Log, connect
from alpo.client.session import random_id
from alpo.core.requests import Code
from alpo.errors import Fenced
from alpo.wire import requests as w
from alpo.wire.codec import encode

ROUNDS = 3
TIMEOUT_S = 20


def late_read(number: int) -> bytes:
    return encode(w.Read(number, 0, 0, 1, 0, 1 << 20, True, 0, ""))


def late_append(payload: bytes) -> bytes:
    # An id that any leader would take: one of another form is refused for that, whoever is asked.
    return encode(w.Append(random_id(time.time_ns() // 1_000_000, 0), 0, 1, False, False, [payload]))


async def answers(zombie: Probe, count: int) -> list[w.ServerReply | w.Problem]:
    with trio.fail_after(TIMEOUT_S):
        return [await zombie.answer() for _ in range(count)]


async def elected(running: Cluster, log: Log, zombie: int) -> int:
    """Wait for another leader, and append through it; the LSN."""
    await running.leader(running.others(zombie))
    return await log.append(b"through the new leader", timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.trio
async def test_a_leader_that_was_stopped_serves_nothing_stale_and_takes_nothing(tmp_path: Path, cut_off: bool) -> None:
    """``cut_off``: on waking the old leader receives nothing, so that it still takes itself for the leader."""
    async with cluster(tmp_path) as running, connect(running.addresses) as log:
        for number in range(ROUNDS):
            leader = await running.leader()
            lsn = await log.append(b"before", timeout_s=TIMEOUT_S)
            async with probe(running.servers[leader].address) as zombie:
                # A first read shows that this server answers requests sent this way.
                await zombie.stream.send_all(late_read(1))
                (page,) = await answers(zombie, 1)
                assert isinstance(page, w.Page) and page.end_lsn == lsn
                running.servers[leader].pause()
                if cut_off:
                    running.network.isolate(leader, running.others(leader))
                lsn = await elected(running, log, leader)
                await zombie.stream.send_all(late_read(2) + late_append(b"late") + late_read(3))
                running.servers[leader].resume()
                for answer in await answers(zombie, 3):
                    if isinstance(answer, w.Page):
                        assert answer.end_lsn >= lsn
                    else:
                        assert isinstance(answer, w.AppendRefused | w.RequestRefused), answer
                        assert answer.code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP), answer
                running.network.heal_all()
            await running.level()
            payloads = [record.payload async for record in log.read()]
            assert payloads == [b"before", b"through the new leader"] * (number + 1)


@pytest.mark.trio
async def test_a_leader_that_hears_old_answers_serves_nothing_stale(tmp_path: Path) -> None:
    """The old leader's messages are lost and another leads, but answers to its earlier messages still come in: it
    takes itself for the leader, and only R25's numbered rounds show that it leads no more."""
    met = 0
    async with cluster(tmp_path, timers={"heartbeat_s": 0.2, "election_timeout_s": 1.5}) as running:
        for _ in range(ROUNDS):
            leader = await running.leader()
            others = running.others(leader)
            async with connect(running.addresses) as log:
                await log.append(b"before", timeout_s=TIMEOUT_S)
            async with probe(running.servers[leader].address) as zombie:
                for id in others:
                    running.network.delay(id, leader, 1.3)
                # A round trip, so that what is on its way has been for that long.
                await zombie.stream.send_all(late_read(1))
                await answers(zombie, 1)
                for id in others:
                    running.network.drop(leader, id)
                new = await running.leader(others)
                async with connect(running.members[new]) as log:
                    lsn = await log.append(b"through the new leader", timeout_s=TIMEOUT_S)
                fields = await running.status(leader)
                await zombie.stream.send_all(late_read(2))
                (answer,) = await answers(zombie, 1)
                met += fields is not None and fields["state"] == "leader"
                if isinstance(answer, w.Page):
                    assert answer.end_lsn >= lsn
                else:
                    assert isinstance(answer, w.RequestRefused) and answer.code == Code.NOT_LEADER, answer
            running.network.heal_all()
            await running.level()
    assert met


@pytest.mark.trio
async def test_a_second_process_of_a_name_fences_the_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        async with connect(running.addresses, client="billing") as first:
            assert await first.append(b"one") == 1
            async with connect(running.addresses, client="billing") as second:
                await second.opened()
                with pytest.raises(Fenced) as fenced:
                    await first.append(b"from the grave")
                assert fenced.value.epoch == second.epoch
                assert await second.append(b"two") == 2
                with pytest.raises(Fenced):
                    await first.append(b"again")
                assert await second.append(b"three") == 3
        async with connect(running.addresses) as log:
            assert [record.payload async for record in log.read()] == [b"one", b"two", b"three"]


@pytest.mark.trio
async def test_so_does_one_that_has_used_the_next_serials(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        async with connect(running.addresses, client="billing") as first:
            assert await first.append(b"one") == 1
            async with connect(running.addresses, client="billing") as second:
                assert await second.append(b"two") == 2
            with pytest.raises(Fenced):
                await first.append(b"from the grave")
            with pytest.raises(Fenced):
                await first.append(b"again")
        async with connect(running.addresses) as log:
            assert [record.payload async for record in log.read()] == [b"one", b"two"]


@pytest.mark.trio
async def test_a_second_command_of_a_name_fences_the_first(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        ours = ["--servers", running.addresses, "append", "--client", "billing", "--json"]
        async with alpo_process(*ours) as first:
            await first.write(b"one\n")
            assert (await first.line())["lsn"] == 1
            async with alpo_process(*ours) as second:
                await second.write(b"two\n")
                assert (await second.line())["lsn"] == 2
                await first.write(b"from the grave\n")
                code, text = await first.end()
                assert code == 1 and "billing" in text
                await second.write(b"three\n")
                assert (await second.line())["lsn"] == 3
                assert (await second.end())[0] == 0
        async with connect(running.addresses) as log:
            assert [record.payload async for record in log.read()] == [b"one", b"two", b"three"]
